"""The watch of stragglers: what it reads, sends, prints and reports, without workers."""

import threading

import pytest

from elastic_core.api import FailureClass, HookSettings, RunningWorker, WorkersStarted, encode_json
from elastic_core.api.feed import Answer, AnswersGathered, Concluded, NodesAsked
from elastic_plugin_kit import FakeRun, ManualClock, sample_round
from elastic_watch import beat_layout as layout
from elastic_watch.beat_file import BeatFiles
from elastic_watch.published import PublishedFields
from elastic_watch.recorder.collector import SnapshotCollector
from elastic_watch.stragglers.exchange import Conclusion, pack_conclusion, unpack, unpack_conclusion
from elastic_watch.stragglers.scores import Slow
from elastic_watch.stragglers.starting import STEPS, TOPIC, Stragglers
from elastic_watch.stragglers.straggler_watch import REPORT_AGAIN, StragglerWatch

INTERVAL_S = 30.0


class Node:
    """A watch of two workers without processes; a test sets the steps that they report."""

    def __init__(self, *, reports=False, node_rank=0, node_count=1):
        self.run = FakeRun(tuple(RunningWorker(local_rank=rank, global_rank=4 + rank, pid=1) for rank in (0, 1)))
        self.clock, self.files, self.steps = ManualClock(), BeatFiles(), {0: [], 1: []}
        self.run.offered[STEPS] = self.answer
        self.watch = StragglerWatch(
            self.run, files=self.files, reports=reports, interval_s=INTERVAL_S, clock=self.clock,
            collector=SnapshotCollector(self.run, self.files, closed=threading.Event()),
            fields=PublishedFields(self.run.publish),
        )  # fmt: skip
        self.watch._collector.take_later = lambda taken, **_: taken({})
        round_ = sample_round(
            local_world_size=2, base_rank=4, world_size=8, node_id="b", node_rank=node_rank, node_count=node_count
        )
        self.watch.begin(WorkersStarted(round=round_, pids=(1, 1)))

    def answer(self, _):
        return Answer(content=encode_json({"workers": self.steps}).decode())

    def window(self, *seconds):
        """Let the workers make steps of these times for one interval, and look."""
        begin_s = self.clock.monotonic_s()
        for rank, took_s in enumerate(seconds):
            own = self.steps[rank]
            count = int(INTERVAL_S / took_s)
            own += [(len(own) + n, int((begin_s + took_s * (n + 1)) * 1e9)) for n in range(count)]
        self.clock.advance(INTERVAL_S)
        self.run.pass_time(INTERVAL_S)


def test_a_straggler_is_noted_published_and_recorded_once():
    node = Node()
    for _ in range(5):
        node.window(0.5, 1.0)
    line = "rank 5 on b is slow: its own work takes 2 times the median of the others, for 1 min 30 s"
    assert node.run.notices == [line]
    assert node.run.fields == {"stragglers": 1, "rank 5 on b": "slow, 2 times the others for 2 min 30 s"}
    ((_, values),) = [event for event in node.run.events if event[0] == "straggler"]
    assert (values["state"], values["rank"], values["node"], values["score"]) == ("began", 5, "b", 0.5)
    assert values["summary"] == line
    measured = {values["name"]: values["value"] for name, values in node.run.events if name == "metric"}
    assert measured == {"elastic_stragglers": 1, 'elastic_straggler_score{rank="5",node="b"}': 0.5}
    for _ in range(2):
        node.window(0.5, 0.5)
    assert node.run.notices[1:] == ["rank 5 on b is no longer slow, after 3 min 30 s"]
    assert (node.run.fields, node.run.reports) == ({}, [])


def test_reports_for_the_policy_come_again_while_it_lasts():
    node = Node(reports=True)
    for _ in range(3 + REPORT_AGAIN):
        node.window(0.5, 1.0)
    reports = node.run.reports
    assert len(reports) == 2
    assert [each.failure_class for each in reports] == [FailureClass.STRAGGLER] * 2
    assert [worker.local_rank for worker in reports[0].workers] == [1]
    assert reports[0].summary == "slow: its own work takes 2 times the median of the others, for 1 min 30 s"
    assert len(node.run.notices) == 1


def test_too_few_steps_are_no_window():
    node = Node()
    for _ in range(9):
        node.window(10.0, 25.0)  # the slow rank has a step or two in each interval
    assert node.run.notices == []
    for _ in range(20):
        node.window(10.0, 25.0)
    assert len(node.run.notices) == 1


@pytest.mark.parametrize("node_rank", [0, 1])
def test_nodes_exchange_their_windows_and_the_first_one_asks(node_rank):
    node = Node(node_rank=node_rank, node_count=3)
    node.watch.on_nodes_asked(NodesAsked(serial=1, topic=TOPIC))
    assert node.run.answers == []  # it has no window yet
    for _ in range(4):
        node.window(0.5, 0.5)
    assert node.run.questions == [TOPIC] * (2 if node_rank == 0 else 0)
    node.watch.on_nodes_asked(NodesAsked(serial=2, topic=TOPIC))
    ((serial, data),) = node.run.answers
    assert (serial, [work.own_s for work in unpack("b", data).intervals.works]) == (2, [0.5, 0.5])
    node.watch.on_answers_gathered(AnswersGathered(serial=2, topic=TOPIC, answers={"b": data, "x": b"other"}))
    ((serial, data),) = node.run.conclusions
    assert (serial, unpack_conclusion(data)) == (2, Conclusion(nodes=1))
    node.clock.advance(4 * INTERVAL_S)
    node.watch.on_nodes_asked(NodesAsked(serial=3, topic=TOPIC))
    assert len(node.run.answers) == 1  # the window is too old


@pytest.mark.parametrize(("node_rank", "named"), [(0, ["5", "node b", "1"]), (2, ["5", "node b"])])
def test_each_node_prints_its_own_stragglers_and_the_first_one_all(node_rank, named):
    node = Node(reports=True, node_rank=node_rank, node_count=3)
    slow = (
        Slow(rank=5, node_id="b", own_s=2.0, others_s=1.0),
        Slow(node_id="b", own_s=2.0, others_s=1.1),
        Slow(rank=1, node_id="a", own_s=2.0, others_s=1.2),
    )
    for serial in range(3):
        node.watch.on_concluded(Concluded(serial=serial, topic=TOPIC, data=pack_conclusion(Conclusion(slow=slow))))
    for text, line in zip(named, node.run.notices, strict=True):
        assert text in line
    assert [[worker.local_rank for worker in each.workers] for each in node.run.reports] == [[1], []]
    node.watch.on_concluded(Concluded(serial=4, topic=TOPIC, data=b"other"))
    assert "can't be used" in node.run.notices[-1]


def test_the_end_of_a_round_forgets_its_stragglers():
    node = Node()
    for _ in range(3):
        node.window(0.5, 1.0)
    node.watch.end()
    assert node.run.fields == {}
    assert node.run.events[-1][1]["value"] == 1.0
    assert len(node.run.notices) == 1
    node.run.pass_time(10 * INTERVAL_S)
    assert len(node.run.notices) == 1


@pytest.fixture
def beginning():
    files, collectors = BeatFiles(), []

    def collector():
        collectors.append(SnapshotCollector(run, files, closed=threading.Event()))
        return collectors[-1]

    run = FakeRun((RunningWorker(local_rank=0, global_rank=0, pid=1),))
    settings = HookSettings(name="watch", options={"on_straggler": "note", "straggler_interval": INTERVAL_S})
    it = Stragglers(settings, files=files, collector=collector, fields=PublishedFields(run.publish))
    it.run = run
    files.renew(1)
    it.on_workers_started(WorkersStarted(round=sample_round(world_size=2), pids=(1,)))
    yield run, files, collectors
    files.close()


@pytest.mark.parametrize("how", ["beats", "calls", "collectives"])
def test_the_watch_is_built_when_a_worker_reports_something(beginning, how):
    run, files, collectors = beginning
    run.offered[STEPS] = lambda _: Answer(content=encode_json({"workers": {0: []}}).decode())
    for _ in range(3):
        run.pass_time(INTERVAL_S)
        assert collectors == []
    if how == "beats":
        files.get(0)._words[layout.STEP] = 1
        files.get(0)._words[layout.TIMES_AT + 1] = 7
    elif how == "collectives":
        files.get(0)._words[layout.SERVER] = 1
    else:
        run.offered[STEPS] = lambda _: Answer(content=encode_json({"workers": {0: [(1, 7)]}}).decode())
    run.pass_time(INTERVAL_S)
    assert len(collectors) == 1
