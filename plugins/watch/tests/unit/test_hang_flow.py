"""The flow of a hang on one node: the question, the evidence, the conclusion, and what follows, without processes."""

import json
import os
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from elastic_core.api import RunningWorker, WorkersStarted, WorkersStopping
from elastic_core.api.feed import Concluded, NodesAsked
from elastic_plugin_kit import FakeRun, sample_round
from elastic_watch import beat_layout as layout
from elastic_watch.beat_file import BeatFiles
from elastic_watch.collectives.evidence import Attribution, Cause, GroupState, Operation, Snapshot
from elastic_watch.collectives.packing import unpack
from elastic_watch.hangs.asking import Conclusion, concluded, decoded_response, encoded_conclusion
from elastic_watch.hangs.hang_watch import MAX_DUMPS, HangWatch
from elastic_watch.hangs.steps import RankStep, RunSteps
from elastic_watch.options import HANG_TOPIC
from elastic_watch.stacks import WorkerStack

LIMIT_S = 100.0
HALF_S = LIMIT_S / 2
LOOK_S = LIMIT_S / 10
REDUCE = ("/v/site-packages/torch/distributed/distributed_c10d.py", 2806, "all_reduce", "")
ENGINE = ("/v/site-packages/torch/autograd/graph.py", 869, "_engine_run_backward", "")
STEP, LOAD = ("/u/train.py", 40, "step", ""), ("/u/data.py", 5, "load", "")


class Time:
    """The clock of a fake run."""

    def __init__(self, run):
        self.run = run

    def monotonic_s(self):
        return 1000.0 + self.run.now_s


class Workers:
    """Stacks and snapshots of workers, as a test sets them."""

    def __init__(self, run):
        self.run = run
        self.stacks, self.snapshots, self.asked = {}, [], []

    def take_later(self, on_taken, *, ranks, dump=None):
        self.asked.append(dump)
        if dump is not None:
            dump.mkdir(parents=True, exist_ok=True)
            (dump / "rank_4").touch()
        found = self.snapshots[min(len(self.asked), len(self.snapshots)) - 1] if self.snapshots else {}
        self.run.call_later(0.0, lambda: on_taken(found))


class Stacks:
    def __init__(self, workers):
        self.workers = workers
        self.delay_s = 0.0
        self.count = 0

    def take_later(self, on_taken, *, ranks=None):
        self.count += 1
        self.workers.run.call_later(self.delay_s, lambda: on_taken(dict(self.workers.stacks)))


class Node:
    """A node with workers of the ranks 4 and 5, or more, and heartbeats."""

    def __init__(self, folder, nodes=2, limit_s=LIMIT_S, local_world_size=2, **given):
        self.run = FakeRun()
        self.run.directory = str(folder)
        self.folder = folder / "hang" / "round_3_1"
        self.files = BeatFiles()
        self.files.renew(local_world_size)
        self.workers = Workers(self.run)
        self.stacks = Stacks(self.workers)
        self.workers.stacks = {0: stack(STEP, REDUCE), 1: stack(STEP, REDUCE)}
        self.watch = HangWatch(
            self.run, limit_s, 0.0,
            files=self.files, collector=self.stacks, snapshots=self.workers, clock=Time(self.run), **given,
        )  # fmt: skip
        round_ = sample_round(local_world_size=local_world_size, index=3)
        self.round = replace(round_, node_count=nodes, node_id="n1", base_rank=4, world_size=local_world_size * nodes)
        self.watch.on_workers_started(WorkersStarted(round=self.round, pids=(os.getpid(),) * local_world_size))
        self.beat(*range(local_world_size), step=7)
        self.passes(limit_s / 10)

    def beat(self, *ranks, step=7):
        for rank in ranks:
            words = self.files.get(rank)._words
            words[layout.OWNER], words[layout.STEP] = os.getpid(), step
            words[layout.BEAT_NS] = int((1000.0 + self.run.now_s) * 1e9)

    def passes(self, seconds):
        """Time passes; the calls of other threads are made."""
        end_s = self.run.now_s + seconds
        while self.run.now_s < end_s:
            self.settles()
            self.run.pass_time(min(0.5, end_s - self.run.now_s))
        self.settles()

    def settles(self):
        """What was collected arrives: sources are read by a thread."""
        self.run.pass_time(0.0)
        for thread in [each for each in threading.enumerate() if each.name == "elastic-calls"]:
            thread.join(10)
        self.run.pass_time(0.0)

    def asks(self, serial=1):
        self.watch.on_nodes_asked(NodesAsked(serial=serial, topic=HANG_TOPIC))
        self.settles()

    def concludes(
        self, attribution=None, *, serial=1, token=None, reporter="", disputed="", places=None, free=(), **steps
    ):
        conclusion = Conclusion(
            token=self.round.token if token is None else token,
            attribution=attribution or Attribution(cause=Cause.UNKNOWN, evidence=("stacks",)),
            steps=RunSteps(**{"node_count": 2} | steps),
            reporter=reporter,
            disputed=disputed,
            places=places or {},
            free=free,
        )
        self.watch.on_concluded(Concluded(serial=serial, topic=HANG_TOPIC, data=encoded_conclusion(conclusion)))
        self.settles()

    def stalls(self):
        """Both ranks are silent until the node asks at half of the limit."""
        while not self.run.questions:
            self.passes(1.0)

    def hangs(self):
        """They are silent until it asks again at the limit."""
        count = len(self.run.questions)
        while len(self.run.questions) == count:
            self.passes(1.0)

    def events(self, name):
        return [values for event, values in self.run.events if event == name]

    def metrics(self):
        return {each["name"]: each["value"] for each in self.events("metric")}

    def close(self):
        self.watch.on_workers_stopping(WorkersStopping(round_index=3, reason="enough", grace_s=1.0))
        self.files.close()


def stack(*frames):
    user = [index for index, (file, *_) in enumerate(frames) if file.startswith("/u/")]
    return WorkerStack(text="stack", source="faulthandler", frames=frames, user_frame=user[-1] if user else -1)


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setattr("elastic_watch.hangs.collecting.source_line", lambda file, line: "time.sleep(60)")
    made = []

    def make(**given):
        made.append(Node(tmp_path, **given))
        return made[-1]

    yield make
    for each in made:
        each.close()


ELSEWHERE = Attribution(
    cause=Cause.MISSING, culprits=(9,), nodes=("n2",), group="dp", operation=Operation(seq=12, name="all_reduce"),
    waiting=(4, 5, 8), waiting_count=3, evidence=("recorder", "stacks"),
)  # fmt: skip
HERE = replace(ELSEWHERE, culprits=(5,), nodes=("n1",), waiting=(4, 8, 9))


def test_rank_of_another_node_is_named_at_half_of_the_limit_with_its_place(start):
    node = start()
    node.stalls()
    assert (node.run.questions, node.run.notices) == ([HANG_TOPIC], [])
    node.asks()
    node.concludes(ELSEWHERE, reporter="n2", places={9: "data.py:5"})
    told = "rank 9 on n2 has not entered all_reduce #12 of group dp; 3 ranks wait for it; it is in data.py:5; stacks: "
    assert node.run.notices == [f"{told}{node.folder}"]
    assert node.run.fields == {
        "hang_state": "suspected", "hang_cause": "missing", "hang_ranks": "9", "hang_nodes": "n2", "hang_group": "dp",
        "hang_operation": "all_reduce #12", "hang_waiting": 3,
    }  # fmt: skip
    (event,) = node.events("hang")
    assert (event["state"], event["ranks"], event["evidence"]) == ("suspected", [9], ["recorder", "stacks"])
    assert node.metrics() == {'elastic_hang_suspect{rank="9"}': 1}
    kept = json.loads((node.folder / "conclusion.json").read_text())
    assert (kept["attribution"]["culprits"], kept["places"]) == ([9], {"9": "data.py:5"})
    assert sorted(os.listdir(node.folder)) == ["conclusion.json", "rank_4.txt", "rank_5.txt"]


def test_node_of_the_culprit_reports_it_at_the_limit_by_the_evidence_of_that_moment(start):
    node = start()
    node.workers.stacks[1] = stack(LOAD)
    node.stalls()
    node.asks()
    node.concludes(ELSEWHERE, reporter="n2")
    node.hangs()
    assert node.run.reports == []
    node.asks(2)
    node.concludes(HERE, serial=2, reporter="n1")
    (report,) = node.run.reports
    assert report.summary.startswith(
        "rank 5 on n1 has not entered all_reduce #12 of group dp; 3 ranks wait for it; it is"
    )
    assert "in data.py:5, at step 7, silent for 1" in report.summary
    assert [fault.local_rank for fault in report.workers] == [1]
    assert report.workers[0].error.frames == (LOAD,)
    hang = report.fields["hang"]
    assert [(each["global_rank"], each["blamed"]) for each in hang["ranks"]] == [(5, True), (4, False)]
    assert hang["attribution"]["operation"] == {"seq": 12, "name": "all_reduce"}
    assert (hang["evidence"], hang["stacks"]) == (["recorder", "stacks"], str(node.folder))
    assert node.metrics() == {
        'elastic_hang_suspect{rank="9"}': 0, 'elastic_hang_suspect{rank="5"}': 1,
        'elastic_hangs_total{cause="missing"}': 1,
    }  # fmt: skip
    assert node.run.fields["hang_state"] == "hung"


def test_other_nodes_leave_the_report_to_it_for_another_limit(start):
    node = start()
    node.stalls()
    node.asks()
    node.concludes(ELSEWHERE, reporter="n2")
    node.hangs()
    node.asks(2)
    node.concludes(ELSEWHERE, serial=2, reporter="n2")
    assert node.run.reports == []
    assert 'elastic_hangs_total{cause="missing"}' not in node.metrics()
    node.hangs()
    node.asks(3)
    node.concludes(ELSEWHERE, serial=3, reporter="n2")
    (report,) = node.run.reports
    assert report.summary.startswith("rank 9 on n2 has not entered")
    assert [each["blamed"] for each in report.fields["hang"]["ranks"]] == [False, False]
    assert sorted(fault.local_rank for fault in report.workers) == [0, 1]


@pytest.mark.parametrize(("free", "count"), [(("n2",), 0), (("n1", "n2"), 0), (("n1",), 1), ((), 1)])
def test_node_whose_ranks_may_all_wait_leaves_the_report_to_one_with_a_rank_that_does_not(start, free, count):
    node = start()
    node.workers.stacks = {0: stack(STEP, ENGINE), 1: stack(STEP, ENGINE)}
    node.stalls()
    for serial in (1, 2):
        node.asks(serial)
        node.concludes(serial=serial, free=free)
        if serial == 1:
            node.hangs()
    assert len(node.run.reports) == count
    node.hangs()
    node.asks(3)
    node.concludes(serial=3, free=free)
    assert "; waiting for other ranks, or computing gradients" in node.run.reports[-1].summary
    assert {each["ranks"] == [] for each in node.events("hang")} == {True}


@pytest.mark.parametrize("response", [False, True], ids=["no conclusion", "conclusion without the other node"])
def test_node_whose_ranks_may_all_wait_leaves_the_report_to_one_that_has_not_responded(start, response):
    node = start()
    node.workers.stacks = {0: stack(STEP, ENGINE), 1: stack(STEP, ENGINE)}
    node.stalls()

    def responds(serial):
        node.asks(serial)
        if response:
            node.concludes(serial=serial, node_count=1)
        node.passes(10.0)

    responds(1)
    node.hangs()
    responds(2)
    assert (len(node.run.notices), node.run.reports) == (1, [])
    node.hangs()
    responds(3)
    (report,) = node.run.reports
    assert "; waiting for other ranks, or computing gradients" in report.summary
    assert [each["blamed"] for each in report.fields["hang"]["ranks"]] == [False, False]


def test_ranks_ahead_are_named_by_their_node_and_not_those_behind_in_a_backward_on_another(start):
    node = start()
    node.workers.stacks = {0: stack(LOAD), 1: stack(LOAD)}
    node.stalls()
    behind = tuple(RankStep(global_rank=rank, step=6, node_id="n2", may_wait=True) for rank in (8, 9))
    for serial in (1, 2):
        node.asks(serial)
        node.concludes(serial=serial, max_step=7, min_step=6, behind=behind, free=("n1",))
        if serial == 1:
            node.hangs()
    (report,) = node.run.reports
    assert report.summary.startswith("ranks 4, 5: no heartbeat for 1")
    assert "waiting" not in report.summary
    assert {tuple(each["ranks"]) for each in node.events("hang")} == {(4, 5)}


def test_rank_in_its_own_code_is_named_later_while_the_place_of_ranks_behind_is_not_known(start):
    node = start()
    node.workers.stacks[1] = stack(LOAD)
    node.stalls()
    behind = tuple(RankStep(global_rank=rank, step=6, node_id="n2", may_wait=True) for rank in (8, 9))
    for serial in (1, 2, 3):
        node.asks(serial)
        node.concludes(serial=serial, max_step=7, min_step=6, behind=behind, free=("n1", "n2"))
        assert (len(node.run.notices), len(node.run.reports)) == (1, serial // 3)
        if serial < 3:
            node.hangs()
    assert node.run.reports[0].summary.startswith("rank 5: no heartbeat for 2")
    assert {tuple(each["ranks"]) for each in node.events("hang")} == {(5,)}


def test_rank_of_another_node_is_not_named_by_the_step_that_it_had_at_half_of_the_limit(start):
    node = start()
    node.stalls()
    node.asks()
    node.concludes(max_step=7, min_step=6, behind=(RankStep(global_rank=9, step=6, node_id="n2"),))
    assert "; waiting for rank 9 on n2: step 7 not reached (at 6)" in node.run.notices[0]
    for _ in range(2):  # no node responds any more
        node.hangs()
        node.passes(10.0)
    (report,) = node.run.reports
    assert report.summary.endswith("; waiting for other ranks")
    assert [event["ranks"] for event in node.events("hang")] == [[9], [], []]


def test_response_says_which_ranks_may_wait_in_a_backward(start):
    node = start()
    node.workers.stacks = {0: stack(STEP, ENGINE), 1: stack(STEP, ENGINE, LOAD)}
    node.beat(0, step=6)
    node.asks()
    steps = decoded_response(node.run.answers[0][1]).steps
    assert (steps.may_wait, steps.behind) == ((4,), (RankStep(global_rank=4, step=6, may_wait=True),))


def test_node_with_a_rank_in_its_own_hook_of_a_backward_has_one_that_may_wait_nowhere(start):
    node = start()
    node.workers.stacks = {0: stack(STEP, ENGINE), 1: stack(STEP, ENGINE)}
    node.asks()
    node.workers.stacks[1] = stack(STEP, ENGINE, LOAD)
    node.asks(2)
    found = [concluded({"n1": data}) for _, data in node.run.answers]
    assert [(each.free, each.in_backward) for each in found] == [((), 2), (("n1",), 1)]


def test_hang_that_is_only_noted_is_printed_once_and_is_no_failure(start):
    node = start(nodes=1, fails=False)
    node.workers.stacks[1] = stack(LOAD)
    node.stalls()
    for serial in (1, 2, 3):
        node.asks(serial)
        node.concludes(HERE, serial=serial, reporter="n1")
        if serial < 3:
            node.hangs()
    assert node.run.reports == []
    assert len(node.run.notices) == 2
    assert node.run.notices[1].endswith("; not a failure, as --on-hang is note")
    assert node.metrics()['elastic_hangs_total{cause="missing"}'] == 1
    assert [event["state"] for event in node.events("hang")] == ["suspected", "hung", "hung"]


@pytest.mark.parametrize("response", [False, True], ids=["no conclusion", "conclusion without the other node"])
def test_noted_hang_is_printed_at_the_second_limit_if_another_node_does_not_respond(start, response):
    node = start(fails=False)
    node.workers.stacks = {0: stack(STEP, ENGINE), 1: stack(STEP, ENGINE)}
    node.stalls()
    for serial in (1, 2, 3, 4):
        node.asks(serial)
        if response:
            node.concludes(serial=serial, node_count=1)
        node.passes(10.0)
        assert len(node.run.notices) == 1 + (serial >= 3)
        if serial < 4:
            node.hangs()
    assert node.run.notices[1].endswith("; not a failure, as --on-hang is note")


def test_noted_hang_is_counted_by_the_reporting_node_alone(start):
    node = start(fails=False)
    node.stalls()
    for serial in (1, 2, 3):
        node.asks(serial)
        node.concludes(ELSEWHERE, serial=serial, reporter="n2")
        if serial < 3:
            node.hangs()
    assert len(node.run.notices) == 1
    assert 'elastic_hangs_total{cause="missing"}' not in node.metrics()


def test_status_is_cleared_when_the_ranks_go_on(start):
    node = start()
    node.stalls()
    node.asks()
    node.concludes(ELSEWHERE, reporter="n2")
    node.beat(0, 1, step=8)
    node.passes(LOOK_S)
    assert node.run.notices[-1] == "all ranks make progress again"
    assert node.run.fields == {}
    assert node.metrics() == {'elastic_hang_suspect{rank="9"}': 0}
    assert node.events("hang")[-1] == {"state": "over"}


def test_traceback_of_a_failed_worker_is_no_progress(start, tmp_path):
    node = start()
    error = tmp_path / "error"
    node.run.running = (RunningWorker(local_rank=0, global_rank=4, pid=os.getpid(), error_file=str(error)),)
    node.stalls()
    node.asks()
    node.concludes(ELSEWHERE, reporter="n2")
    error.touch()
    node.beat(0, 1, step=8)
    node.passes(LOOK_S)
    assert len(node.run.notices) == 1
    assert node.events("hang")[-1] == {"state": "over"}


def test_ranks_that_wait_for_others_are_no_suspects(start):
    node = start()
    node.stalls()
    node.passes(10.0)  # no node responds, and there is no conclusion
    (line,) = node.run.notices
    assert "; waiting for other ranks" in line
    (event,) = node.events("hang")
    assert (event["cause"], event["ranks"]) == ("unknown", [])
    assert node.metrics() == {}


def test_status_stays_until_other_workers_start_and_the_metric_until_these_stop(start):
    node = start()
    node.stalls()
    node.asks()
    node.concludes(ELSEWHERE, reporter="n2")
    node.watch.on_workers_stopping(WorkersStopping(round_index=3, reason="enough", grace_s=1.0))
    assert (node.run.fields["hang_ranks"], node.metrics()) == ("9", {'elastic_hang_suspect{rank="9"}': 0})
    node.watch.on_workers_started(WorkersStarted(round=node.round, pids=(os.getpid(), os.getpid())))
    assert node.run.fields == {}


def test_conclusion_of_an_earlier_round_or_in_another_format_is_not_used(start):
    node = start()
    node.stalls()
    node.asks()
    node.concludes(ELSEWHERE, reporter="n2", token=0)
    node.watch.on_concluded(Concluded(serial=1, topic=HANG_TOPIC, data=b"?"))
    node.watch.on_concluded(Concluded(serial=1, topic="other", data=b"?"))
    assert node.run.notices == []
    node.passes(10.0)
    assert node.run.notices[0].startswith("ranks 4, 5: no heartbeat for")
    assert "waiting for other ranks" in node.run.notices[0]


def test_conclusion_of_another_nodes_question_just_now_is_used_without_a_new_one(start):
    node = start()
    node.passes(HALF_S - LOOK_S - 6.0)
    node.asks()
    node.concludes(ELSEWHERE, reporter="n2")
    assert (node.run.notices, node.run.fields, len(node.run.answers)) == ([], {}, 1)
    assert (node.folder / "rank_4.txt").exists()
    node.passes(LOOK_S)
    assert node.run.questions == []
    assert node.run.notices[0].startswith("rank 9 on n2 has not entered")


def test_ranks_that_contradict_each_other_in_steps_and_collectives_are_not_named(start):
    node = start()
    node.stalls()
    node.asks()
    behind = (RankStep(global_rank=9, step=6, node_id="n2"),)
    node.concludes(disputed="rank 9 is behind, but others wait for rank 5", max_step=7, min_step=6, behind=behind)
    assert node.run.notices[0].startswith(
        "ranks 4, 5: no heartbeat for 50 s (at step 7, in train.py:40); waiting for other ranks; rank 9 is behind"
    )
    assert (node.run.fields["hang_cause"], node.run.fields.get("hang_ranks")) == ("unknown", None)


# --- evidence


def snapshot(enqueued, completed=None, *, recorder=True):
    group = GroupState(
        group="0", description="dp", members=(4, 5), enqueued=enqueued,
        completed=enqueued - 1 if completed is None else completed,
        last=(Operation(seq=enqueued, name="all_reduce"),),
    )  # fmt: skip
    return Snapshot(taken_ns=1, torch="2.13", recorder=recorder, groups=(group,))


def evidence(node, at=-1):
    return {rank.global_rank: rank for rank in unpack(decoded_response(node.run.answers[at][1]).evidence).ranks}


def test_two_snapshots_are_taken_a_second_apart_and_the_recorder_is_kept_with_the_second(start):
    node = start()
    node.workers.snapshots = [{0: snapshot(12), 1: snapshot(11, 11)}]
    node.stalls()
    node.asks()
    assert (node.workers.asked, node.run.answers) == ([None], [])
    node.passes(1.0)
    assert node.workers.asked == [None, node.folder / "recorder"]
    known = evidence(node)
    assert [(each.stable, each.recorder, each.call) for each in known.values()] == [(True, True, "all_reduce")] * 2
    node.concludes(HERE, reporter="n1")
    node.hangs()
    node.asks(2)
    node.passes(2.0)
    node.concludes(HERE, serial=2, reporter="n1")
    assert node.run.reports[0].fields["hang"]["recorder"] == str(node.folder / "recorder")


def test_rank_that_enters_a_collective_between_two_snapshots_makes_progress(start):
    node = start(nodes=1)
    node.workers.snapshots = [{0: snapshot(12), 1: snapshot(12)}, {0: snapshot(13), 1: snapshot(13)}]
    node.stalls()
    node.asks()
    node.passes(1.0)
    assert [each.stable for each in evidence(node).values()] == [False, False]
    node.concludes()
    assert node.run.notices == []
    node.passes(HALF_S - 2 * LOOK_S)
    assert (node.run.notices, node.run.questions) == ([], [HANG_TOPIC])


def test_rank_without_a_second_snapshot_is_judged_by_its_stack(start):
    node = start()
    node.workers.stacks = {0: stack(STEP, REDUCE)}
    node.workers.snapshots = [{0: snapshot(12), 1: snapshot(12)}, {1: snapshot(12)}]
    node.stalls()
    node.asks()
    node.passes(1.0)
    first, second = evidence(node).values()
    assert (first.status, first.recorder, first.groups, first.call) == ("answered", False, (), "all_reduce")
    assert (second.status, second.recorder, second.stack) == ("answered", True, False)


@pytest.mark.parametrize(("responds", "named"), [(True, "rank 5"), (False, "ranks 4, 5")])
def test_rank_without_a_stack_is_a_suspect_beside_one_in_its_own_code_unless_it_has_responded(start, responds, named):
    node = start(local_world_size=4)
    node.workers.stacks = {1: stack(LOAD), 2: stack(STEP, REDUCE), 3: stack(STEP, REDUCE)}
    node.workers.snapshots = [{0: snapshot(0, recorder=False)} if responds else {}]
    node.stalls()
    node.passes(10.0)
    assert node.run.notices[0].startswith(f"{named}: no heartbeat for 50 s")


def test_worker_that_does_not_respond_and_one_that_has_ended_are_told_as_such(start):
    node = start()
    node.workers.stacks = {}
    node.watch._watch = replace(node.watch._watch, workers={0: node.watch._watch.workers[0]})
    node.asks()
    assert [each.status for each in evidence(node).values()] == ["silent", "ended"]


def test_rank_with_a_heartbeat_while_evidence_is_collected_makes_progress(start):
    node = start()
    node.stacks.delay_s = 1.0
    node.asks()
    node.beat(1, step=8)
    node.passes(1.0)
    assert [each.stable for each in evidence(node).values()] == [True, False]


def test_rank_that_moves_after_its_stack_was_taken_does_not_wait_by_that_stack(start):
    node = start()
    node.stacks.delay_s = 1.0
    node.asks()
    node.beat(0, step=9)
    node.beat(1, step=8)
    node.passes(1.0)
    steps = decoded_response(node.run.answers[-1][1]).steps
    assert (steps.waiting, steps.behind) == ((), (RankStep(global_rank=5, step=8, waits=False, may_wait=True),))


@pytest.mark.parametrize("late_conclusion", [False, True])
def test_rank_that_hangs_after_its_stack_was_taken_is_not_judged_by_that_stack(start, late_conclusion):
    node = start(limit_s=10.0)
    node.workers.stacks[1] = stack(LOAD)
    node.asks(1)  # another node, whose leader does not conclude in time
    node.beat(0, 1, step=8)
    node.workers.stacks = {0: stack(LOAD), 1: stack(STEP, REDUCE)}
    node.stalls()
    if late_conclusion:
        node.concludes(serial=1)
        assert (node.run.notices, len(node.run.questions)) == ([], 2)
    node.passes(5.0)  # nobody responds to the own question
    (line,) = node.run.notices
    assert line.startswith("rank 4: no heartbeat for ")
    assert "data.py:5" in line


def test_node_that_collects_for_too_long_responds_with_its_steps(start):
    node = start()
    node.stacks.delay_s = 8.0
    node.stalls()
    node.asks()
    node.passes(5.0)
    ((_, data),) = node.run.answers
    assert (decoded_response(data).evidence, decoded_response(data).steps.max_step) == (b"", 7)
    assert decoded_response(data).steps.may_wait == (4, 5)
    node.concludes(ELSEWHERE, reporter="n2")
    assert node.run.notices == []
    node.passes(5.0)
    assert len(node.run.answers) == 1
    assert node.run.notices[0].startswith("rank 9 on n2 has not entered")


def test_node_without_a_conclusion_names_its_own_rank_by_its_own_evidence(start):
    node = start()
    node.workers.stacks[1] = stack(LOAD)
    node.workers.snapshots = [{0: snapshot(12), 1: snapshot(11, 11)}]
    node.stalls()
    node.passes(10.0)
    assert node.run.notices[0].startswith(
        "rank 5 on n1 has not entered all_reduce #12 of group dp; rank 4 waits for it"
    )
    node.passes(LIMIT_S)
    (report,) = node.run.reports
    assert [fault.local_rank for fault in report.workers] == [1]


def test_question_while_evidence_is_collected_gets_that_evidence(start):
    node = start()
    node.stacks.delay_s = 1.0
    node.asks(1)
    node.asks(2)
    node.passes(1.0)
    assert [serial for serial, _ in node.run.answers] == [2]
    assert node.stacks.count == 1


def test_workers_write_stacks_for_other_nodes_a_limited_number_of_times(start):
    node = start()
    for serial in range(1, MAX_DUMPS + 3):
        node.asks(serial)
        node.concludes(serial=serial)
    assert node.stacks.count == MAX_DUMPS
    assert len(node.run.answers) == MAX_DUMPS + 2
    assert decoded_response(node.run.answers[-1][1]).evidence == b""


def test_question_between_rounds_or_about_something_else_is_not_answered(start):
    node = start()
    node.watch.on_nodes_asked(NodesAsked(serial=1, topic="other"))
    node.watch.on_workers_stopping(WorkersStopping(round_index=3, reason="enough", grace_s=1.0))
    node.asks(2)
    node.concludes(serial=2)
    assert (node.run.answers, node.stacks.count) == ([], 0)


def test_open_section_of_another_node_excuses_at_the_limit_too(start):
    node = start()
    node.stalls()
    node.asks()
    node.concludes(ELSEWHERE, reporter="n1")
    node.hangs()
    node.asks(2)
    node.concludes(ELSEWHERE, serial=2, reporter="n1", protected_s=300.0)
    assert node.run.reports == []
    node.passes(LIMIT_S)
    assert node.run.reports == []


def test_files_that_cant_be_written_cost_the_files_alone(start, tmp_path):
    node = start(nodes=1)
    (tmp_path / "hang").write_text("in the way")
    node.stalls()
    node.asks()
    node.concludes(HERE, reporter="n1")
    assert node.run.notices[0].startswith(f"stacks can't be written to '{node.folder}': ")
    assert node.run.notices[1].startswith("rank 5 on n1 has not entered all_reduce #12")
    assert not Path(node.folder).exists()
