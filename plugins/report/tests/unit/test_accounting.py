"""The accounting of one node: every second is in exactly one state."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.api import FailureClass
from elastic_core.api.feed import Absence
from elastic_core.api.rendezvous import Decided, RosterMember, RoundEnded, StopOrdered, Suspended
from elastic_core.types import FailedWorker, Origin, Restart, Stop, WorkerExit
from elastic_plugin_kit import sample_failure
from elastic_report.ledger.accounting import SIGN_LIMIT_S
from elastic_report.ledger.document import Alive, Bound, Hung, Note, Progress, RoundLine, RoundOver, WorkerLine
from elastic_report.ledger.states import ORDER
from elastic_report.ledger.states import LedgerState as S
from elastic_report.ledger.totals import Tally
from ledger_kit import STARTED_NS, STARTED_S, Node, beats, check_spans


def of(lines, kind):
    return [line for line in lines if isinstance(line, kind)]


def test_a_run_with_steps_saves_and_a_restart():
    node = Node(workers=2)
    node.wait(0.5)
    node.begin(rendezvous_s=1.5)
    node.wait(100)
    t = node.now_s - 100
    node.progress = {
        0: beats(t + 2, first_step=0, first_step_s=t + 10, step=90, step_s=t + 99, marks=(("save", t + 50, t + 55),)),
        1: beats(t + 2, first_step=0, first_step_s=t + 12, step=90, step_s=t + 99, marks=(("save", t + 52, t + 53),)),
    }
    node.fail()
    node.begin()
    t = node.now_s
    node.wait(50)
    node.progress = {
        0: beats(t + 1, first_step=50, first_step_s=t + 8, step=99, step_s=t + 49, above_s=t + 30,
                 marks=(("restore", t + 2, t + 6),)),
        1: beats(t + 1, first_step=50, first_step_s=t + 8, step=99, step_s=t + 49, above_s=t + 31),
    }  # fmt: skip
    node.succeed()
    node.close()
    check_spans(node.lines, node.now_s)
    assert node.course == [
        ("rendezvous", 2.0), ("starting", 12.0), ("productive", 38.0), ("saving", 5.0), ("productive", 45.0),
        ("deciding", 0.1), ("stopping", 2.0), ("rendezvous", 1.0), ("starting", 8.0), ("redone", 23.0),
        ("productive", 19.0), ("stopping", 0.2),
    ]  # fmt: skip
    assert [line.last_step for line in of(node.lines, WorkerLine)] == [90, 90, 99, 99]
    assert [(line.by, line.index) for line in of(node.lines, RoundOver)] == [("failure", 0), ("end", 1)]
    assert of(node.lines, Bound) == []
    assert [note.text for note in of(node.lines, Note) if note.name == "save"] == ["saved in 5 s"]
    assert [line.step for line in of(node.lines, Progress)] == [90, 99]


def test_a_worker_that_reports_later_than_another_is_starting_until_then():
    node = Node(workers=2)
    node.begin(0.0)
    t = node.now_s
    first = {0: beats(t + 1, first_step=0, first_step_s=t + 2, step=2, step_s=t + 4)}
    node.wait(4)
    node.progress = first
    node.tick()
    node.wait(16)
    node.progress = {
        0: beats(t + 1, first_step=0, first_step_s=t + 2, step=9, step_s=t + 19),
        1: beats(t + 5, first_step=0, first_step_s=t + 6, step=9, step_s=t + 19),
    }
    node.fail()
    assert node.course[:2] == [("starting", 6.0), ("productive", 14.0)]
    node.begin(0.0)
    t = node.now_s
    for wait in (4, 20):  # also after the time for which a worker that never reported is waited for
        node.wait(wait)
        node.progress = {0: beats(t + 1, first_step=5, first_step_s=t + 2, step=9, step_s=t + wait, above_s=t + 12)}
        node.tick()
    node.wait(6)
    node.progress = {
        0: beats(t + 1, first_step=5, first_step_s=t + 2, step=12, step_s=t + 29, above_s=t + 12),
        1: beats(t + 25, first_step=5, first_step_s=t + 26, step=12, step_s=t + 29, above_s=t + 28),
    }
    node.succeed()
    assert node.course[-4:] == [("starting", 26.0), ("redone", 2.0), ("productive", 2.0), ("stopping", 0.2)]


def test_a_worker_that_never_reports_is_left_out():
    node = Node(workers=2)
    for number in range(2):
        node.begin(0.0)
        t = node.now_s
        node.wait(4)
        node.progress = {0: beats(t + 1, first_step=number, first_step_s=t + 2, step=2, step_s=t + 4)}
        node.tick()
        assert node.accounting.state is S.STARTING  # the other may still report
        node.wait(8)
        node.tick()
        assert node.accounting.state is (S.REDONE if number else S.PRODUCTIVE)
        node.fail()
    assert node.course == [
        ("starting", 2.0), ("productive", 10.0), ("deciding", 0.1), ("stopping", 2.0),
        ("starting", 2.0), ("redone", 10.0), ("deciding", 0.1), ("stopping", 2.0),
    ]  # fmt: skip


def test_one_worker_that_loads_counts_if_no_other_one_still_starts():
    node = Node(workers=2)
    node.begin(0.0)
    t = node.now_s
    node.wait(20)
    step = {"first_step": 1, "first_step_s": t + 10, "step": 9, "step_s": t + 19}
    node.progress = {
        0: beats(t + 1, marks=(("restore", t + 2, t + 8),), **step),
        1: beats(t + 4, marks=(("restore", t + 4, t + 9),), **step),
    }
    node.succeed()
    assert node.course[:4] == [("starting", 4.0), ("restoring", 4.0), ("starting", 2.0), ("productive", 10.0)]


def test_a_script_without_signs_is_productive_from_its_start_and_may_redo_all_since_then():
    node = Node()
    node.begin()
    node.wait(30)
    node.tick()
    assert node.accounting.state is S.STARTING
    assert node.accounting.totals().goodput == (0.0, 0.0)
    node.wait(40)
    node.tick()
    assert node.accounting.state is S.PRODUCTIVE
    assert node.accounting.totals().goodput == (0.0, pytest.approx(70 / 71))
    assert not [span for span in node.spans if span.state is S.PRODUCTIVE]
    node.fail()
    assert node.seconds == {S.RENDEZVOUS: 1.0, S.PRODUCTIVE: 70.0, S.DECIDING: 0.1, S.STOPPING: 2.0}
    assert [line.seconds for line in of(node.lines, Bound)] == [pytest.approx(70.0)]
    totals = node.accounting.totals()
    assert totals.goodput == (0.0, pytest.approx(70 / 73.1))
    assert totals.goodput_nvidia == (pytest.approx((73.1 - 2.1 - 70) / 73.1), pytest.approx((73.1 - 2.1) / 73.1))


def test_the_bound_begins_at_the_last_save():
    node = Node()
    node.begin()
    t = node.now_s
    node.wait(100)
    node.progress = {0: beats(t + 10, marks=(("save", t + 40, t + 45), ("save", t + 70, t + 72)))}
    node.fail()
    assert node.seconds[S.STARTING] == 10.0
    assert node.seconds[S.SAVING] == 7.0
    assert [line.seconds for line in of(node.lines, Bound)] == [pytest.approx(28.0)]


def test_a_sign_after_a_minute_means_that_the_time_before_it_was_the_start():
    node = Node()
    node.begin()
    t = node.now_s
    node.wait(120)
    node.tick()
    node.progress = {0: beats(t + 150, first_step=1, first_step_s=t + 180, step=1, step_s=t + 180)}
    node.wait(80)
    node.tick()
    node.wait(10)
    node.succeed()
    assert node.course[:3] == [("rendezvous", 1.0), ("starting", 180.0), ("productive", 30.0)]


def test_without_a_sign_for_ten_minutes_none_is_expected():
    node = Node()
    node.begin()
    node.wait(SIGN_LIMIT_S)
    node.tick()
    assert node.accounting.totals().goodput == (pytest.approx(600 / 601), pytest.approx(600 / 601))
    node.wait(60)
    node.tick()
    assert of(node.lines, Alive)[-1] == Alive(at_s=node.now_s, state=S.PRODUCTIVE, round=0)


def test_a_hang_is_one_appended_correction():
    node = Node()
    node.begin()
    t = node.now_s
    node.wait(100)
    node.progress = {0: beats(t + 1, first_step=1, first_step_s=t + 5, step=9, step_s=t + 60)}
    node.tick()
    before = list(node.lines)
    node.wait(40)
    exit = WorkerExit(local_rank=0, global_rank=0, pid=node.pid, code=0, at_s=node.now_s, at_ns=0, runtime_s=1.0)
    node.blamed = (
        FailedWorker(exit=exit, origin=Origin.INTRINSIC, failure_class=FailureClass.HANG, summary="hangs",
                     at_ns=STARTED_NS + round((t + 60 - STARTED_S) * 1e9)),
    )  # fmt: skip
    node.fail(failure_class=FailureClass.HANG, summary="rank 0 hangs")
    assert node.lines[: len(before)] == before
    assert of(node.lines, Hung) == [Hung(begin_s=pytest.approx(t + 60), end_s=t + 140)]
    assert node.seconds[S.HUNG] == 80.0
    assert node.seconds[S.PRODUCTIVE] == 55.0
    assert sum(node.seconds.values()) == pytest.approx(node.now_s - STARTED_S)
    assert [note.name for note in of(node.lines, Note)] == ["hang", "decision"]


def test_event_of_a_hook_shows_its_summary_or_else_all_its_values():
    node = Node()
    node.begin()
    node.add("hang", {"state": "suspected", "ranks": [1], "summary": "rank 1 waits"}, source="watch")
    node.add("hang", {"state": "over"}, source="watch")
    assert [(note.name, note.text) for note in of(node.lines, Note)] == [
        ("hang_suspected", "rank 1 waits"),
        ("hang_over", "state=over"),
    ]


def test_workers_hang_too_on_a_node_that_only_gets_the_decision_about_another_ones():
    node = Node()
    node.begin()
    t = node.now_s
    node.wait(100)
    node.progress = {0: beats(t + 1, first_step=1, first_step_s=t + 5, step=9, step_s=t + 61)}
    node.step("stopping", "RoundChanged", change=StopOrdered(reason="rank 3 hangs"))
    node.wait(1)
    node.step("awaiting", "WorkersStopped")
    node.wait(1)
    failure = sample_failure(failure_class=FailureClass.HANG, node_id="other", round_index=0)
    node.step("gating", "RoundChanged", change=Decided(decision=Restart(), failure=failure))
    assert of(node.lines, Hung) == [Hung(begin_s=t + 61, end_s=t + 100)]
    assert node.seconds[S.HUNG] == 39.0


def test_a_drain_counts_from_the_stop_sequence_and_workers_train_while_it_is_held():
    node = Node()
    node.begin()
    node.wait(10)
    node.add("draining", {"signum": 15, "deadline_s": 30.0})
    node.step("stopping", "StopRequested", signum=15)
    node.add("stop_planned", {"reason": "stopped by signal 15", "hold_s": 30.0, "round_index": 0})
    node.wait(5)
    node.add("workers_stopping", {"reason": "stopped by signal 15", "grace_s": 30.0, "round_index": 0})
    node.wait(2)
    node.exit(0, -15, 15)
    node.step("leaving", "WorkersStopped")
    node.wait(1)
    node.step("ended")
    node.close("stopped", 143)
    assert node.course == [("rendezvous", 1.0), ("productive", 15.0), ("drained", 3.0)]
    assert of(node.lines, RoundOver)[0].by == "drain"


def test_states_without_workers():
    node = Node()
    node.join()
    node.wait(1)
    node.add("store_reachable", {"reachable": False, "text": "the store is away"})
    node.wait(2)
    node.add("store_reachable", {"reachable": True, "text": "the store is back"})
    node.wait(4)
    absence = Absence(by="policy 'hw'", reason="exit code 77", refused=False)
    node.add("left_out", {"absence": absence})
    node.wait(8)
    node.add("left_out", {"absence": None})
    node.step("refused")
    node.wait(16)
    node.step("waiting")
    node.wait(32)
    node.form((RosterMember(node_id="n0", local_world_size=1), RosterMember(node_id="n1", local_world_size=1)))
    node.spawn()
    node.wait(1)
    node.step("running", "RoundChanged", change=Suspended(reason="the store is away"))
    node.wait(1)
    change = RoundEnded(reason="n1 left", lost=("n1", "n2"), left=("n1",), arrived=1)
    node.step("stopping", "RoundChanged", change=change)
    node.wait(64)
    node.step("joining", "WorkersStopped")
    node.wait(128)
    node.close("failed", 4)
    assert node.course == [
        ("rendezvous", 1.0), ("store outage", 2.0), ("rendezvous", 4.0), ("excluded", 24.0), ("restarting", 32.0),
        ("productive", 2.0), ("stopping", 64.0), ("store outage", 128.0),
    ]  # fmt: skip
    over = of(node.lines, RoundOver)[0]
    assert (over.by, over.lost, over.left, over.arrived) == ("membership", ("n2",), ("n1",), 1)
    assert of(node.lines, RoundLine)[0].members == ("n0", "n1")
    assert [note.name for note in of(node.lines, Note)] == [
        "store_lost", "store_back", "excluded", "store_lost", "lost", "left", "joined"
    ]  # fmt: skip


def test_a_jump_of_the_wall_clock_changes_no_second_and_is_a_note():
    node = Node()
    node.begin()
    node.wait(10)
    node.jump_s = -3600
    node.add("anything")
    node.jump_s = -3599.5
    node.wait(10)
    node.succeed()
    node.close()
    assert node.seconds == {S.RENDEZVOUS: 1.0, S.PRODUCTIVE: 20.0, S.STOPPING: 0.2}
    assert [note.text for note in of(node.lines, Note)] == ["the wall clock jumped backwards by 1 h"]


def test_steps_of_an_earlier_attempt_are_redone_too():
    node = Node(high_step=100)
    node.begin()
    t = node.now_s
    node.wait(60)
    node.progress = {0: beats(t + 1, first_step=90, first_step_s=t + 10, step=140, step_s=t + 59, above_s=t + 22)}
    node.succeed()
    assert node.seconds[S.REDONE] == 12.0
    assert node.accounting.high_step == 140


def test_the_order_is_published():
    assert [state.value for state in ORDER] == [
        "queued", "hung", "drained", "excluded", "store outage", "stopping", "deciding", "restarting", "rendezvous",
        "starting", "restoring", "saving", "redone", "productive",
    ]  # fmt: skip


# --- any course of a run

WAITS = st.floats(0, 1000, allow_nan=False).map(lambda value: round(value, 4))
STATES = st.sampled_from(
    ["gating", "joining", "refused", "preparing", "starting", "running", "deciding", "stopping", "awaiting",
     "waiting", "leaving"]
)  # fmt: skip
MARKS = st.lists(st.tuples(st.sampled_from(["save", "restore"]), WAITS, st.none() | WAITS), max_size=4)
KINDS = ["step", "form", "spawn", "read", "tick", "fail", "hang", "drain", "hold", "store", "out", "exit"]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        WAITS, STATES, st.booleans(),
        st.tuples(st.none() | WAITS, st.none() | WAITS, st.none() | WAITS, MARKS, st.integers(0, 50)),
    ),
    max_size=40,
)  # fmt: skip


def random_progress(base_s, given):
    alive_s, first_s, above_s, marks, step = given
    at = lambda value: None if value is None else base_s + value  # noqa: E731
    shown = tuple((kind, base_s + begin, None if end is None else base_s + begin + end) for kind, begin, end in marks)
    if first_s is None:
        return beats(at(alive_s), marks=shown)
    return beats(at(alive_s), first_step=step, first_step_s=at(first_s), step=step + 3, step_s=at(first_s) + 3,
                 above_s=at(above_s), marks=shown)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(ACTIONS, st.integers(1, 3))
def test_every_second_is_in_exactly_one_state_and_lines_are_only_appended(actions, count):
    node = Node(workers=count)
    written = []
    for kind, wait_s, state, flag, progress in actions:
        node.wait(wait_s)
        match kind:
            case "form":
                node.join()
                node.form()
            case "spawn" if node.round is not None:
                node.spawn()
            case "read":
                node.progress = {
                    rank: random_progress(node.accounting._spawned_s, progress) for rank in range(count - flag)
                }
                node.read()
            case "tick":
                node.tick()
            case "fail" | "hang" if node.round is not None:
                node.blamed = ()
                if kind == "hang":
                    exit = WorkerExit(local_rank=0, global_rank=0, pid=1, code=0, at_s=0.0, at_ns=0, runtime_s=1.0)
                    at_ns = STARTED_NS + round((node.now_s - STARTED_S - wait_s) * 1e9)
                    node.blamed = (FailedWorker(exit=exit, origin=Origin.INTRINSIC, failure_class=FailureClass.HANG,
                                                summary="", at_ns=at_ns),)  # fmt: skip
                    node.fail(failure_class=FailureClass.HANG)
                else:
                    node.fail()
            case "drain":
                node.add("draining", {"signum": 15, "deadline_s": 1.0})
            case "hold":
                node.add("stop_planned" if flag else "workers_stopping", {"reason": "", "round_index": 0})
            case "store":
                node.add("store_reachable", {"reachable": flag, "text": ""})
            case "out":
                absence = Absence(by="policy", reason="", refused=False) if flag else None
                node.add("left_out", {"absence": absence})
            case "exit":
                node.exit(0, int(flag))
            case _:
                node.step(state)
        present_s = node.now_s - STARTED_S
        assert node.accounting.totals(node.now_s).present_s == pytest.approx(present_s, abs=1e-6)
        assert node.lines[: len(written)] == written
        written = list(node.lines)
    node.wait(1.0)
    node.close()
    check_spans(node.lines, node.now_s)
    tally = Tally()
    for line in node.lines:
        tally.add(line)
    totals = tally.totals()
    assert totals == node.accounting.tally.totals()
    assert totals.present_s == pytest.approx(node.now_s - STARTED_S, abs=1e-6)
    assert all(seconds >= -1e-9 for seconds in totals.states.values())
    low, high = totals.goodput
    assert 0 <= low <= high <= 1


def test_a_round_that_the_leader_ends_as_all_have_finished_has_ended_well():
    node = Node()
    node.begin()
    node.wait(5)
    node.exit(0)
    decision = Stop(reason="all workers finished", outcome="done")
    node.step("leaving", "RoundChanged", change=Decided(decision=decision))
    node.close()
    assert [(line.by, line.reason) for line in node.lines if isinstance(line, RoundOver)] == [
        ("end", "all workers finished")
    ]
