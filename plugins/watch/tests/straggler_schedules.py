"""Simulated trainings: the times at which ranks report steps and enter collectives."""

from random import Random

from elastic_watch.stragglers.lasting import Change, after_window
from elastic_watch.stragglers.measures import since
from elastic_watch.stragglers.window import Past, Window, is_whole, judge


class Training:
    """One training of some ranks on one host, step by step. Times are seconds.

    `work(rank, step)` returns the own work of a step. `sync`: `none`, or a collective in each step. `report`: where the
    rank reports the step, `before` the collective, or `after` it, at the begin of the next step's work. With `cores`,
    ranks share them fairly: by rounds of 3 ms in an order that changes.
    """

    def __init__(self, count, work, *, sync="collective", report="after", cores=None, seed=0, offsets=None):
        self.count, self.work, self.sync, self.report = count, work, sync, report
        self.cores, self.random = cores, Random(seed)
        self.now = list(offsets or [0.0] * count)
        self.steps = {rank: [] for rank in range(count)}
        self.arrivals = {rank: [] for rank in range(count)}
        self.waited = [0.0] * count
        self.step = 0

    def run(self, count):
        for _ in range(count):
            if self.sync == "none" and self.cores is None:
                self._alone(count)
                return
            if self.cores is None:
                self._together([self.work(rank, self.step) for rank in range(self.count)])
            elif self.sync == "none":
                self._shared_alone(count)
                return
            else:
                begin = max(self.now)
                ends = self._shared([self.work(rank, self.step) for rank in range(self.count)])
                self._together([begin + end - now for end, now in zip(ends, self.now, strict=True)])

    def _report(self, rank, step, at):
        self.steps[rank].append((step, int(at * 1e9)))

    def _alone(self, count):
        """Let each rank make `count` steps or more without waiting for the others."""
        until = 0.0
        for rank in sorted(range(self.count), key=lambda rank: -self.work(rank, 10)):
            begun = len(self.steps[rank])
            while len(self.steps[rank]) < begun + count or self.now[rank] < until:
                self._report(rank, len(self.steps[rank]), self.now[rank])
                self.now[rank] += self.work(rank, len(self.steps[rank]))
            until = max(until, self.now[rank])

    def _together(self, works):
        for rank, work in enumerate(works):
            if self.report == "after":
                self._report(rank, self.step, self.now[rank])
            self.now[rank] += work
            if self.report == "before":
                self._report(rank, self.step, self.now[rank])
            self.arrivals[rank].append(("0", self.step + 1, int((self.now[rank] + 2e-5) * 1e9)))
        released = max(self.now) + 0.0005
        self.now = [released + self.random.random() * 2e-4 for _ in self.now]
        self.step += 1

    def _shared(self, demands, quantum=0.003):
        """Return when each rank has had its processor time, if all begin at 0."""
        left, ends, at = dict(enumerate(demands)), {}, 0.0
        while left:
            order = list(left)
            self.random.shuffle(order)
            for begin in range(0, len(order), self.cores):
                for rank in order[begin : begin + self.cores]:
                    took = min(quantum, left[rank])
                    left[rank] -= took
                    if left[rank] <= 1e-9:
                        ends[rank] = at + took
                        del left[rank]
                at += quantum
        for rank in range(self.count):
            self.waited[rank] += ends[rank] - demands[rank]
        return [ends[rank] for rank in range(self.count)]

    def _shared_alone(self, count, quantum=0.003):
        """Let each rank make `count` steps or more without waiting for the others, on shared processors."""
        if not hasattr(self, "_left"):
            self._left = {rank: self.work(rank, 0) for rank in range(self.count)}
            self._of = dict.fromkeys(range(self.count), 0)
            self._at = 0.0
            for rank in range(self.count):
                self._report(rank, 0, self.random.random() * 0.05)
        goal = min(self._of.values()) + count
        while min(self._of.values()) < goal:
            order = list(range(self.count))
            self.random.shuffle(order)
            for begin in range(0, self.count, self.cores):
                for rank in order[begin : begin + self.cores]:
                    self._left[rank] -= quantum
                    while self._left[rank] <= 0:
                        self._of[rank] += 1
                        self._report(rank, self._of[rank], self._at + quantum + self._left[rank])
                        self._left[rank] += self.work(rank, self._of[rank])
                self._at += quantum
            for rank in range(self.count):
                self.waited[rank] += (self.count / self.cores - 1) * quantum


def follow(training, *, windows, steps, recorder=True, waits=True):
    """Judge a training window by window. Return the stragglers that began, per window, and the last ones."""
    past, followed, began, after, change = Past(), {}, [], 0, Change(followed={})
    for _ in range(windows):
        waited, at = list(training.waited), _end(training)
        training.run(steps)
        window = Window(
            node_id="a",
            steps={rank: since(own[-128:], after) for rank, own in training.steps.items()},
            arrivals={
                rank: [each for each in own if each[2] > after][-256:]
                for rank, own in (training.arrivals if recorder else {}).items()
            },
            waits={
                rank: (training.waited[rank] - waited[rank]) / max(1e-9, _end(training) - at)
                for rank in (range(training.count) if waits and training.cores else ())
            },
        )
        if not is_whole(window.steps, window.arrivals):
            began.append([])
            continue
        judged = judge(window, past)
        after = min(own[-1][1] for own in training.steps.values())
        change = after_window(followed, judged.slow, begun_s=0.0)
        followed = change.followed
        began.append([each.slow.rank for each in change.began])
    return began, change


def _end(training):
    return max((own[-1][1] for own in training.steps.values() if own), default=0) / 1e9
