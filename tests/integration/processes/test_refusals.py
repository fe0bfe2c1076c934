"""What the system refuses for a moment while workers are started again: it is tried again, and the line says so."""

import errno
import os
import resource
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from elastic_core.errors import ConfigError, RendezvousError
from elastic_core.launcher import round_maker
from elastic_core.launcher.round_maker import RoundPort
from support import Lines, wait_for

FAILS_ONCE = """
import os, pathlib, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0": sys.exit(0)
pathlib.Path("up").touch()
while not os.path.exists("go"): time.sleep(0.02)
sys.exit(7)
"""


def _enter(members):
    members.write_text(str(os.getpid()))


def _set(limit, value, pid):
    limit.write_text(value)


def _empty(members):
    return not members.read_text()


@contextmanager
def process_limit():
    """Yield a function for the agent to call before it starts, and two that refuse it new processes, and allow them."""
    for mount, controller in ((Path("/sys/fs/cgroup/pids"), ""), (Path("/sys/fs/cgroup"), "pids")):
        group = mount / f"elastic-test-{os.getpid()}"
        try:
            if controller and controller not in (mount / "cgroup.subtree_control").read_text().split():
                continue
            group.mkdir()
        except OSError:
            continue
        members, limit = group / "cgroup.procs", group / "pids.max"
        try:
            yield (
                partial(_enter, members),
                partial(_set, limit, "1"),
                partial(_set, limit, "max"),
            )
        finally:
            wait_for(partial(_empty, members), what="an empty cgroup")
            group.rmdir()
        return
    if os.geteuid() == 0:
        pytest.skip("no pids cgroup can be made here, and root has no limit on processes")
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    yield (
        lambda: None,
        lambda pid: resource.prlimit(pid, resource.RLIMIT_NPROC, (1, hard)),
        lambda pid: resource.prlimit(pid, resource.RLIMIT_NPROC, (hard, hard)),
    )


def test_processes_that_are_refused_for_a_moment_cost_a_restart_and_a_pause(elastic, script, tmp_path):
    with process_limit() as (enter, refuse, allow):
        agent = elastic("--max-restarts", "6", script(FAILS_ONCE), preexec_fn=enter, cwd=tmp_path)
        try:
            wait_for((tmp_path / "up").exists)
            refuse(agent.pid)
            (tmp_path / "go").touch()
            wait_for(lambda: "restart 2 of 6 in 0.5 s" in agent.err, what="a restart after the refusal")
            allow(agent.pid)
            assert agent.wait(60) == 0, agent.err
        finally:
            agent.close()
    assert "start-up failed: worker with local rank 0: can't start" in agent.err
    assert "not-retryable" not in agent.err


def test_a_program_that_has_gone_is_not_tried_again(elastic, tmp_path):
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nrm "$0"\nexit 7\n')
    program.chmod(0o700)
    agent = elastic("--max-restarts", "5", "--no-python", program)
    assert agent.wait(30) == 1
    assert "ENOENT" in agent.err
    assert "not-retryable" in agent.err
    assert "restart 2" not in agent.err


def test_descriptors_that_are_gone_for_a_moment_end_no_run(elastic, script, tmp_path):
    agent = elastic("--max-restarts", "6", script(FAILS_ONCE), cwd=tmp_path)
    wait_for((tmp_path / "up").exists)
    wait_for(lambda: list(agent.runtime.rglob("agent.sock")), what="an agent that has loaded what it needs")
    before = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (1, before[1]))
    (tmp_path / "go").touch()
    wait_for(lambda: "this costs no restart" in " ".join(agent.err.split()), what="a line about the port")
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, before)
    assert agent.wait(60) == 0, agent.err
    assert "no TCP port could be reserved for MASTER_PORT (Too many open files)" in " ".join(agent.err.split())
    assert "restart 2" not in agent.err


# --- the port of a round


class Refusing:
    """Takes the place of `HeldPort`: it refuses some times."""

    def __init__(self, number, times):
        self.number, self.times, self.asked = number, times, 0

    def reserve(self):
        self.asked += 1
        if self.asked <= self.times:
            raise RendezvousError("no TCP port") from OSError(self.number, os.strerror(self.number))
        return self

    port = 4711

    def hold(self, port):
        raise ConfigError("that port") from OSError(self.number, os.strerror(self.number))

    def close(self):
        """Hold nothing."""


def renewed(port):
    """Return what a request for a port answers, and its pauses, which take no time here."""
    pauses, due, answers = [], [], []

    def call_later(delay_s, callback):
        pauses.append(delay_s)
        due.append(callback)

    port.renew(call_later, answers.append)
    while due:
        due.pop()()
    (answer,) = answers
    return answer, pauses


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_port_is_asked_for_again_with_growing_pauses(monkeypatch, number):
    monkeypatch.setattr(round_maker, "HeldPort", Refusing(number, 5))
    assert renewed(RoundPort(None, lines := Lines())) == (4711, [0.5, 1.0, 2.0, 4.0, 4.0])
    assert lines == ["no TCP port: trying again for 30 s; this costs no restart"]


def test_a_port_that_stays_refused_is_given_up(monkeypatch):
    monkeypatch.setattr(round_maker, "HeldPort", Refusing(errno.EMFILE, 1000))
    error, pauses = renewed(RoundPort(None, Lines()))
    assert isinstance(error, RendezvousError)
    assert "no TCP port" in str(error)
    assert round_maker.RESERVE_LIMIT_S <= sum(pauses) <= round_maker.RESERVE_LIMIT_S + round_maker.LONGEST_PAUSE_S


def test_a_port_that_somebody_has_is_no_matter_of_time(monkeypatch):
    monkeypatch.setattr(round_maker, "HeldPort", Refusing(errno.EADDRINUSE, 1000))
    for wanted, kind in ((None, RendezvousError), (1234, ConfigError)):
        error, pauses = renewed(RoundPort(wanted, Lines()))
        assert isinstance(error, kind)
        assert pauses == []


def test_a_request_that_waits_ends_with_the_next_one(monkeypatch):
    refusing = Refusing(errno.EMFILE, 1)
    monkeypatch.setattr(round_maker, "HeldPort", refusing)
    port, due, answers = RoundPort(None, Lines()), [], []
    port.renew(lambda delay_s, callback: due.append(callback), answers.append)
    assert renewed(port) == (4711, [])
    due.pop()()
    assert (answers, refusing.asked) == ([], 2)
