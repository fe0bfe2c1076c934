"""Workers that leave a round without ending: a starter keeps their processes, and the stop ladder ends all others."""

import os
import signal

import pytest

from elastic_core.processes.spec import StreamPlan
from elastic_core.starters import WorkerStarter
from group_kit import GroupKit, all_closed_since, open_fds, set_subreaper
from patience import kept
from proc_kit import is_alive

SLEEP = "import time\nprint('ready')\nwhile True: time.sleep(60)"
DEAF = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready')\nwhile True: time.sleep(60)"
CHILD = """
import os, time
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.setsid()
    os.write(writing, b"x")
else:
    os.read(reading, 1)
    print("child", child)
    print("ready")
while True: time.sleep(60)
"""


class Keeps(WorkerStarter):
    """Asks the workers with these local ranks to leave, and gives each that has left a place with its rank."""

    def __init__(self, *ranks):
        self.ranks = ranks
        self.asked = {}
        self.kept = {}
        self.ended = []

    def keep(self, worker, *, within_s, planned):
        self.within_s, self.planned = within_s, planned
        if worker.local_rank in self.ranks:
            self.asked[worker.local_rank] = worker
        return worker.local_rank in self.ranks

    def leave(self, rank):
        """The worker has left; return whether it is this object's."""
        worker = self.asked.pop(rank)
        if worker.left():
            self.kept[rank] = worker
        return rank in self.kept

    def start(self, worker):
        kept = self.kept.pop(worker.local_rank, None)
        return kept and kept.process

    def worker_ended(self, pid):
        self.ended.append(pid)

    def close(self):
        for worker in self.kept.values():
            os.kill(worker.process.pid, signal.SIGKILL)
            os.waitpid(worker.process.pid, 0)
            worker.ended()
        self.kept.clear()


@pytest.fixture
def keeps():
    return Keeps(0, 1)


@pytest.fixture(params=[False, True], ids=["library", "subreaper"])
def kit(request, tmp_path, keeps):
    before = open_fds()
    set_subreaper(request.param)
    kit = GroupKit(tmp_path, subreaper=request.param, starters=(keeps,))
    try:
        yield kit
    finally:
        kit.group.close()
        keeps.close()
        kit.group.end_left()
        kit.close()
        set_subreaper(False)
    all_closed_since(before)


def start(kit, *codes):
    kit.start(*codes)
    for rank in range(len(codes)):
        kit.run_until_said("ready", rank)
    return dict(kit.group.pids)


def begin_stop(kit, *, grace_s=60.0, **more):
    kit.group.stop(15, grace_s=grace_s, may_leave=True, **more)


def until_stopped(kit):
    before = kit.stopped
    kit.run_until(lambda: kit.stopped > before)


def test_workers_leave_and_get_places_in_the_next_round(kit, keeps):
    pids = start(kit, SLEEP, SLEEP, SLEEP)
    begin_stop(kit, planned=True)
    assert (keeps.within_s, keeps.planned) == (30.0, True)
    assert keeps.leave(0)
    assert keeps.leave(1)
    until_stopped(kit)
    assert [exit.local_rank for exit in kit.exits] == [2]
    assert kit.group.left_pids == {pids[0], pids[1]}
    assert not kit.group.pids.keys() - {2}
    kit.start(SLEEP, SLEEP, SLEEP)
    assert {rank: kit.group.pids[rank] for rank in (0, 1)} == {0: pids[0], 1: pids[1]}
    assert kit.group.pids[2] != pids[2]
    assert kit.group.kept_ranks == (0, 1)
    assert not kit.group.left_pids
    # Now they are workers as all are: their ends are reported, and a stop that leads nowhere signals them.
    os.kill(pids[0], signal.SIGKILL)
    kit.run_until_exits(2)
    assert (kit.exits[1].local_rank, kit.exits[1].code, kit.exits[1].stop_signal) == (0, -9, None)
    assert keeps.ended == [pids[0]]
    kit.stop()
    assert {exit.code for exit in kit.exits[2:]} == {-15}
    assert kit.group.kept_ranks == (0, 1)


def test_one_that_stays_is_signalled_and_others_are_not(kit, keeps):
    pids = start(kit, SLEEP, SLEEP)
    begin_stop(kit)
    keeps.asked[0].stays()
    kit.run_until_exits(1)
    assert (kit.exits[0].code, kit.exits[0].stop_signal) == (-15, 15)
    keeps.asked[0].stays()
    assert not keeps.leave(0), "it has ended"
    assert is_alive(pids[1])
    assert keeps.leave(1)
    until_stopped(kit)


def test_one_that_answers_nothing_goes_down_the_ladder_within_its_time(kit, keeps):
    start(kit, DEAF)
    took_s = kit.stop(grace_s=0.4, may_leave=True)
    kept(took_s, 0.4 + 0.5)
    assert (kit.exits[0].code, kit.exits[0].stop_signal) == (-9, 15)
    assert not keeps.leave(0)


@pytest.mark.parametrize("how", ["kill", "shorter", "end of the run"])
def test_orders_meanwhile_end_the_leaving(kit, keeps, how):
    start(kit, SLEEP, SLEEP)
    begin_stop(kit)
    keeps.leave(1)
    if how == "kill":
        kit.group.kill()
    elif how == "shorter":
        kit.group.stop(15, grace_s=20.0)
    else:
        kit.group.forbid_leaving()
    assert not keeps.leave(0), "it was signalled"
    until_stopped(kit)
    assert [(exit.local_rank, exit.code) for exit in kit.exits] == [(0, -9 if how == "kill" else -15)]
    assert kit.group.left_pids


def test_one_that_dies_meanwhile_has_ended(kit, keeps):
    pids = start(kit, SLEEP)
    begin_stop(kit)
    os.kill(pids[0], signal.SIGKILL)
    os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
    assert not keeps.leave(0)
    until_stopped(kit)
    assert [(exit.code, exit.stop_signal) for exit in kit.exits] == [(-9, 15)], "an end by the stop is no new cause"


def test_what_a_worker_that_left_has_started_is_spared_and_the_leftovers_of_others_are_not(kit, keeps):
    start(kit, CHILD, CHILD)
    child = {rank: int(kit.said(rank).split("child ")[1].split()[0]) for rank in (0, 1)}
    begin_stop(kit)
    keeps.asked[0].stays()
    keeps.leave(1)
    until_stopped(kit)
    assert not is_alive(child[0])
    assert is_alive(child[1])
    # The kept one dies: what it leaves does not live on beside the next round.
    worker = keeps.kept.pop(1)
    os.kill(worker.process.pid, signal.SIGKILL)
    os.waitpid(worker.process.pid, 0)
    worker.ended()
    assert not kit.group.left_pids
    kit.start(SLEEP)
    kit.run_until(lambda: not is_alive(child[1]))


def test_one_without_a_place_in_the_next_round_is_killed(kit, keeps):
    pids = start(kit, SLEEP)
    begin_stop(kit)
    keeps.leave(0)
    until_stopped(kit)
    keeps.start = lambda worker: None
    kit.start(SLEEP)
    kit.run_until(lambda: not is_alive(pids[0]))
    assert kit.group.kept_ranks == ()
    keeps.kept.pop(0).ended()


def test_the_status_of_one_that_died_while_it_was_kept_is_its_starters(kit, keeps):
    pid = start(kit, SLEEP)[0]
    begin_stop(kit)
    keeps.leave(0)
    until_stopped(kit)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    keeps.start = lambda worker: None
    kit.start(SLEEP)
    kit.group.reap_adopted()
    assert not kit.group.left_pids
    assert os.waitpid(pid, os.WNOHANG) == (pid, signal.SIGKILL), "until then, no other process has its number"
    keeps.kept.pop(0).ended()


def test_the_end_of_the_run_leaves_nothing_of_a_kept_worker(kit, keeps):
    pids = start(kit, CHILD)
    child = int(kit.said(0).split("child ")[1].split()[0])
    begin_stop(kit)
    keeps.leave(0)
    until_stopped(kit)
    kit.group.close()
    keeps.close()
    kit.group.end_left()
    assert not is_alive(pids[0])
    assert not is_alive(child)


def test_output_between_two_rounds_is_in_the_log_of_the_earlier(kit, keeps, tmp_path):
    go = tmp_path / "go"
    wait = f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    code = f"import os, time\nprint('ready')\n{wait}\nprint('between')\ntime.sleep(600)"
    kit.group.start([kit.launch(code, stdout=StreamPlan(file=kit.log(0), max_bytes=1000, inherit=False))])
    kit.run_until_said("ready")
    begin_stop(kit)
    assert keeps.leave(0)
    until_stopped(kit)
    assert is_alive(keeps.kept[0].process.pid), kit.said(0, "err")
    go.write_text("")
    kit.run_until_said("between")


def test_a_starter_is_not_asked_where_no_round_can_follow_or_the_worker_has_failed(kit, keeps):
    pids = start(kit, SLEEP, SLEEP)
    kit.group._on_record(pids[1], 1)
    begin_stop(kit)
    assert keeps.asked.keys() == {0}
    keeps.leave(0)
    until_stopped(kit)
    assert [exit.local_rank for exit in kit.exits] == [1]
    keeps.asked.clear()
    start(kit, SLEEP, SLEEP)
    kit.stop()
    assert not keeps.asked
