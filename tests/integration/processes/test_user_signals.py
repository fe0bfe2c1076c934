"""SIGUSR1 and SIGUSR2: each worker gets one when it is ready for it, once, and none dies of it."""

import os
import signal
import time

import pytest

from elastic_core.processes.signals import SENDER_S, is_pending
from group_kit import GroupKit
from proc_kit import descendants
from support import wait_for

SAYS = """
import os, signal, sys, time
def wait_for(name):
    while not os.path.exists(os.environ["FOLDER"] + "/" + name):
        time.sleep(0.005)
def catch(signum, frame):
    print("got it")
"""
CATCHES = SAYS + "signal.signal(signal.SIGUSR1, catch); print('ready')\nwait_for('end'); print('the end')"
LATER = SAYS + "print('ready'); wait_for('go'); signal.signal(signal.SIGUSR1, catch)\nwait_for('end'); print('the end')"
NEVER = SAYS + "print('ready'); wait_for('end')"
AWAITS = SAYS + (
    "import threading\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
    "thread = threading.Thread(target=lambda: print('got', signal.sigwait([signal.SIGUSR1])), daemon=True)\n"
    "thread.start()\n"
    "while 'sigtimedwait' not in open(f'/proc/self/task/{thread.native_id}/wchan').read(): time.sleep(0.005)\n"
    "print('ready'); wait_for('end')"
)


@pytest.fixture
def kit(tmp_path):
    kit = GroupKit(tmp_path)
    yield kit
    kit.close()


def ready(kit, *codes):
    kit.start(*codes)
    kit.run_until(lambda: all("ready" in kit.said(rank) for rank in range(len(codes))))


def test_worker_gets_a_signal_that_came_before_its_handler_when_that_is_there_and_once(kit, tmp_path):
    ready(kit, CATCHES, LATER)
    kit.group.forward(signal.SIGUSR1)
    kit.run_until_said("got it", 0)
    (line,) = kit.notices
    assert line.startswith(
        "SIGUSR1: local rank 1 does not catch it and would die of it; it is kept until then, at most"
    )
    assert line.endswith("for this round. Try: --preemption-signal USR1 to save and stop, or a handler in the script")
    (tmp_path / "go").touch()
    kit.run_until_said("got it", 1)
    kit.run_until(lambda: kit.group._user_signals._timer is None)  # nothing is looked at any more
    (tmp_path / "end").touch()
    kit.run_until_exits(2)
    assert [exit.code for exit in kit.exits] == [0, 0]
    assert [kit.said(rank).count("got it") for rank in (0, 1)] == [1, 1]
    assert len(kit.notices) == 1


def test_worker_that_awaits_a_signal_without_a_handler_gets_it(kit, tmp_path):
    ready(kit, AWAITS)
    kit.group.forward(signal.SIGUSR1)
    kit.run_until_said("got 10")
    assert kit.notices == []
    (tmp_path / "end").touch()
    kit.run_until_exits(1)


def test_signal_that_is_never_caught_ends_nobody_and_is_gone_with_the_round(kit, tmp_path):
    ready(kit, NEVER)
    for _ in range(2):
        kit.group.forward(signal.SIGUSR1)
    assert len(kit.notices) == 1
    kit.stop()
    assert [exit.code for exit in kit.exits] == [-signal.SIGTERM]
    ready(kit, CATCHES)
    (tmp_path / "end").touch()
    kit.run_until_exits(2)
    assert "got it" not in kit.said(0)


def test_signal_that_comes_while_no_worker_runs_is_for_those_that_are_started_next(kit, tmp_path):
    kit.group.forward(signal.SIGUSR1)
    assert kit.notices == ["SIGUSR1: no worker runs; it is kept for those that are started next"]
    ready(kit, CATCHES)
    kit.run_until_said("got it")
    (tmp_path / "end").touch()
    kit.run_until_exits(1)
    assert kit.said().count("got it") == 1


COUNTS = """
import os, pathlib, signal, time
rank, here = os.environ["RANK"], pathlib.Path(os.environ["HERE"])
def catch(signum, frame):
    os.write(1, b'{"got": 1}' + os.linesep.encode())
os.write(1, b'{"up": 1}' + os.linesep.encode())
while (here / "wait").exists():
    time.sleep(0.005)
signal.signal(signal.SIGUSR1, catch)
os.write(1, b'{"ready": 1}' + os.linesep.encode())
while not (here / "end").exists():
    time.sleep(0.005)
"""


@pytest.fixture
def run(elastic, script, tmp_path):
    """Start two workers that catch the signal once the file `wait` is gone; return what counts their lines, too."""

    def start(*args):
        agent = elastic("--nproc-per-node", 2, *args, script(COUNTS), env={"HERE": str(tmp_path)})

        def count(what):
            return sum(what in line for line in agent.lines())

        wait_for(lambda: count("up") == 2)
        return agent, count

    return start


def test_signal_while_workers_start_ends_none_of_them(run, tmp_path):
    (tmp_path / "wait").touch()
    agent, count = run()
    agent.signal(signal.SIGUSR1)
    wait_for(lambda: "SIGUSR1: local ranks 0, 1 do not catch it" in agent.err, what=agent.err)
    (tmp_path / "wait").unlink()
    wait_for(lambda: count("got") == 2)
    (tmp_path / "end").touch()
    assert agent.wait(20) == 0, agent.err
    assert count("got") == 2


@pytest.mark.parametrize("agent_first", [True, False])
def test_sender_that_signals_the_workers_too_does_not_reach_them_twice(run, tmp_path, agent_first):
    while True:
        agent, count = run()
        wait_for(lambda count=count: count("ready") == 2)
        others, began_s = descendants(agent.pid), time.monotonic()
        for pid in [agent.pid, *others] if agent_first else [*others, agent.pid]:
            os.kill(pid, signal.SIGUSR1)
        if time.monotonic() - began_s < SENDER_S:
            break
        agent.close()  # this sender got no turn for so long that the agent took it for two
    wait_for(lambda: "SIGUSR1: not passed on, its sender has signalled the workers, too" in agent.err)
    wait_for(lambda: count("got") == 2)
    wait_for(lambda: not any(is_pending(pid, signal.SIGUSR1) for pid in others), what="the guard to forget the signal")
    agent.signal(signal.SIGUSR1)  # that sender was another one
    wait_for(lambda: count("got") == 4)
    (tmp_path / "end").touch()
    assert agent.wait(20) == 0, agent.err
    assert count("got") == 4
