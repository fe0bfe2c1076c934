"""What the leader does about nodes that come and go while the first workers end."""

from elastic_core.rendezvous.documents import ControlDocument, MemberRecord, RosterEntry, RoundDocument
from elastic_core.rendezvous.duties import EndRound, GiveVerdict, NoteDone, Notes, View, judge
from elastic_core.rendezvous.roster import Candidate

ROUND = RoundDocument(
    epoch="e",
    token=1,
    nonce="x",
    index=0,
    master_addr="h",
    master_port=1,
    roster=tuple(RosterEntry(incarnation=f"{n}#", node=n, address="h", agent_port=1) for n in "ab"),
)

CONTROL = ControlDocument(epoch="e", attempt=0, secret="s")


def member(seat, node, state, token=1, nonce="x"):
    record = MemberRecord(epoch="e", node=node, state=state, seen=1, token=token, nonce=nonce)
    return Candidate(seat=seat, incarnation=f"{node}#", record=record)


def view(*members, control=CONTROL, incarnation=""):
    return View(
        now_s=0.0,
        node="a",
        nonce="y",
        min_nodes=1,
        max_nodes=3,
        first_call_s=1.0,
        last_call_s=1.0,
        max_changes=None,
        control=control,
        incarnation=incarnation,
        round=ROUND,
        members=members,
    )


A, N = member(1, "a", "running"), member(3, "n", "ready", 0, "")


def test_a_newcomer_is_taken_in_while_all_workers_run():
    assert isinstance(judge(view(A, member(2, "b", "running"), N), Notes()).duty, EndRound)


def test_nobody_is_taken_in_when_the_only_node_that_was_done_has_gone():
    first = judge(view(A, member(2, "b", "done")), Notes())
    assert first.duty is None
    later = judge(view(A, N), first.notes)
    assert later.duty is None
    assert later.why == "workers have begun to finish"


def test_a_leader_that_is_done_writes_it_down_for_its_successor():
    done, running = member(1, "a", "done"), member(2, "b", "running")
    duty = judge(view(done, running, incarnation="a#"), Notes()).duty
    assert duty == NoteDone(nonce="x", done=("a#",))
    noted = ControlDocument(epoch="e", attempt=0, secret="s", done_of="x", done=("a#",))
    assert judge(view(done, running, control=noted, incarnation="a#"), Notes()).duty is None
    # It is gone, and whoever leads now never saw it done.
    assert judge(view(running, control=noted), Notes()).duty is None
    assert isinstance(judge(view(member(2, "b", "done"), control=noted), Notes()).duty, GiveVerdict)


def test_what_was_noted_of_another_round_says_nothing():
    noted = ControlDocument(epoch="e", attempt=0, secret="s", done_of="earlier", done=("a#",))
    assert isinstance(judge(view(member(2, "b", "running"), control=noted), Notes()).duty, EndRound)
