"""What a waiting member says."""

import pytest

from elastic_core.rendezvous.member.documents import MemberRecord, RosterEntry, RoundDocument
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import Me, State
from elastic_core.rendezvous.member.texts import missing, timed_out, waiting


def state(min_nodes, live, **known):
    me = Me(node="n", incarnation="i", run_id="r", where="w", fresh_epoch="e", secret="s", min_nodes=min_nodes,
              max_nodes=8)  # fmt: skip
    return State(me=me, live=live, **known)


@pytest.mark.parametrize(
    ("min_nodes", "live", "line"),
    [
        (3, 1, "nodes: 1 of at least 3 nodes joined; 2 missing"),
        (2, 2, "more nodes: 2 nodes joined, at least 2 needed"),
        (1, 3, "more nodes: 3 nodes joined, at least 1 needed"),
        (1, 1, "more nodes: 1 node joined, at least 1 needed"),
    ],
)
def test_who_waits_for_a_round_says_who_came(min_nodes, live, line):
    assert waiting(state(min_nodes, live)) == f"run 'r': waiting for {line}"


def test_who_is_parked_beside_a_round_does_not_speak_of_missing_nodes():
    roster = tuple(RosterEntry(f"i{rank}", f"n{rank}", "", 0) for rank in range(2))
    round_ = RoundDocument(epoch="e", token=1, nonce="x", index=0, roster=roster, master_addr="", master_port=0)
    line = waiting(state(1, 3, spare=True, kept_round=round_))
    assert line == "run 'r' goes on with 2 nodes: waiting for its next round, or its end"


@pytest.mark.parametrize(
    ("live", "line"),
    [
        (1, "1 of at least 3 nodes joined within 600 s, 2 missing; at one time there were 2"),
        (3, "no round within 600 s: 3 nodes joined, at least 3 needed"),
    ],
)
def test_who_gives_up_says_who_came(live, line):
    assert timed_out(state(3, live, most=2)) == f"run 'r': {line}"


def test_who_waits_for_the_old_workers_of_a_node_says_so():
    records = [MemberRecord(epoch="e", node=node, state=said) for node, said in (("a", "ready"), ("b", "running"))]
    members = tuple(Candidate(seat=n, incarnation=str(n), record=record) for n, record in enumerate(records))
    known = state(1, 2, epoch="e", members=members)
    assert waiting(known) == "run 'r': waiting: the old workers of b have not ended yet"
    assert timed_out(known) == "run 'r': no round within 600 s: the old workers of b have not ended yet"
    assert missing(known) == "raise --join-timeout, or lower --shutdown-timeout of the nodes that have workers"
