"""Rounds of several workers on a clock that the test moves: the stop ladder, the machine of places, and workers that
leave, stay, hang, die or are deaf, in any order.

Whatever they do: a stop ends in bounded time; at its end each process has ended or is kept, and never both; a process
gets at most one place for each round; and no worker is in two rounds.
"""

import heapq
import itertools
import random

import pytest

from elastic_core.processes import ladder as la
from elastic_warm import places as p
from elastic_warm.places import Phase

GRACE_S = 20.0
TIMEOUT_S = 6.0
LEAVES, SLOW, STAYS, HANGS, DIES, DIES_KEPT, LATE = "leaves", "slow", "stays", "hangs", "dies", "dies kept", "late"
WAYS = (LEAVES, LEAVES, LEAVES, SLOW, STAYS, HANGS, DIES, DIES_KEPT, LATE)


class Process:
    """One worker's process: how it leaves is drawn for each round."""

    def __init__(self, pid, rank, round_):
        self.pid, self.rank, self.round = pid, rank, round_
        self.alive = True
        self.state = p.WorkerState()
        self.timer = None
        self.deaf = False


class Node:
    """The agent's part: one stop after the other. It turns actions into events, as the group and the starter do."""

    def __init__(self, seed, count):
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.queue, self.serial, self.pids = [], itertools.count(), itertools.count(100)
        self.count = count
        self.round = 0
        self.ladder = la.LadderState()
        self.workers, self.kept = {}, {}
        self.looks = 0
        self.stopped = True
        self.places = set()

    # --- the clock

    def later(self, delay_s, call):
        entry = [self.now_s + delay_s, next(self.serial), call]
        heapq.heappush(self.queue, entry)
        return entry

    def run_until(self, condition, *, within_s):
        end_s = self.now_s + within_s
        while not condition():
            due_s = self.ladder.due_s
            at_s = self.queue[0][0] if self.queue else float("inf")
            next_s = min(at_s, float("inf") if due_s is None else due_s)
            assert next_s <= end_s, f"not within {within_s} s: {self.ladder}"
            self.now_s = max(self.now_s, next_s)
            if at_s <= next_s:
                call = heapq.heappop(self.queue)[2]
                if call is not None:
                    call()
            else:
                self.advance(la.Woke())

    # --- the group

    def advance(self, event):
        step = la.advance(self.ladder, event, now_s=self.now_s)
        self.ladder = step.state
        for action in step.actions:
            match action:
                case la.SignalLeader(pid=pid, signum=signum):
                    assert pid in self.workers, "a signal to a process that is no worker"
                    self.signalled(self.workers[pid], signum)
                case la.Look():
                    self.later(0.0, lambda: self.advance(la.Looked()))
                case la.Finished():
                    self.stopped = True

    def signalled(self, process, signum):
        assert process.state.phase is not Phase.KEPT, "signalled and kept"
        if signum == 9 or not process.deaf:
            self.later(self.random.choice([0.0, 0.01, 1.0]) if signum != 9 else 0.0, lambda: self.ends(process))

    def ends(self, process):
        if not process.alive:
            return
        process.alive = False
        self.give(process, p.Disconnected())
        if process.pid in self.workers:
            del self.workers[process.pid]
            self.advance(la.LeaderEnded(pid=process.pid))
        elif process.pid in self.kept:
            del self.kept[process.pid]

    # --- the starter

    def give(self, process, event):
        step = p.advance(process.state, event)
        process.state = step.state
        if not step.same_timer:
            if process.timer is not None:
                process.timer[2] = None
            process.timer = None
            if step.timer_s is not None:
                process.timer = self.later(step.timer_s, lambda: self.give(process, p.Late()))
        for action in step.actions:
            match action:
                case p.HasLeft():
                    self.left(process)
                case p.Stays() | p.Refused():
                    if process.pid in self.workers:
                        self.advance(la.LeadersStay(pids=frozenset({process.pid})))
                case p.Kill():
                    self.later(0.0, lambda: self.ends(process))
                case p.Send(message={"kind": "leave"}):
                    self.asked(process)

    def left(self, process):
        may = any(le.pid == process.pid and le.leave_by_s is not None for le in self.ladder.leaders)
        if not may or not process.alive:
            process.state = p.WorkerState(phase=Phase.ENDING, round=process.state.round)
            return
        self.kept[process.pid] = self.workers.pop(process.pid)
        self.advance(la.LeaderLeft(pid=process.pid))

    # --- a worker

    def report(self, process, kind, **more):
        if process.alive:
            self.give(process, p.Reported(kind=kind, round=process.round, **more))

    def begin(self, process):
        self.report(process, "entered")
        if self.random.random() < 0.9:
            self.report(process, "stepped")

    def asked(self, process):
        way = self.random.choice(WAYS)
        process.deaf = way in (HANGS, LATE) and self.random.random() < 0.5
        leave_s = {LEAVES: 0.01, SLOW: TIMEOUT_S - 0.1, LATE: self.random.choice([TIMEOUT_S, 12.0])}.get(way)
        if leave_s is not None:
            self.later(leave_s, lambda: self.report(process, "left"))
        elif way == STAYS:
            self.later(0.5, lambda: self.report(process, "stays", reason="a thread"))
        elif way == DIES:
            self.later(self.random.choice([0.0, 3.0]), lambda: self.ends(process))
        elif way == DIES_KEPT:
            self.later(0.01, lambda: self.report(process, "left"))
            self.later(self.random.choice([0.01, 0.02, 5.0]), lambda: self.ends(process))

    # --- rounds

    def start(self):
        assert self.stopped
        assert not self.workers, "two rounds at once"
        self.round += 1
        kept = {process.rank: process for process in self.kept.values()}
        for rank in range(self.count):
            process = kept.get(rank)
            if process is not None and process.state.phase is Phase.KEPT:
                del self.kept[process.pid]
                self.give(process, p.PlaceGiven(round=self.round, within_s=TIMEOUT_S))
                process.round = self.round
                assert (process.pid, self.round) not in self.places, "two places in one round"
                self.places.add((process.pid, self.round))
                takes = self.random.random() < 0.95
                if takes:
                    self.later(0.01, lambda process=process: (self.report(process, "taken"), self.begin(process)))
            else:
                process = Process(next(self.pids), rank, self.round)
                self.report(process, "hello", version=1)
                self.later(0.01, lambda process=process: self.begin(process))
            self.workers[process.pid] = process
            self.advance(la.LeaderStarted(pid=process.pid))
        for process in tuple(self.kept.values()):  # without a place
            self.ends(process)
        assert not self.kept

    def stop(self, *, may_leave=True, failures=1):
        for process in self.random.sample(sorted(self.workers.values(), key=lambda each: each.pid), failures):
            self.ends(process)
        self.stopped = False
        self.began_s = self.now_s
        self.advance(la.StopBegun(signum=15, grace_s=GRACE_S, may_leave=may_leave))
        if may_leave:
            for process in tuple(self.workers.values()):
                within_s = min(TIMEOUT_S, GRACE_S * la.LEAVE_SHARE)
                self.give(process, p.LeaveWanted(round=process.round, within_s=within_s, planned=not failures))
        trouble = self.random.random()
        if trouble < 0.1:
            self.later(self.random.uniform(0, 8), lambda: self.unless_stopped(la.KillOrdered()))
        elif trouble < 0.2:
            self.later(self.random.uniform(0, 8), lambda: self.unless_stopped(la.StopBegun(signum=15, grace_s=0.5)))
        elif trouble < 0.3:
            self.later(self.random.uniform(0, 8), lambda: self.unless_stopped(la.LeadersStay()))
        self.run_until(lambda: self.stopped, within_s=GRACE_S + 0.1)
        assert not self.workers, "the stop has ended, and a worker has not"
        for process in self.kept.values():
            assert process.alive or process.state.phase is Phase.ENDING

    def unless_stopped(self, event):
        if not self.stopped:
            self.advance(event)

    def run_on(self):
        """Let the round run; some of its workers may end by the limits of their places."""
        end_s = self.now_s + self.random.choice([0.005, 0.1, TIMEOUT_S + 1])
        self.later(end_s - self.now_s, lambda: None)
        self.run_until(lambda: self.now_s >= end_s, within_s=TIMEOUT_S + 2)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rounds_of_workers_that_do_anything(count):
    kept = 0
    for seed in range(150):
        node = Node(seed, count)
        for _ in range(8):
            node.start()
            node.run_on()
            alive = len(node.workers)
            failures = min(alive, node.random.choice([0, 1, 1, 2]))
            node.stop(failures=failures)
            kept += len(node.kept)
            if node.random.random() < 0.2:  # a delay before the next round
                node.later(3.0, lambda: None)
                end_s = node.now_s + 3.0
                node.run_until(lambda end_s=end_s, node=node: node.now_s >= end_s, within_s=4.0)
        node.start()
        node.run_on()
        node.stop(may_leave=False, failures=0)
        assert not node.kept
    assert kept > 50, "the schedules keep too few workers to say anything"


def test_all_workers_leave_at_once_where_nothing_is_wrong():
    node = Node(0, 8)
    node.random.choice = lambda options: LEAVES if LEAVES in options else options[0]
    node.random.random = lambda: 0.5
    node.start()
    pids = set(node.workers)
    node.run_on()
    node.later(0.02, lambda: None)
    node.run_until(lambda: node.now_s >= 0.02, within_s=1.0)
    node.stop(failures=0)
    assert set(node.kept) == pids
    assert node.now_s - node.began_s < 0.1
    node.start()
    assert set(node.workers) == pids
