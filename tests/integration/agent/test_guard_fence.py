"""The guard's duties while its agent lives, stopped or stuck, and its last act when the agent has died."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from elastic_core.agent.guard import last_act
from elastic_core.agent.guard.guardian import Guardian
from elastic_core.rendezvous.store import Seat
from elastic_core.system.clock import SystemClock
from elastic_core.system.reactor import Reactor
from guard_kit import (
    REDIS_STORE,
    Place,
    check_that_the_seat_is_given_back,
    environment,
    gone,
    limit,
    settings_for,
    start_worker,
)
from patience import kept, patience
from ports import free_port
from proc_kit import children, command_line
from redis_servers import binary, redis_server
from support import Lines, wait_for
from time_limits import GUARD_S

__all__ = ["redis_server"]


def let_pass(seconds):
    """Give the guard time in which it must do nothing."""
    end_s = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() > end_s)


# --- the fence


def test_a_stopped_agents_workers_die_at_the_fence_and_nobody_else(agent):
    family = start_worker(agent)
    sidecar, child, guard = agent.do("sidecar"), agent.do("child"), agent.do("guard")
    until_s = time.monotonic() + 0.4
    agent.do("fence", until_s)
    agent.signal(signal.SIGSTOP)
    wait_for(lambda: gone(*family), within_s=5)
    late_s = time.monotonic() - until_s
    assert late_s >= 0
    kept(late_s, GUARD_S)
    assert not gone(sidecar)
    assert not gone(child)
    assert not gone(agent.process.pid)
    assert not gone(guard)
    # It comes back to life, in a new round: the guard still does both of its duties.
    agent.signal(signal.SIGCONT)
    agent.do("fence", time.monotonic() + 60)  # before there are other workers: the guard may still be looking
    again = start_worker(agent)
    agent.do("fence", time.monotonic() + 0.4)
    wait_for(lambda: gone(*again), within_s=5)
    agent.do("fence", time.monotonic() + 60)
    last = start_worker(agent)
    agent.signal(signal.SIGKILL)
    wait_for(lambda: gone(*last, sidecar, guard), within_s=5, what="the end of all, of the sidecar too")
    assert not gone(child)


def test_a_fence_moved_in_time_kills_nobody(agent):
    fence_s = patience(0.6)

    def moved_in_time():
        """Move a fence for a while, then lift it; return the workers, or None where this process was late itself."""
        agent.do("fence", float("inf"))  # of an earlier try: the guard may still be looking
        family = start_worker(agent)
        end_s, earlier_s, in_time = time.monotonic() + 2 * fence_s, float("inf"), True
        while in_time and time.monotonic() < end_s:
            until_s = time.monotonic() + fence_s
            agent.do("fence", until_s)
            in_time, earlier_s = time.monotonic() < earlier_s, until_s
            let_pass(0.1)
        agent.do("fence", float("inf"))
        return family if in_time and time.monotonic() < earlier_s else None

    family = wait_for(moved_in_time, within_s=30, what="a fence that is moved in time")
    assert not gone(*family)
    let_pass(fence_s + 0.2)
    assert not gone(*family), "lifted"


def test_a_fence_that_passed_without_workers_counts_for_those_that_come_unless_it_is_moved(agent):
    agent.do("fence", time.monotonic() - 1)
    agent.do("fence", time.monotonic() + 60)
    family = start_worker(agent)
    let_pass(0.3)
    assert not gone(*family)
    agent.do("fence", time.monotonic() - 1)
    wait_for(lambda: gone(*family), within_s=5)


def test_a_guard_that_follows_another_knows_fence_and_workers(agent):
    family = start_worker(agent)
    agent.do("fence", time.monotonic() + 0.8)
    first = agent.do("guard")
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: agent.do("guard") not in (None, first))
    agent.signal(signal.SIGSTOP)
    wait_for(lambda: gone(*family), within_s=5)


def test_a_guard_with_a_fence_does_not_wake_for_nothing(agent):
    start_worker(agent)
    agent.do("fence", time.monotonic() + 60)
    guard = agent.do("guard")

    def wakes():
        lines = Path(f"/proc/{guard}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))

    def sleeps():
        before = wakes()
        let_pass(1)
        return wakes() == before

    wait_for(sleeps, within_s=10, what="a second without a wake, once it has begun")


# --- the guardian's word on it


@pytest.fixture
def guardian():
    """A guardian whose guard hunts nobody, on a clock that the test moves."""

    class Later(SystemClock):
        later_s = 0.0

        def monotonic_s(self):
            return super().monotonic_s() + self.later_s

    reactor, clock = Reactor(), Later()
    guardian = Guardian(reactor, incarnation=secrets.token_hex(8), log=Lines(), clock=clock)
    guardian.later = lambda seconds: setattr(clock, "later_s", seconds)
    guardian.now_s = clock.monotonic_s
    yield guardian
    guardian.dismiss()
    reactor.close()


def test_the_guardian_tells_whether_the_fence_has_passed(guardian):
    assert not guardian.fence_passed(guardian.now_s())
    guardian.note_workers([10])
    guardian.fence(guardian.now_s() + 5)
    assert not guardian.fence_passed(guardian.now_s())
    assert guardian.fence_passed(guardian.now_s() + 6)


def test_a_fence_that_was_missed_is_remembered_until_other_workers_are_named(guardian):
    guardian.note_workers([10, 11])
    guardian.fence(guardian.now_s() + 5)
    guardian.later(6)
    guardian.fence(guardian.now_s() + 5)
    assert guardian.fence_passed(guardian.now_s())
    guardian.note_workers([11])
    assert guardian.fence_passed(guardian.now_s())
    guardian.note_workers([12, 13])
    assert not guardian.fence_passed(guardian.now_s())


def test_a_fence_missed_without_workers_is_nobodys_business(guardian):
    guardian.fence(guardian.now_s() + 5)
    guardian.later(6)
    guardian.fence(guardian.now_s() + 5)
    assert not guardian.fence_passed(guardian.now_s())


# --- the last act


WATCHING_STORE = """
import os
from pathlib import Path
from elastic_core.processes.sweep import is_alive
from elastic_rdzv_redis.store import RedisStore

class Store(RedisStore):
    def withdraw(self, seat, *, wait):
        pids = Path(os.environ["WATCHED"]).read_text().split()
        Path(os.environ["NOTE"]).write_text(" ".join(pid for pid in pids if is_alive(int(pid))))
        super().withdraw(seat, wait=wait)
"""


def test_a_killed_agents_seat_is_given_back_within_a_second(agent, place):
    check_that_the_seat_is_given_back(agent, place)


def test_the_seat_goes_after_the_workers(agents, place, tmp_path, monkeypatch):
    (tmp_path / "watching_store.py").write_text(WATCHING_STORE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # the agent finds the store's module by it, and so must the guard
    stranger = agents()
    left_alone = stranger.do("worker")
    watched, note = tmp_path / "watched", tmp_path / "note"
    agent = agents(NOTE=str(note), WATCHED=str(watched))
    family = [*start_worker(agent), agent.do("sidecar")]
    os.kill(family[1], signal.SIGSTOP)
    watched.write_text(" ".join(map(str, [*family, left_alone])))
    place.leave_with(agent, "watching_store:Store")
    agent.signal(signal.SIGKILL)
    wait_for(lambda: not place.taken(), within_s=5)
    assert note.read_text() == str(left_alone)


@pytest.mark.parametrize("host_lives", [True, False])
def test_a_guest_of_another_nodes_store_gives_its_seat_back_and_hosts_nothing(agent, host_lives):
    from elastic_rdzv_redis.embedded import EmbeddedStore

    binary()  # skips, or fails in CI, where there is no server
    port = free_port()
    settings = msgspec.structs.replace(settings_for(f"127.0.0.1:{port}"), backend="c10d", incarnation="host")
    host = EmbeddedStore(settings)
    try:
        host.connect(wait=limit())
        seat = host.enlist(b"me", incarnation="abc", ttl_s=60, wait=limit())
        told = (msgspec.json.encode(value).decode() for value in (seat, settings))
        agent.do("last", "elastic_rdzv_redis.embedded:EmbeddedStore", *told)
        guard = agent.do("guard")
        if not host_lives:
            host.close()
        agent.signal(signal.SIGKILL)
        if host_lives:
            wait_for(lambda: not host.members(wait=limit()).members, within_s=5)
        wait_for(lambda: gone(guard), within_s=5)
        with socket.socket() as probe:
            assert (probe.connect_ex(("127.0.0.1", port)) == 0) == host_lives
    finally:
        host.close()


def test_a_cancelled_last_act_is_not_done(agent, place):
    place.leave_with(agent)
    agent.do("last", "", "", "")
    guard = agent.do("guard")
    agent.signal(signal.SIGKILL)
    wait_for(lambda: gone(guard), within_s=5)
    assert place.taken()


def test_a_guard_that_follows_another_knows_the_last_act(agent, place):
    place.leave_with(agent)
    first = agent.do("guard")
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: agent.do("guard") not in (None, first))
    agent.signal(signal.SIGKILL)
    wait_for(lambda: not place.taken(), within_s=5)


def test_the_store_finds_its_secrets_in_the_agents_environment(agents, redis_server, monkeypatch):
    redis_server.call("CONFIG SET requirepass hush")
    monkeypatch.setenv("ELASTIC_REDIS_PASSWORD", "hush")
    agent, place = agents(), Place(redis_server)
    place.leave_with(agent)
    agent.signal(signal.SIGKILL)
    wait_for(lambda: not place.taken(), within_s=5)
    place.store.close()


def test_no_secret_is_seen_in_a_command_line(agents, redis_server):
    place = Place(redis_server, f"redis://user:hush-{secrets.token_hex(4)}@{redis_server.endpoint}")
    agent = agents()
    place.leave_with(agent)
    guard = agent.do("guard")
    redis_server.pause()
    try:
        agent.signal(signal.SIGKILL)
        (act,) = wait_for(lambda: children(guard), within_s=5)
        argv = wait_for(lambda: (line := command_line(act)).endswith(b"-act\0") and line)
        assert b"hush" not in argv
        assert environment(act) == b""
        wait_for(lambda: gone(guard, act), within_s=14, what="an end without the store")
    finally:
        redis_server.resume()
        place.store.close()


@pytest.mark.parametrize("store", ["no.such:Store", REDIS_STORE])
def test_a_last_act_that_can_not_succeed_delays_nothing(agent, store):
    settings = settings_for("127.0.0.1:9")  # nobody listens
    seat = Seat(number=1, incarnation="abc", ahead=0)
    family = start_worker(agent)
    agent.do("last", store, msgspec.json.encode(seat).decode(), msgspec.json.encode(settings).decode())
    guard = agent.do("guard")
    agent.signal(signal.SIGKILL)
    wait_for(lambda: gone(*family, guard), within_s=3)


def test_a_huge_environment_costs_the_last_act_and_nothing_else(agents, place):
    agent = agents(**{f"HUGE_{number}": secrets.token_hex(30_000) for number in range(4)})
    family = start_worker(agent)
    place.leave_with(agent)
    guard = agent.do("guard")
    agent.signal(signal.SIGKILL)
    wait_for(lambda: gone(*family, guard), within_s=5)
    assert place.taken()


# --- the process by itself


def last_act_process(line):
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", "from elastic_core.agent.guard.last_act import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={},
    )
    process.stdin.write(line + b"\n")
    process.stdin.flush()
    return process


@pytest.mark.parametrize("word", [b"", b"go", b"stop\n"])
def test_without_the_whole_word_go_nothing_is_done(place, word):
    told = last_act.encode(REDIS_STORE, msgspec.json.encode(place.seat), msgspec.json.encode(place.settings))
    process = last_act_process(told.encode())
    said, _ = process.communicate(word, timeout=patience(20))
    assert (process.returncode, said) == (0, b"")
    assert place.taken()


def test_nonsense_ends_it_without_a_word():
    process = last_act_process(b"nonsense")
    said, _ = process.communicate(b"go\n", timeout=patience(20))
    assert (process.returncode, said) == (1, b"")


def test_it_ends_though_nobody_ever_says_go(place):
    told = last_act.encode(REDIS_STORE, msgspec.json.encode(place.seat), msgspec.json.encode(place.settings))
    process = last_act_process(told.encode())
    assert process.wait(timeout=patience(20)) == -signal.SIGALRM
    process.communicate()
    assert place.taken()


def test_a_store_on_the_dead_agents_own_node_is_not_begun_anew(monkeypatch, tmp_path):
    (tmp_path / "hosting.py").write_text(
        "from pathlib import Path\n"
        "class Store:\n"
        "    hosted_by_member = True\n"
        "    def __init__(self, settings): self.settings = settings\n"
        "    def connect(self, *, wait):\n"
        f"        Path({str(tmp_path / 'note')!r}).write_text(repr(self.settings.options['is_host']))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    seat = Seat(number=1, incarnation="abc", ahead=0)
    settings = settings_for("localhost:1")
    told = last_act.encode("hosting:Store", msgspec.json.encode(seat), msgspec.json.encode(settings))
    last_act_process(told.encode()).communicate(timeout=patience(20))
    assert (tmp_path / "note").read_text() == "False"


def test_bytes_that_are_no_text_travel_too(monkeypatch, place):
    monkeypatch.setenv("ODD", os.fsdecode(b"\xff\n"))
    told = last_act.encode(REDIS_STORE, msgspec.json.encode(place.seat), msgspec.json.encode(place.settings))
    assert last_act_process(told.encode()).communicate(b"go\n", timeout=patience(20))[0] == b""
    assert not place.taken()
