"""Worker processes for real: start, watch, stop ladder, sweep."""

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from elastic_core.errors import IllegalEventError, WorkerError
from elastic_core.processes import ladder
from elastic_core.processes import process as process_module
from elastic_core.processes.process import WorkerProcess
from elastic_core.processes.spec import StreamPlan
from group_kit import DEADLINE_S, GroupKit, all_closed_since, open_fds, set_subreaper
from patience import kept, patience
from proc_kit import is_alive, state_of

PRELUDE = """
import os, signal, sys, time
def fork(name, *, setsid=False, deaf=False):
    pid = os.fork()
    if pid == 0:
        if setsid:
            os.setsid()
        if deaf:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(os.environ["FOLDER"] + "/" + name + ".part", "w") as f:
            f.write(f"{os.getpid()}\\n")
        os.rename(f.name, f.name[:-5])
        while True:
            time.sleep(60)
def wait_for(name):
    while not os.path.exists(os.environ["FOLDER"] + "/" + name):
        time.sleep(0.005)
"""
SLEEP = PRELUDE + "print('ready'); time.sleep(60)"
DEAF = PRELUDE + "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(60)"


@pytest.fixture(params=[False, True], ids=["library", "subreaper"])
def kit(request, tmp_path):
    before = open_fds()
    set_subreaper(request.param)
    kit = GroupKit(tmp_path, subreaper=request.param)
    try:
        yield kit
    finally:
        kit.close()
        set_subreaper(False)
    all_closed_since(before)


# --- start and exits


def test_exits_tell_code_and_time_and_nobody_stopped_them(kit):
    kit.start("raise SystemExit(0)", "raise SystemExit(7)", "import os; os.kill(os.getpid(), 9)")
    pids = dict(kit.group.pids)
    assert kit.group.alive == {0, 1, 2}
    kit.run_until_exits(3)
    assert {e.local_rank: e.code for e in kit.exits} == {0: 0, 1: 7, 2: -9}
    for e in kit.exits:
        assert (e.global_rank, e.pid) == (e.local_rank + 100, pids[e.local_rank])
        assert e.stop_signal is None
        assert 0 < e.runtime_s < DEADLINE_S
        assert not e.unreapable
    assert [e.at_ns for e in kit.exits] == sorted(e.at_ns for e in kit.exits)
    assert kit.group.alive == frozenset()
    took_s = kit.stop(within_s=2)
    kept(took_s, 1)


def test_a_worker_may_end_before_its_start_returns(kit, monkeypatch):
    """As where this process has its next turn late. What the worker has recorded is from its lifetime all the same."""
    start = process_module._start

    def returns_late(*args):
        started = start(*args)
        os.waitid(os.P_PID, started[0].pid, os.WEXITED | os.WNOWAIT)
        return started

    monkeypatch.setattr(process_module, "_start", returns_late)
    kit.start("import time; print(time.time_ns())")
    kit.run_until_exits(1)
    assert kit.exits[0].at_ns - kit.exits[0].runtime_s * 1e9 < int(kit.said()) < kit.exits[0].at_ns


def test_each_worker_has_its_own_session_and_only_the_usual_descriptors(kit):
    read_fd, write_fd = os.pipe()
    os.set_inheritable(write_fd, True)
    try:
        kit.start("import os; print(os.getsid(0) == os.getpid() == os.getpgid(0), sorted(os.listdir('/proc/self/fd')))")
        kit.run_until_exits(1)
    finally:
        os.close(read_fd)
        os.close(write_fd)
    assert kit.said() == "True ['0', '1', '2', '3']\n"  # 3 is the listing's own


def test_a_program_that_does_not_exist_is_named_and_those_before_it_can_be_stopped(kit):
    with pytest.raises(WorkerError) as caught:
        kit.group.start([kit.launch(SLEEP, 0), kit.launch("", 1, argv=("/no/such/python", "x.py"))])
    text = str(caught.value)
    assert "local rank 1" in text
    assert "'/no/such/python': ENOENT: No such file or directory" in text
    assert "Try: " in text
    assert kit.group.alive == {0}
    kit.stop()
    assert [e.local_rank for e in kit.exits] == [0]


def test_a_file_that_may_not_be_executed_is_named(kit, tmp_path):
    (tmp_path / "plain").write_text("x")
    with pytest.raises(WorkerError, match="EACCES"):
        kit.group.start([kit.launch("", argv=(str(tmp_path / "plain"),))])


def test_a_log_file_that_cannot_be_opened_is_named(kit, tmp_path):
    launch = kit.launch(SLEEP, stdout=StreamPlan(file=str(tmp_path), inherit=False))
    with pytest.raises(WorkerError, match=str(tmp_path)):
        kit.group.start([launch])


def test_a_group_is_not_started_twice_but_again_after_a_stop(kit):
    kit.start(SLEEP)
    with pytest.raises(IllegalEventError):
        kit.start(SLEEP)
    kit.stop()
    for _ in range(2):
        kit.start(SLEEP, SLEEP)
        assert len(kit.group.pids) == 2
        kit.stop()
    assert len(kit.exits) == 5
    assert kit.stopped == 3


@pytest.mark.parametrize("again", ["stop", "kill"])
def test_a_stop_whose_end_is_not_told_yet_is_not_begun_anew(kit, monkeypatch, again):
    """A lease that ran out and the word of it, say: the second order comes while the logs of the first are written."""
    kit.start("pass")
    kit.run_until_exits(1)
    held = []
    with monkeypatch.context() as patch:
        patch.setattr(kit.disk, "when_written", lambda lanes, written, **_: held.append(written))
        kit.group.stop(15, grace_s=1.0)
        kit.run_until(lambda: held)
    kit.group.kill() if again == "kill" else kit.group.stop(15, grace_s=0.5)
    held.pop()()
    kit.run_until(lambda: kit.stopped)
    kit.start("pass")  # which would be refused with a second stop under way
    kit.run_until_exits(2)
    kit.stop()
    assert kit.stopped == 2


# --- the stop ladder


def test_the_whole_grace_period_is_given_to_a_worker_that_saves_its_work(kit):
    kit.start(
        PRELUDE
        + "done = []\n"
        + "signal.signal(signal.SIGTERM, lambda *a: done.append(1))\n"
        + "print('ready')\n"
        + "while not done: time.sleep(0.01)\n"
        + "time.sleep(1.5); print('saved'); raise SystemExit(5)",
        SLEEP,
    )
    kit.run_until(lambda: all("ready" in kit.said(rank) for rank in (0, 1)))
    took_s = kit.stop(grace_s=20)
    assert took_s >= 1.5
    kept(took_s, 10)
    assert kit.said().endswith("saved\n")
    ended = {e.local_rank: e for e in kit.exits}
    assert (ended[0].code, ended[1].code) == (5, -15)
    assert all(e.stop_signal == 15 and e.stop_sent_ns < e.at_ns for e in kit.exits)


def test_all_deaf_workers_are_killed_together_when_the_grace_period_ends(kit):
    kit.start(*[DEAF] * 3)
    kit.run_until(lambda: all("ready" in kit.said(rank) for rank in range(3)))
    took_s = kit.stop(grace_s=0.5)
    assert took_s >= 0.5
    kept(took_s, 3)
    assert [(e.code, e.stop_signal) for e in kit.exits] == [(-9, 15)] * 3


def test_kill_ends_the_grace_period(kit):
    kit.start(DEAF)
    kit.run_until_said("ready")
    kit.group.stop(15, grace_s=60)
    kit.reactor.turn(0.05)
    assert kit.exits == []
    kit.group.kill()
    kit.run_until(lambda: kit.stopped == 1, within_s=5)
    assert kit.exits[0].code == -9


def test_a_stopped_process_gets_to_act_on_the_signal(kit):
    kit.start(PRELUDE + "signal.signal(signal.SIGTERM, lambda *a: sys.exit(4)); print('ready'); time.sleep(60)")
    kit.run_until_said("ready")
    os.kill(kit.group.pids[0], signal.SIGSTOP)
    kit.run_until(lambda: state_of(kit.group.pids[0]) == "T")
    took_s = kit.stop(grace_s=60)
    kept(took_s, 10)
    assert kit.exits[0].code == 4


def test_a_worker_that_had_ended_before_the_stop_was_not_stopped_by_us(kit):
    kit.start("raise SystemExit(3)", SLEEP)
    kit.run_until(lambda: state_of(kit.group.pids[0]) == "Z" or kit.exits)
    kit.stop()
    assert {e.local_rank: (e.code, e.stop_signal) for e in kit.exits} == {0: (3, None), 1: (-15, 15)}


def test_an_end_that_is_read_late_is_reported_before_the_end_of_the_stop(kit):
    """Reading what a worker has left may take longer than the stop of a group in which nothing runs any more."""
    order, read = [], []
    kit.group._read_ahead = lambda exit, done: read.append(done)
    kit.group._on_exit = lambda exit: order.append("exit")
    kit.group._on_stopped = lambda: order.append("stopped")
    kit.start("pass")
    os.waitid(os.P_PID, kit.group.pids[0], os.WEXITED | os.WNOWAIT)
    kit.group.stop(signal.SIGTERM, grace_s=5)
    kit.run_until(lambda: len(kit.group._unreported) == 2)
    assert order == []
    read.pop()()
    kit.run_until(lambda: len(order) == 2)
    assert order == ["exit", "stopped"]


def test_a_forwarded_signal_reaches_each_worker_and_not_its_children(kit):
    code = (
        PRELUDE + "fork('child' + os.environ['RANK']); wait_for('child' + os.environ['RANK'])\n"
        "signal.signal(signal.SIGUSR1, lambda *a: print('got it')); print('ready')\n"
        "while True: time.sleep(60)"
    )
    kit.start(code, code)
    kit.run_until(lambda: all("ready" in kit.said(rank) for rank in (0, 1)))
    kit.group.forward(signal.SIGUSR1)
    kit.run_until(lambda: all("got it" in kit.said(rank) for rank in (0, 1)))
    assert all(is_alive(kit.pid_in(f"child{rank}")) for rank in (0, 1))
    assert kit.group.alive == {0, 1}
    kit.stop()


# --- what workers leave


@pytest.mark.parametrize("deaf", [False, True])
def test_a_failed_workers_children_are_ended_while_the_others_run_on(kit, deaf):
    kit.start(PRELUDE + f"fork('child', deaf={deaf}); wait_for('child'); sys.exit(3)", SLEEP)
    kit.run_until_exits(1)
    child = kit.pid_in("child")
    took_s = kit.run_until(lambda: not is_alive(child), within_s=5)
    kept(took_s, 3)
    assert kit.group.alive == {1}
    kit.stop()


def test_a_detached_deaf_grandchild_does_not_survive_the_stop(kit):
    kit.start(PRELUDE + "fork('far', setsid=True, deaf=True); wait_for('far'); sys.exit(0)")
    kit.run_until_exits(1)
    far = kit.pid_in("far")
    assert is_alive(far)
    took_s = kit.stop()
    assert took_s > 0.9
    kept(took_s, 4)
    assert not is_alive(far)


def test_children_that_end_on_the_signal_cost_no_waiting(kit):
    code = "fork('near'); fork('far', setsid=True); wait_for('near'); wait_for('far'); print('ready'); time.sleep(60)"
    kit.start(PRELUDE + code)
    kit.run_until_said("ready")
    kept(kit.stop(), 0.9)
    assert not is_alive(kit.pid_in("near"))
    assert not is_alive(kit.pid_in("far"))


def test_a_subreaper_leaves_no_zombie(tmp_path):
    set_subreaper(True)
    kit = GroupKit(tmp_path, subreaper=True)
    try:
        kit.start(PRELUDE + "fork('near'); fork('far', setsid=True); wait_for('near'); wait_for('far')")
        kit.run_until_exits(1)
        near, far = kit.pid_in("near"), kit.pid_in("far")
        kit.stop()
        assert (state_of(near), state_of(far)) == (None, None)
    finally:
        kit.close()
        set_subreaper(False)


def test_what_the_agent_itself_started_is_left_alone(tmp_path):
    set_subreaper(True)
    sleep = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
    command = subprocess.Popen(sleep)  # a hook's, in our session
    guard = subprocess.Popen(sleep, start_new_session=True)
    kit = GroupKit(tmp_path, subreaper=True, spared=lambda: (guard.pid,))
    try:
        kit.start(SLEEP)
        took_s = kit.stop()
        kept(took_s, 1)
        assert (command.poll(), guard.poll()) == (None, None)
    finally:
        kit.close()
        set_subreaper(False)
        for process in (command, guard):
            process.kill()
            process.wait()


def test_a_worker_with_the_terminal_shares_our_session_and_is_swept_all_the_same(kit):
    code = PRELUDE + "fork('child'); wait_for('child'); print(os.getsid(0), os.getpgid(0)); time.sleep(60)"
    kit.group.start([kit.launch(code, foreground=True)])
    kit.run_until_said("\n")
    assert kit.said() == f"{os.getsid(0)} {os.getpgid(0)}\n"
    kit.stop()
    assert not is_alive(kit.pid_in("child"))


def test_close_kills_what_still_runs(kit):
    kit.start(DEAF)
    kit.run_until_said("ready")
    pid = kit.group.pids[0]
    kit.group.close()
    kit.run_until(lambda: not is_alive(pid), within_s=5)
    if state_of(pid) == "Z":
        os.waitpid(pid, 0)


# --- kernels and processes that don't play along


def test_a_worker_that_kill_does_not_end_is_reported_and_left(kit, monkeypatch):
    real_reap = WorkerProcess.reap
    monkeypatch.setattr(ladder, "GIVE_UP_S", 3.0)  # in which the other one is reaped, on a busy machine too
    kit.start(SLEEP, SLEEP)
    stuck = kit.group.pids[0]
    monkeypatch.setattr(WorkerProcess, "reap", lambda self: None if self.pid == stuck else real_reap(self))
    took_s = kit.stop(grace_s=0.2)
    kept(took_s, 5)
    ended = {e.local_rank: e for e in kit.exits}
    assert (ended[0].code, ended[0].unreapable, ended[0].stop_signal) == (-9, True, 15)
    assert not ended[1].unreapable
    (notice,) = kit.notices
    assert f"local rank 0 (pid {stuck}) does not end after SIGKILL" in notice
    # It ends after all: no zombie stays, and nobody is told a second time.
    monkeypatch.setattr(WorkerProcess, "reap", real_reap)
    kit.run_until(lambda: state_of(stuck) is None, within_s=5)
    assert len(kit.exits) == 2


@pytest.fixture(params=[errno.ENOSYS, errno.EPERM, None])
def no_pidfd(request, monkeypatch):
    def refuse(pid, flags=0):
        raise OSError(request.param, os.strerror(request.param))

    if request.param is None:
        monkeypatch.delattr(os, "pidfd_open")
    else:
        monkeypatch.setattr(os, "pidfd_open", refuse)


@pytest.mark.usefixtures("no_pidfd")
def test_without_pidfds_child_signals_tell(tmp_path):
    kit = GroupKit(tmp_path)
    kit.reactor.handle_signals([signal.SIGCHLD], lambda signum: kit.group.reap())
    try:
        kit.start("raise SystemExit(3)", SLEEP, "raise SystemExit(4)")
        kit.run_until_exits(2)
        assert {e.local_rank: e.code for e in kit.exits} == {0: 3, 2: 4}
        kit.stop()
        assert kit.exits[-1].code == -15
    finally:
        kit.close()


@pytest.mark.usefixtures("no_pidfd")
def test_without_pidfds_and_without_signals_the_group_asks(tmp_path):
    seen = []

    def run():
        kit = GroupKit(tmp_path)
        try:
            kit.start("raise SystemExit(3)", SLEEP)
            kit.run_until_exits(1)
            kit.stop()
            seen.extend(e.code for e in kit.exits)
        finally:
            kit.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(patience(30))
    assert seen == [3, -15]


def test_a_status_that_somebody_else_took_is_a_failure(kit):
    kit.start("raise SystemExit(0)")
    os.waitpid(kit.group.pids[0], 0)
    kit.run_until_exits(1)
    assert kit.exits[0].code == 1
