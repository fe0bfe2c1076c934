"""What is told of a hang."""

import pytest

from elastic_watch.hangs.detector import Late, Stall
from elastic_watch.hangs.hang_report import (
    HangReport,
    RankReport,
    blame,
    headline,
    summary,
    waits_elsewhere,
    warning,
)
from elastic_watch.stacks import WorkerStack

STEP = ("/u/train.py", 40, "step", "")


def late(rank, quiet_s=31.2, step=119, *, begun=True):
    return Late(local_rank=rank, quiet_s=quiet_s, step=step, begun=begun)


def rank(number, frames=(), **fields):
    user = [index for index, (file, *_) in enumerate(frames) if file.startswith("/u/")]
    stack = WorkerStack(frames=frames, user_frame=user[-1] if user else -1)
    return RankReport(local_rank=number, global_rank=number + 8, pid=100 + number, stack=stack, **fields)


def report(stall, *ranks, folder="/r/hang/round_0_1"):
    return HangReport(stall=stall, ranks=ranks, blamed=blame(stall, ranks), folder=folder)


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


def test_warning_names_where_the_stacks_are():
    stall = Stall(late=(late(3),), behind=(3,), top_step=120)
    assert warning(report(stall, rank(3))) == (
        "rank 11 has not reached step 120 (at 119 for 31.2 s); the others have; stacks: /r/hang/round_0_1"
    )
    assert warning(report(stall, rank(3), folder="")).endswith("; the others have")


def test_head_of_a_stack_says_what_the_rank_is_doing():
    text = headline(rank(0, step=7, quiet_s=5.0, state="R", cpu_share=0.98))
    assert text == "rank 8 (local rank 0), pid 100, step 7, no sign of life for 5 s, state R, 1.0 processors"
