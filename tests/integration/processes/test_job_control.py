"""Ctrl-Z and its kin: workers stop with the agent, go on with it, and the time between counts for nothing."""

import fcntl
import os
import signal
import subprocess
import termios
from contextlib import suppress

import pytest

from group_kit import GroupKit
from patience import patience
from proc_kit import state_of
from support import ELASTIC, places_of_runs, wait_for

TICKS = """
import os, pathlib, signal, sys, time
if sys.argv[1:] == ["catches"]:
    signal.signal(signal.SIGTSTP, lambda *_: (os.write(1, b"saved\\n"), os.kill(os.getpid(), signal.SIGSTOP)))
os.write(1, b"worker %d\\n" % os.getpid())
while True:
    time.sleep(0.01)
"""


def stopped(*pids):
    return all(state_of(pid) == "T" for pid in pids)


def workers(text, count):
    """The pids that so many workers have printed."""
    found = [int(line.split()[1]) for line in text.splitlines() if line.startswith("worker ")]
    return found if len(found) == count else None


@pytest.fixture
def terminal(script, tmp_path):
    """`elastic run` of two workers at a terminal of its own; return the process, its terminal and its workers."""
    leader, follower = os.openpty()
    process = subprocess.Popen(
        [*ELASTIC, "--nproc-per-node", "2", "--omp-threads", "1", script(TICKS)],
        stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
        env=os.environ | places_of_runs(tmp_path), preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(follower)
    os.set_blocking(leader, False)
    text = ""

    def told():
        nonlocal text
        with suppress(BlockingIOError):
            text += os.read(leader, 65536).decode().replace("\r", "")
        return workers(text, 2)

    yield process, leader, wait_for(told, what="two workers")
    process.kill()
    process.wait()
    os.close(leader)


def test_ctrl_z_stops_workers_too_each_time_and_ctrl_c_ends_all_afterwards(terminal):
    process, leader, ranks = terminal
    for _ in range(2):
        os.write(leader, b"\x1a")
        wait_for(lambda: stopped(process.pid, *ranks), what="all to stand still")
        process.send_signal(signal.SIGCONT)  # as `bg` and `fg` do
        wait_for(lambda: not any(map(stopped, (process.pid, *ranks))), what="all to go on")
    os.write(leader, b"\x03")
    assert process.wait(patience(20)) == 128 + signal.SIGINT


def test_worker_that_catches_the_signal_gets_it_and_one_that_is_ignored_at_the_start_stays_ignored(elastic, script):
    agent = elastic(script(TICKS), "catches")
    (pid,) = wait_for(lambda: workers(agent.out, 1))
    agent.signal(signal.SIGTSTP)
    wait_for(lambda: stopped(agent.pid, pid))
    assert "saved" in agent.out
    agent.signal(signal.SIGCONT)
    wait_for(lambda: not stopped(agent.pid) and not stopped(pid))
    agent.signal(signal.SIGTERM)
    assert agent.wait(20) == 143
    assert "SIGTSTP" not in agent.err  # nothing ends with a lease here

    deaf = elastic(script(TICKS), preexec_fn=lambda: signal.signal(signal.SIGTSTP, signal.SIG_IGN))
    (pid,) = wait_for(lambda: workers(deaf.out, 1))
    deaf.signal(signal.SIGTSTP)
    deaf.signal(signal.SIGTERM)
    assert deaf.wait(20) == 143


def test_stop_that_comes_while_workers_are_being_stopped_leaves_them_their_time(tmp_path, monkeypatch):
    kit = GroupKit(tmp_path)
    kit.start(
        "import signal, time\nsignal.signal(15, lambda *_: print('told'))\nprint('up')\nwhile True: time.sleep(1)"
    )
    kit.run_until_said("up")
    (pid,) = kit.group.pids.values()
    kit.group.stop(15, grace_s=20.0)
    kit.run_until_said("told")
    kit.group.suspend()
    wait_for(lambda: stopped(pid))
    now_s, passed = kit.reactor._clock.monotonic_s, [100.0]
    monkeypatch.setattr(kit.reactor, "_clock", type("Later", (), {"monotonic_s": lambda _: now_s() + passed[0]})())
    kit.reactor.leave_out(100.0)
    kit.group.resume()
    kit.reactor.turn(0.05)
    assert (kit.exits, stopped(pid)) == ([], False)
    passed[0] += 20.0
    kit.run_until_exits(1)
    assert (kit.exits[0].code, kit.exits[0].runtime_s < 60) == (-9, True)
    kit.run_until(lambda: kit.stopped)
    kit.close()
