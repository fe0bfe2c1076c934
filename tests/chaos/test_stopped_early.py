"""A run that is told to stop before its workers run, or by somebody at the keyboard, leaves nothing behind."""

import os
import select
import signal
import subprocess
import threading
import time

import pytest

from patience import patience
from support import ELASTIC, wait_for

FOREVER = "import os, time\nos.write(1, b'{}' + os.linesep.encode())\ntime.sleep(600)\n"
DEAF = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


@pytest.fixture
def impatient(tmp_path):
    """Install a hook that signals its own process while it is imported: after the run began, before its loop."""

    def install(signum):
        site = tmp_path / "site"
        (site / "impatient-1.0.dist-info").mkdir(parents=True)
        (site / "impatient.py").write_text(f"import os\nos.kill(os.getpid(), {int(signum)})\n")
        (site / "impatient-1.0.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: impatient\nVersion: 1.0\n"
        )
        (site / "impatient-1.0.dist-info" / "entry_points.txt").write_text("[elastic_core.hooks]\nhurry = impatient\n")
        return {"PYTHONPATH": str(site)}

    return install


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signal_before_the_loop_runs_ends_with_its_code_and_leaves_nothing(
    elastic, script, tmp_path, impatient, signum
):
    logs = tmp_path / "logs"
    agent = elastic("--log-dir", logs, "-r", "3", script(FOREVER), env=impatient(signum))
    assert agent.wait(20) == 128 + signum
    assert (agent.out, agent.err) == ("", "")
    assert list(agent.runtime.glob("elastic-*/*-*")) == []
    assert list(logs.iterdir()) == []
    assert agent.survivors() == []


def test_ignored_signal_before_the_loop_runs_stays_ignored(elastic, script, impatient):
    agent = elastic(
        script("print('{}')\n"), env=impatient(signal.SIGHUP),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    assert agent.wait(20) == 0


@pytest.mark.parametrize("delay_ms", range(20, 160, 14))
def test_whenever_a_signal_comes_nothing_is_left(elastic, script, delay_ms):
    agent = elastic("--nproc-per-node", "2", script(FOREVER))
    threading.Event().wait(delay_ms / 1000)  # the moment is what is tried
    agent.signal(signal.SIGTERM)
    assert agent.wait(20) in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert list(agent.runtime.glob("elastic-*/*-*")) == []
    wait_for(lambda: agent.survivors() == [], within_s=2)


@pytest.fixture
def terminal(tmp_path):
    """Start `elastic run` on a terminal of its own; return what types and reads, and the process."""
    started = []

    def start(*args):
        runtime = tmp_path / "runtime"
        runtime.mkdir(mode=0o700)
        leader, follower = os.openpty()
        process = subprocess.Popen(
            [*ELASTIC, *map(str, args)], stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
            env=os.environ | {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(runtime)}, preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(follower)
        started.append((process, leader))
        return process, leader, runtime

    yield start
    for process, leader in started:
        process.kill()
        process.wait()
        os.close(leader)


def _take_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def read_until(fd, mark, times=1, within_s=20.0):
    data, end_s = b"", time.monotonic() + patience(within_s)
    while data.count(mark) < times:
        ready, _, _ = select.select([fd], [], [], max(0.0, end_s - time.monotonic()))
        assert ready, data
        data += os.read(fd, 4096)
    return data


def test_ctrl_c_stops_the_workers_and_the_run(terminal, script):
    process, leader, runtime = terminal(script(FOREVER))
    read_until(leader, b"{}")
    os.write(leader, b"\x03")
    read_until(leader, b"SIGINT: stopping 1 worker, at most 30 s")
    assert process.wait(patience(10)) == 130
    assert list(runtime.glob("elastic-*/*-*")) == []


def test_second_ctrl_c_kills_workers_that_do_not_listen(terminal, script):
    process, leader, runtime = terminal("--nproc-per-node", "2", script(DEAF + FOREVER))
    read_until(leader, b"{}", times=2)
    os.write(leader, b"\x03")
    read_until(leader, b"stopping 2 workers")
    threading.Event().wait(0.6)  # the second signal counts from 0.5 s on: the rule under test
    os.write(leader, b"\x03")
    read_until(leader, b"second signal: killing the workers")
    assert process.wait(patience(5)) == 130
    assert list(runtime.glob("elastic-*/*-*")) == []


def test_ctrl_c_between_two_attempts_ends_the_wait(terminal, script):
    process, leader, runtime = terminal(
        "--max-restarts", "5", "--restart-backoff", "1e300", script("raise SystemExit(7)\n")
    )
    read_until(leader, b"restart 2 of 5 in 1e+300 s")
    os.write(leader, b"\x03")
    assert process.wait(patience(5)) == 130
    assert list(runtime.glob("elastic-*/*-*")) == []


def test_grace_period_without_end_is_one(terminal, script):
    process, leader, _ = terminal("--shutdown-timeout", "1e300", script(FOREVER))
    read_until(leader, b"{}")
    os.write(leader, b"\x03")
    assert process.wait(patience(5)) == 130


def test_hangup_of_the_terminal_ends_the_run(terminal, script):
    process, leader, runtime = terminal("--tee", "3", "--log-dir", os.devnull, script(FOREVER))
    read_until(leader, b"{}")
    with open(os.devnull) as nowhere:
        os.dup2(nowhere.fileno(), leader)  # the terminal's other end is closed by that
    assert process.wait(patience(10)) == 129
    assert list(runtime.glob("elastic-*/*-*")) == []
