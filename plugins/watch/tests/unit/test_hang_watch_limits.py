"""The watch with a learnt limit, and with long operations that stacks show, on a clock that the test moves."""

import json
import os
import threading

import pytest

from elastic_core.api import Round, RunningWorker, WorkersStarted, WorkersStopping
from elastic_core.api.feed import Answer, Concluded, NodesAsked
from elastic_plugin_kit.fake_run import FakeRun
from elastic_watch.beat_file import BeatFiles
from elastic_watch.hangs.asking import concluded, encoded_conclusion
from elastic_watch.hangs.auto_limit import AutoLimit
from elastic_watch.hangs.hang_watch import SUSPENDED, HangWatch
from elastic_watch.hangs.learning import Rule
from elastic_watch.hangs.long_operations import COMPILE_S, OFFER, SAVE_S
from elastic_watch.options import HANG_TOPIC
from elastic_watch.stacks import WorkerStack

ROUND = Round(
    index=0, token=4, nonce="n", node_rank=0, node_count=1, local_world_size=2, base_rank=0, world_size=2,
    role="default", role_base_rank=0, role_world_size=2, master_addr="a", master_port=1,
)  # fmt: skip
COMPILING = WorkerStack(text="x", frames=(("/env/torch/_dynamo/convert_frame.py", 1, "__call__", ""),), user_frame=-1)


class NoSnapshots:
    """Workers without torch.distributed."""

    def __init__(self, run):
        self.run = run

    def take_later(self, on_taken, *, ranks, dump=None):
        self.run.call_later(0.0, lambda: on_taken({}))


class Case:
    """A watch over two workers that are this process, with elastic-train's offer."""

    def __init__(self, folder, hang_s=0.0, *, auto=False):
        self.run = FakeRun()
        self.run.directory = str(folder)
        self.run.running = tuple(RunningWorker(local_rank=rank, global_rank=rank, pid=os.getpid()) for rank in (0, 1))
        self.run.offered[OFFER] = self.answer
        self.workers = {}
        self.stacks = {}
        learning = AutoLimit(self.run.notices.append, Rule()) if auto else None
        files = BeatFiles()
        self.watch = HangWatch(
            self.run, hang_s, 0.0, files=files, collector=self, snapshots=NoSnapshots(self.run), clock=self,
            auto=learning,
        )  # fmt: skip
        self.begins()

    def begins(self):
        self.watch.on_workers_started(WorkersStarted(round=ROUND, pids=(os.getpid(), os.getpid())))

    def monotonic_s(self):
        return self.run.now_s

    def take_later(self, on_taken, *, ranks=None):
        self.run.call_later(0.0, lambda: on_taken(self.stacks))

    def answer(self, parameters):
        return Answer(content=json.dumps({"workers": self.workers}), content_type="application/json")

    def reports(self, rank, step, marks=()):
        """Let a worker call `should_stop` now."""
        now_s = self.run.now_s
        self.workers[rank] = {"step": step, "step_s": now_s, "marks": marks, "pid": os.getpid()}

    def passes(self, seconds):
        """Time passes. This node asks itself, and concludes from its own response."""
        end_s = self.run.now_s + seconds
        while self.run.now_s < end_s:
            self.run.pass_time(min(0.5, end_s - self.run.now_s))
            while self.run.questions:
                self.watch.on_nodes_asked(NodesAsked(serial=1, topic=self.run.questions.pop()))
                self.run.pass_time(0.0)
                for thread in [each for each in threading.enumerate() if each.name == "elastic-calls"]:
                    thread.join(10)
                self.run.pass_time(0.0)
                _, answer = self.run.answers.pop()
                data = encoded_conclusion(concluded({ROUND.node_id: answer}))
                self.watch.on_concluded(Concluded(serial=1, topic=HANG_TOPIC, data=data))

    def steps(self, count, time_s, begin=0):
        for step in range(begin, begin + count):
            for rank in (0, 1):
                self.reports(rank, step)
            self.passes(time_s)


@pytest.fixture
def case(tmp_path):
    made = []

    def make(*given, **named):
        made.append(Case(tmp_path, *given, **named))
        return made[-1]

    yield make
    for each in made:
        each.watch.on_workers_stopping(WorkersStopping(round_index=0, reason="enough", grace_s=1.0))


def test_a_hang_is_reported_by_the_learnt_limit_which_then_doubles(case):
    it = case(auto=True)
    it.passes(1)
    it.steps(22, 70.0)
    it.reports(0, 22)
    it.passes(275)
    assert it.run.reports == []
    it.passes(20)
    (report,) = it.run.reports
    assert "rank 1 has not reached step 22 (at 21 for " in report.summary
    assert it.run.notices[1] == "--hang-timeout auto: the limit is 350 s; the longest step took at most 70 s"
    assert it.run.notices[-1] == (
        "--hang-timeout auto: the limit was 350 s; it is 700 s now. Try: a section for a longer part without steps"
    )
    it.begins()
    it.steps(15, 70.0)
    it.passes(600)
    assert len(it.run.reports) == 1
    it.passes(100)
    assert len(it.run.reports) == 2


def test_a_compilation_that_the_stack_shows_is_no_hang_within_its_limit(case):
    it = case(10.0)
    it.passes(1)
    it.steps(2, 1.0)
    it.reports(0, 2)
    it.stacks = {0: COMPILING}
    it.passes(COMPILE_S)
    assert it.run.reports == []
    assert it.run.notices[0] == "the stack of rank 0 shows torch.compile: no hang for up to 1800 s"
    it.passes(10)
    assert len(it.run.reports) == 1


def test_a_compilation_that_ends_leaves_the_usual_limit(case):
    it = case(10.0)
    it.passes(1)
    it.steps(2, 1.0)
    it.stacks = {0: COMPILING}
    it.passes(60)
    it.stacks = {}
    it.steps(1, 9.0, begin=2)
    assert it.run.reports == []
    it.passes(4)
    assert len(it.run.reports) == 1


def test_a_save_that_hangs_is_found_at_its_own_limit(case):
    it = case(10.0)
    it.passes(1)
    it.steps(2, 1.0)
    it.reports(0, 2, marks=[["save", it.run.now_s, None]])
    it.reports(1, 2)
    it.passes(SAVE_S - 2)
    assert it.run.reports == []
    it.passes(10)
    assert "section 'save' is over its limit" in it.run.reports[0].summary


def test_saves_of_a_run_raise_the_limit_of_the_next_one(case):
    it = case(10.0)
    it.passes(1)
    it.reports(0, 1, marks=[["save", it.run.now_s - 1200, it.run.now_s]])
    it.passes(1)
    it.reports(0, 2, marks=[["save", it.run.now_s, None]])
    it.passes(3598)
    assert it.run.reports == []
    it.passes(10)
    assert len(it.run.reports) == 1


def test_a_line_reports_a_suspend(case, monkeypatch):
    it = case(10.0)
    it.passes(1)
    it.steps(2, 1.0)
    monkeypatch.setattr("elastic_watch.vitals.state_of", lambda pid: "T")
    it.passes(100)
    assert (it.run.notices, it.run.reports) == ([SUSPENDED], [])
