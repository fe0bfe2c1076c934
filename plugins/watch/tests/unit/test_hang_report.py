"""What is told of a hang."""

import pytest
from msgspec.structs import replace

from elastic_watch.collectives.evidence import Attribution, Cause, Operation
from elastic_watch.hangs.asking import Conclusion
from elastic_watch.hangs.detector import Late, Stall
from elastic_watch.hangs.hang_evidence import evidence_kinds, failure_report, hang_field
from elastic_watch.hangs.hang_report import (
    HangReport,
    RankReport,
    blame,
    headline,
    may_wait_elsewhere,
    summary,
    waits_elsewhere,
    warning,
)
from elastic_watch.hangs.hang_status import cause_of
from elastic_watch.hangs.steps import RankStep, RunSteps
from elastic_watch.stacks import WorkerStack

STEP = ("/u/train.py", 40, "step", "")


def late(rank, quiet_s=31.2, step=119, *, begun=True):
    return Late(local_rank=rank, quiet_s=quiet_s, step=step, begun=begun)


def rank(number, frames=(), **fields):
    user = [index for index, (file, *_) in enumerate(frames) if file.startswith("/u/")]
    stack = WorkerStack(frames=frames, user_frame=user[-1] if user else -1)
    return RankReport(local_rank=number, global_rank=number + 8, pid=100 + number, stack=stack, **fields)


def report(stall, *ranks, folder="/r/hang/round_0_1", conclusion=None, free_elsewhere=False, **given):
    blamed = blame(stall, ranks, conclusion, free_elsewhere=free_elsewhere)
    return HangReport(stall=stall, ranks=ranks, blamed=blamed, folder=folder, conclusion=conclusion, **given)


@pytest.mark.parametrize(
    ("stall", "ranks", "text"),
    [
        (
            Stall(late=(late(3),), behind=(3,), top_step=120),
            [rank(3, frames=(STEP,)), rank(0)],
            "rank 11 has not reached step 120 (at 119 for 31.2 s, in train.py:40)",
        ),
        (
            Stall(late=(late(0, step=117), late(1), late(2, step=120)), behind=(0, 1), top_step=120),
            [rank(0), rank(1), rank(2)],
            "ranks 8, 9 have not reached step 120 (at 117 to 119 for 31.2 s)",
        ),
        (
            Stall(late=(late(0, step=7), late(1, step=7), late(2, step=7)), top_step=7),
            [rank(0), rank(1), rank(2)],
            "ranks 8-10: no heartbeat for 31.2 s (at step 7)",
        ),
        (
            Stall(late=(late(0, step=7), late(1, step=7), late(2, step=7)), top_step=7),
            [rank(0, frames=(STEP,)), rank(1, frames=(("/u/data.py", 5, "load", ""),)), rank(2, frames=(STEP,))],
            "rank 9: no heartbeat for 31.2 s (at step 7, in data.py:5)",
        ),
        (
            Stall(late=(late(0, step=None, begun=False),), section="compile"),
            [rank(0, state="S")],
            "rank 8: no first heartbeat 31.2 s after the start; section 'compile' is over its limit",
        ),
        (
            Stall(late=(late(0, step=None), late(1, step=None)), by_beats=False),
            [rank(0, state="D", wait="nfs_wait"), rank(1)],
            "ranks 8, 9: nothing written or read for 31.2 s; rank 8: in uninterruptible sleep (nfs_wait)",
        ),
        (
            Stall(late=(late(0, step=None),)),
            [rank(0, state="T")],
            "rank 8: no heartbeat for 31.2 s; it is stopped by a signal",
        ),
    ],
)
def test_hang_in_one_line(stall, ranks, text):
    assert summary(report(stall, *ranks)) == text


COLLECTIVE = (STEP, ("/v/site-packages/torch/distributed/distributed_c10d.py", 2806, "all_reduce", ""))


def test_rank_that_does_not_wait_for_its_peers_is_to_blame_where_others_do():
    stall = Stall(late=(late(0, step=7), late(1, step=7)), top_step=7)
    ranks = [rank(0, frames=COLLECTIVE), rank(1, frames=(("/u/data.py", 5, "load", ""),))]
    assert summary(report(stall, *ranks)) == "rank 9: no heartbeat for 31.2 s (at step 7, in data.py:5)"
    assert summary(report(stall, ranks[0], rank(1, state="D"))).startswith("rank 9: no heartbeat")


def test_ranks_that_all_wait_have_no_one_to_blame_here():
    stall = Stall(late=(late(0, step=7), late(1, step=7)), top_step=7)
    told = report(stall, rank(0, frames=COLLECTIVE), rank(1, frames=COLLECTIVE))
    assert summary(told) == ("ranks 8, 9: no heartbeat for 31.2 s (at step 7, in train.py:40); waiting for other ranks")
    assert waits_elsewhere(told)
    assert not waits_elsewhere(report(stall, rank(0, frames=COLLECTIVE), rank(1)))


SAVE = ("/u/save.py", 9, "save", "")


def quiet(*ranks, behind=()):
    return Stall(late=tuple(late(each, step=7) for each in ranks), behind=behind, top_step=8 if behind else 7)


def test_rank_that_waits_in_another_place_than_most_is_not_named():
    places = (SAVE, STEP, STEP, STEP)
    ranks = [rank(number, frames=(place,), call="all_reduce") for number, place in enumerate(places)]
    told = report(quiet(0, 1, 2, 3), *ranks)
    assert set(told.blamed) == {0, 1, 2, 3}
    assert summary(told).endswith("; waiting for other ranks")


def test_ranks_that_are_behind_and_wait_are_not_named():
    calls = ("barrier", "barrier", "recv", "recv")
    told = report(quiet(0, 1, 2, 3, behind=(2, 3)), *(rank(number, call=call) for number, call in enumerate(calls)))
    assert set(told.blamed) == {0, 1, 2, 3}
    assert not told.is_behind


def test_most_ranks_at_different_places_are_not_named_beside_the_few_that_wait():
    ranks = [rank(0, call="wait"), rank(1, frames=(LOAD,)), rank(2, frames=(LOAD,)), rank(3, frames=(SAVE,))]
    assert set(report(quiet(0, 1, 2, 3), *ranks).blamed) == {0, 1, 2, 3}
    assert report(quiet(0, 1, 2, 3), *ranks[:3], rank(3, frames=(LOAD,))).blamed == (1, 2, 3)


@pytest.mark.parametrize("folder", ["/v/site-packages", "/opt/pytorch"])
def test_rank_that_is_ahead_in_its_own_code_is_named_where_the_others_are_in_a_backward(folder):
    engine = (f"{folder}/torch/autograd/graph.py", 1, "_engine_run_backward", "")
    ranks = [rank(each, frames=(STEP, engine), call="backward") for each in (0, 2, 3)]
    assert report(quiet(0, 1, 2, 3, behind=(0, 2, 3)), rank(1, frames=(LOAD,)), *ranks).blamed == (1,)


ENGINE = ("/v/site-packages/torch/autograd/graph.py", 1, "_engine_run_backward", "")


@pytest.mark.parametrize("folder", ["/v/site-packages", "/opt/pytorch"])
def test_ranks_that_may_all_wait_are_no_suspects(folder):
    engine = (f"{folder}/torch/autograd/graph.py", 1, "_engine_run_backward", "")
    ranks = [rank(number, frames=(STEP, engine), call="backward") for number in (0, 1)]
    told = report(quiet(0, 1), *ranks)
    assert summary(told) == (
        "ranks 8, 9: no heartbeat for 31.2 s (at step 7, in train.py:40); "
        "waiting for other ranks, or computing gradients"
    )
    assert told.global_ranks == ()
    assert may_wait_elsewhere(told)
    assert not waits_elsewhere(told)
    assert not may_wait_elsewhere(report(quiet(0, 1), ranks[0], rank(1, frames=(LOAD,))))


def test_rank_in_a_backward_is_a_suspect_beside_one_that_certainly_waits():
    told = report(quiet(0, 1), rank(0, frames=(STEP, ENGINE), call="backward"), rank(1, call="all_reduce"))
    assert summary(told) == "rank 8: no heartbeat for 31.2 s (at step 7, in train.py:40)"
    assert told.global_ranks == (8,)
    assert may_wait_elsewhere(told)  # for another node


def in_backward(*numbers):
    return [rank(number, frames=(STEP, ENGINE), call="backward") for number in numbers]


def test_ranks_that_are_behind_in_a_backward_are_not_named_while_the_rank_ahead_is_not_late():
    told = report(quiet(0, 2, 3, behind=(0, 2, 3)), rank(1, frames=(LOAD,)), *in_backward(0, 2, 3))
    assert summary(told) == (
        "ranks 8, 10, 11: no heartbeat for 31.2 s (at step 7, in train.py:40); "
        "waiting for other ranks, or computing gradients"
    )
    assert (told.global_ranks, cause_of(told)) == ((), "unknown")
    assert [each["blamed"] for each in hang_field(told)["ranks"]] == [False] * 4
    assert [fault.local_rank for fault in failure_report(told).workers] == [0, 2, 3]


@pytest.mark.parametrize("behind", [(), (0, 2, 3)])
def test_most_ranks_in_a_backward_are_not_named_beside_one_that_waits_elsewhere(behind):
    told = report(quiet(0, 1, 2, 3, behind=behind), rank(1, call="barrier"), *in_backward(0, 2, 3))
    assert (told.global_ranks, cause_of(told)) == ((), "unknown")
    assert summary(told).endswith("; waiting for other ranks, or computing gradients")


def test_rank_that_computes_gradients_while_most_wait_is_named():
    told = report(quiet(0, 1, 2, behind=(1,)), rank(0, call="all_reduce"), *in_backward(1), rank(2, call="all_reduce"))
    assert (told.global_ranks, cause_of(told)) == ((9,), "behind")


@pytest.mark.parametrize(
    ("free_elsewhere", "counts", "named"),
    [(False, (1, 1), (8,)), (False, (1, 3), (8,)), (False, (3, 1), ()), (True, (1, 3), ())],
)
def test_rank_in_a_backward_is_named_by_the_calls_of_all_ranks(free_elsewhere, counts, named):
    computing, waiting = counts
    known = replace(conclusion(Cause.UNKNOWN), in_backward=computing, waiting=waiting)
    ranks = [*in_backward(0), rank(1, call="barrier")]
    assert report(quiet(0, 1), *ranks, conclusion=known, free_elsewhere=free_elsewhere).global_ranks == named


@pytest.mark.parametrize(
    ("state", "responded", "behind", "named"),
    [
        ("S", True, (), (9,)), ("R", True, (), (9,)), ("T", True, (), (8, 9)), ("D", True, (), (8, 9)),
        ("S", True, (0,), (8,)), ("S", False, (), (8, 9)), ("R", False, (), (8, 9)),
    ],
)  # fmt: skip
def test_slow_rank_without_a_stack_is_no_suspect_beside_one_in_its_own_code(state, responded, behind, named):
    told = report(
        quiet(0, 1, 2, 3, behind=behind),
        rank(0, state=state, responded=responded), rank(1, frames=(LOAD,)),
        *(rank(each, call="all_reduce") for each in (2, 3)),
    )  # fmt: skip
    assert told.global_ranks == named


def test_rank_without_a_stack_is_a_suspect_if_no_rank_waits():
    ranks = [rank(0, state="S", responded=True), rank(1, frames=(LOAD,))]
    assert report(quiet(0, 1), *ranks).global_ranks == (8, 9)


def test_warning_names_where_the_stacks_are():
    stall = Stall(late=(late(3),), behind=(3,), top_step=120)
    assert warning(report(stall, rank(3))) == (
        "rank 11 has not reached step 120 (at 119 for 31.2 s); the others have; stacks: /r/hang/round_0_1"
    )
    assert warning(report(stall, rank(3), folder="")).endswith("; the others have")


def test_head_of_a_stack_says_what_the_rank_is_doing():
    text = headline(rank(0, step=7, quiet_s=5.0, state="R", cpu_share=0.98))
    assert text == "rank 8 (local rank 0), pid 100, step 7, no sign of life for 5 s, state R, 1.0 processors"


# --- with the evidence of collectives

SAME_STEP = Stall(late=(late(0, step=7), late(1, step=7), late(2, step=7)), top_step=7)
LOAD = ("/u/data.py", 5, "load", "")


def conclusion(cause, culprits=(), *, disputed="", places=None, **given):
    given = {"group": "dp", "operation": Operation(seq=5, name="all_reduce"), "waiting_count": 2} | given
    found = Attribution(cause=cause, culprits=culprits, nodes=("n",) * len(culprits), **given)
    return Conclusion(token=1, steps=RunSteps(), attribution=found, disputed=disputed, places=places or {})


WHERE = "it is in data.py:5, at step 7, silent for 31.2 s"
STOPPED = "it is stopped by a signal"
ONE = "rank 9 on n has not entered all_reduce #5 of group dp; 2 ranks wait for it"
TWO = "ranks 9, 30 on n have not entered all_reduce #5 of group dp; 2 ranks wait for them"
OTHER = "rank 9 on n entered another operation than most ranks as #5 of group dp; 2 ranks wait for it"
ENTERED = "all ranks have entered all_reduce #5 of group dp, which does not complete: check the network and the devices"
DISPUTE = "rank 8 is behind, but others wait for rank 9"
SIZES = ("Rank 9 entered Float[4].", "The others entered Float[2].", "More.")


@pytest.mark.parametrize(
    ("known", "text", "blamed"),
    [
        (conclusion(Cause.MISSING, (9,)), f"{ONE}; {WHERE}; {STOPPED}", (1,)),
        (
            conclusion(Cause.MISSING, (30, 9), places={30: "train.py:8"}),
            f"{TWO}; rank 30 is in train.py:8; {WHERE.replace('it is', 'rank 9 is')}; {STOPPED}",
            (1,),
        ),
        (
            conclusion(Cause.MISMATCH, (9,), details=SIZES),
            f"{OTHER}; {WHERE}; Rank 9 entered Float[4]; The others entered Float[2]; {STOPPED}",
            (1,),
        ),
        (conclusion(Cause.ALL_ENTERED), ENTERED, ()),
        (
            conclusion(Cause.UNKNOWN, disputed=DISPUTE),
            f"ranks 8-10: no heartbeat for 31.2 s (at step 7); {DISPUTE}; rank 9: stopped by a signal",
            (0, 1, 2),
        ),
        (
            conclusion(Cause.NO_RESPONSE),
            f"rank 9: no heartbeat for 31.2 s (at step 7, in data.py:5); {STOPPED}",
            (1,),
        ),
    ],
    ids=["one", "several", "sizes", "no rank", "disputed", "not enough evidence"],
)
def test_cause_in_collectives_comes_before_steps_and_stacks(known, text, blamed):
    waits = rank(0, frames=COLLECTIVE) if not known.disputed else rank(0)
    stopped = rank(1, frames=(LOAD,), state="T", step=7, quiet_s=31.2)
    told = report(SAME_STEP, waits, stopped, rank(2, frames=COLLECTIVE), conclusion=known)
    assert (summary(told), told.blamed) == (text, blamed)


def test_failure_of_a_hang_without_a_culprit_here_is_that_of_the_late_ranks_which_are_not_blamed():
    told = report(SAME_STEP, *map(rank, range(3)), conclusion=conclusion(Cause.MISSING, (30,)), recorder="/r/recorder")
    assert [fault.local_rank for fault in failure_report(told).workers] == [0, 1, 2]
    hang = hang_field(told)
    assert [each["blamed"] for each in hang["ranks"]] == [False] * 3
    assert (hang["attribution"]["culprits"], hang["recorder"], hang["evidence"]) == ((30,), "/r/recorder", [])


def test_without_a_conclusion_the_evidence_is_that_of_this_node():
    told = report(SAME_STEP, rank(0, frames=(STEP,), step=7), rank(1), rank(2))
    assert evidence_kinds(told) == ("stacks", "steps", "heartbeats")
    assert hang_field(told)["attribution"] is None


BEHIND = Stall(late=(late(0, step=6), late(1, step=6), late(2, step=7)), behind=(0, 1), top_step=7)


@pytest.mark.parametrize(
    ("calls", "blamed", "text"),
    [
        (("", "", ""), (0, 1), "ranks 8, 9 have not reached step 7"),
        (("", "recv", ""), (0,), "rank 8 has not reached step 7"),
        (("recv", "recv", ""), (2,), "rank 10: no heartbeat"),
    ],
)
def test_rank_behind_that_waits_for_peers_is_not_named_before_one_that_does_not(calls, blamed, text):
    told = report(BEHIND, *(rank(number, call=call) for number, call in enumerate(calls)))
    assert told.blamed == blamed
    assert summary(told).startswith(text)


def test_few_ranks_that_wait_may_be_at_the_wrong_place_if_the_recorder_names_nobody():
    ranks = [rank(0, call="all_reduce"), rank(1, frames=(LOAD,)), rank(2, frames=(LOAD,))]
    assert report(SAME_STEP, *ranks).blamed == (1, 2)
    known = conclusion(Cause.UNKNOWN, evidence=("recorder", "stacks"))
    assert report(SAME_STEP, *ranks, conclusion=known).blamed == (0, 1, 2)


def test_rank_in_backward_may_wait_as_the_others_do():
    engine = ("/v/site-packages/torch/autograd/graph.py", 1, "_engine_run_backward", "")
    own = ("/u/train.py", 3, "backward", "")
    ranks = [rank(0, frames=(STEP, engine), call="backward"), rank(1, frames=(LOAD,)),
             rank(2, frames=(STEP, engine), call="backward")]  # fmt: skip
    assert report(SAME_STEP, *ranks).blamed == (1,)
    assert rank(0, frames=(STEP, engine, own), call="backward").may_wait is False


THREE = (rank(0), rank(1), rank(2))


@pytest.mark.parametrize(
    ("told", "cause", "ranks"),
    [
        (report(SAME_STEP, *THREE, conclusion=conclusion(Cause.DIFFERENT_ORDER)), "different order", ()),
        (report(SAME_STEP, *THREE), "unknown", (8, 9, 10)),
        (report(SAME_STEP, rank(0), rank(1, call="recv"), rank(2)), "outside", (8, 10)),
        (report(BEHIND, *THREE), "behind", (8, 9)),
        (report(SAME_STEP, *THREE, elsewhere=(RankStep(global_rank=30, step=6, node_id="b"),)), "behind", (30,)),
        (report(SAME_STEP, *THREE, conclusion=conclusion(Cause.UNKNOWN, disputed="x")), "unknown", ()),
    ],
)
def test_cause_for_metrics_and_status(told, cause, ranks):
    assert (cause_of(told), told.global_ranks) == (cause, ranks)


@pytest.mark.parametrize(
    ("calls", "blamed"),
    [(("recv", "recv", ""), (0, 1, 2)), (("new_group", "new_group", ""), (2,)), (("recv", ""), (1,))],
    ids=["two may wait for each other", "two wait for all", "one can only wait for the other"],
)
def test_rank_in_its_own_code_is_not_named_if_the_others_may_wait_for_each_other(calls, blamed):
    places = [rank(number, frames=(STEP,), call=call) for number, call in enumerate(calls)]
    known = Conclusion(
        token=1, steps=RunSteps(node_count=1), attribution=Attribution(cause=Cause.UNKNOWN, evidence=("recorder",))
    )
    stall = Stall(late=tuple(late(number, step=7) for number in range(len(calls))), top_step=7)
    assert set(report(stall, *places, conclusion=known).blamed) == set(blamed)
