"""`elastic status --history`: all rounds as text within 80 columns, from a directory and from a store."""

import pytest
from msgspec.structs import replace

from elastic_core.api import Ignore, Restart
from elastic_core.api.tools import AgentIdentity
from elastic_ops.run_directories import FoundRun
from elastic_ops.status.document import AgentStatus, PastRound
from elastic_ops.status.history import STORE_NOTE, page_of_history
from elastic_ops.status.page import plain
from elastic_ops.status.store_history import rounds_in_store
from elastic_ops.status.view import NodeView, PastRoundView, RunView, VerdictView, iso_time
from elastic_ops.stored_run import StoredControl, StoredEnding, StoredFailure, StoredNode, StoredRound, StoredRun

NOW_NS = 1_800_000_000 * 10**9
NODE = NodeView(node_id="gpu-1@10.0.0.1", state="running")
RUN = RunView(run_id="bert-7", source="directory", state="running", nodes=(NODE,))


def at(before_s):
    return iso_time(NOW_NS - before_s * 10**9)


def past(index, began_s, ended_s=None, **fields):
    ended = "" if ended_s is None else at(ended_s)
    fields = {"node_count": 2, "world_size": 16} | fields
    return PastRoundView(index=index, began=at(began_s), ended=ended, **fields)


def text(run, width=80):
    shown = plain(page_of_history(run, now_ns=NOW_NS, width=width))
    assert all(len(line) <= width for line in shown.split("\n"))
    return shown


def test_each_round_has_a_row_and_below_it_what_changed_and_why_it_ended():
    rounds = (
        past(0, 86_340, 3_540, ended_by="failure", reason="ValueError: boom"),
        past(
            1, 3_539, 120, ended_by="membership", reason="gpu-2@10.0.0.2 lost; 1 node with 8 workers goes on",
            joined=("gpu-3@10.0.0.3",), joined_count=1,
        ),
        past(2, 110, node_count=1, world_size=8, lost=("gpu-2@10.0.0.2",), lost_count=1, left=("gpu-3",), left_count=1),
    )  # fmt: skip
    assert text(replace(RUN, rounds=rounds)) == (
        "run 'bert-7', node gpu-1@10.0.0.1: running\n"
        "\n"
        "ROUND  BEGAN (UTC)          AGE          LASTED       NODES  WORKERS  ENDED BY\n"
        "0      2027-01-14 08:01:00  23 h 59 min  23 h         2      16       failure\n"
        "       ended: ValueError: boom\n"
        "1      2027-01-15 07:01:01  58 min 59 s  56 min 59 s  2      16       membership\n"
        "       joined: gpu-3@10.0.0.3\n"
        "       ended: gpu-2@10.0.0.2 lost; 1 node with 8 workers goes on\n"
        "2      2027-01-15 07:58:10  1 min 50 s   -            1      8        -\n"
        "       left: gpu-3\n"
        "       lost: gpu-2@10.0.0.2"
    )


def test_long_texts_and_many_nodes_are_wrapped():
    names = tuple(f"gpu-{number:03}@10.0.0.{number}" for number in range(32))
    long = past(1, 50, 40, ended_by="failure", reason="x" * 240, joined=names, joined_count=500)
    shown = text(replace(RUN, rounds=(past(0, 60, 50), long)))
    assert "and 468 more" in shown
    assert all(
        line.startswith("         ") for line in shown.split("\n")[5:-1] if line[7:13] not in ("joined", "ended:")
    )
    assert len(text(replace(RUN, rounds=(past(0, 60, 50), long)), width=120)) < len(shown)


def test_nothing_steers_a_terminal():
    evil = past(0, 50, 40, ended_by="failure", reason="a\x1b[2Jb", lost=("c\u202ed",), lost_count=1)
    shown = text(replace(RUN, run_id="r\x1b[2J", rounds=(evil,)))
    assert not {"\x1b", "\u202e"} & {*shown}


def test_rounds_that_are_no_longer_kept_are_counted_and_a_run_may_have_none():
    assert "1 earlier round of this node: no longer kept\n\nROUND" in text(
        replace(RUN, rounds=(past(1, 50),), earlier_rounds=1)
    )
    assert text(RUN) == "run 'bert-7', node gpu-1@10.0.0.1: running\nno round yet"


def test_the_last_round_of_a_run_that_is_over_ended_with_it():
    verdict = VerdictView(outcome="done", exit_code=0, reason="all workers finished")
    shown = text(replace(RUN, rounds=(past(0, 50, 40, ended_by="failure"), past(1, 39)), verdict=verdict))
    assert shown.count("run's end") == 1
    assert shown.endswith("verdict: done, exit code 0: all workers finished")


# --- from a store


def node(name):
    return StoredNode(incarnation=f"i-{name}", node=name, nproc=2)


FAILURES = (
    StoredFailure(failure_class="signal", summary="killed", round_index=0, at_s=100.0, decision=Restart()),
    StoredFailure(failure_class="signal", summary="passed over", round_index=1, at_s=150.0, decision=Ignore()),
)
LAST = StoredRound(token=4, nonce="n4", index=3, at_s=400.0, roster=(node("a"), node("c")))
REGROUP = StoredEnding(
    token=3, nonce="n3", kind="regroup", reason="b lost; d left; 1 node joined; 2 nodes go on", lost=("b", "d"),
    unclean=("b",), arrived=1, age_s=50.0,
)  # fmt: skip


def stored(ending=REGROUP, last=LAST, history=FAILURES):
    return StoredRun(control=StoredControl(ending=ending, history=history), round=last)


def test_a_store_has_its_last_round_the_last_end_and_the_failures():
    rounds = rounds_in_store(stored())
    assert rounds == (
        PastRoundView(index=0, node_count=0, world_size=0, ended_by="failure", reason="killed", ended_s=100.0),
        PastRoundView(
            index=2, token=3, node_count=0, world_size=0, ended_by="membership", reason=REGROUP.reason
        ),
        PastRoundView(
            index=3, token=4, node_count=2, world_size=4, began_s=400.0, joined_count=1, left=("d",), left_count=1,
            lost=("b",), lost_count=1,
        ),
    )  # fmt: skip
    shown = text(RunView(run_id="bert-7", source="store", state="running", rounds=rounds))
    assert (
        "0      -            -    -       -      -        failure\n"
        "       ended +1 min 40 s: killed\n"
        "2      -            -    -       -      -        membership\n"
    ) in shown
    assert "3      +6 min 40 s  -    -       2      4        -\n       joined: 1 node\n       left: d\n" in shown
    assert " ".join(shown.split()).endswith(STORE_NOTE)


@pytest.mark.parametrize(
    ("ending", "ended_by", "reason"),
    [
        (StoredEnding(kind="regroup", reason="b lost"), "membership", "b lost"),
        (StoredEnding(kind="outage", reason="b stopped while the store was away"), "membership", "b stopped"),
        (StoredEnding(kind="asked", decision=Restart(rule="elastic ctl restart")), "restart", "elastic ctl restart"),
        (StoredEnding(kind="restart", failure=FAILURES[0]), "failure", "killed"),
    ],
)
def test_the_last_round_may_have_ended(ending, ended_by, reason):
    ending.token, ending.nonce, ending.age_s = 4, "n4", 50.0
    (last,) = rounds_in_store(stored(ending, history=()))
    assert (last.ended_by, last.began_s, last.ended_s) == (ended_by, 400.0, 450.0)
    assert last.reason.startswith(reason)


def test_nodes_that_came_back_after_an_outage_were_not_lost():
    ending = StoredEnding(token=3, kind="outage", reason="b stopped", lost=("b",), unclean=("b",))
    assert rounds_in_store(stored(ending, history=()))[-1].lost_count == 0


@pytest.mark.parametrize("run", [StoredRun(), StoredRun(control=StoredControl()), stored(None, None, ())])
def test_a_run_that_waits_for_its_first_round_has_none(run):
    assert rounds_in_store(run) == ()


def test_running_agents_of_this_machine_know_more():
    def agent(running, *rounds):
        status = AgentStatus(run_id="bert-7", node_id="a", agent=AgentIdentity(pid=1), backend="redis", state="x",
                             rounds=rounds)  # fmt: skip
        return FoundRun(path="/r", status=status, running=running)

    ended = PastRound(index=2, token=3, node_count=3, began_ns=5 * 10**9, ended_ns=7 * 10**9, ended_by="membership",
                      reason="b lost", joined=("b",), joined_count=1)  # fmt: skip
    open_ = replace(ended, ended_ns=0, ended_by="", reason="")
    now = PastRound(index=3, token=4, node_count=2, world_size=4, began_ns=8 * 10**9, lost=("b",), lost_count=1)
    rounds = rounds_in_store(
        stored(), [agent(True, open_), agent(True, ended, now), agent(False, replace(now, index=9))]
    )
    assert [past.index for past in rounds] == [0, 2, 3]
    assert (rounds[1].ended, rounds[1].joined, rounds[1].reason) == (iso_time(7 * 10**9), ("b",), "b lost")
    assert (rounds[2].began, rounds[2].began_s, rounds[2].lost, rounds[2].left) == (
        iso_time(8 * 10**9),
        None,
        ("b",),
        (),
    )
    whole = (past(0, 60, 50), past(1, 49))
    assert "The store has" not in text(RunView(run_id="x", source="store", state="running", rounds=whole))
