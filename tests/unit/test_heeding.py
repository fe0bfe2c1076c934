"""What a member tells people of a store that it can't reach, and takes from its agent."""

import pytest
from msgspec.structs import replace

from elastic_core.rendezvous import member_messages as m
from elastic_core.rendezvous.documents import Ending
from elastic_core.rendezvous.hearing import hear
from elastic_core.rendezvous.machine import step
from elastic_core.rendezvous.membership import NEVER_S, Me, State, Want, question_about

ME = Me(node="n1", incarnation="n1#1", run_id="r", where="w", fresh_epoch="e", secret="s", min_nodes=2, max_nodes=4)
FAILED = m.Failed(text="refused")
LATE_S = 0.2
"""How much later than it asked for a member on a busy host is called."""


def lines(connect_timeout_s):
    """Return when a member says what that never reaches the store, until it has left."""
    state, now_s, told = State(me=replace(ME, connect_timeout_s=connect_timeout_s)), 0.0, []
    events = (m.JoinAsked(master_port=1),)
    while True:
        done = step(state, events, now_s=now_s)
        state = done.state
        told += [(now_s, line) for line in done.announcements]
        match done.operation:
            case m.Gone():
                return told
            case m.Connect():
                now_s, events = now_s + 0.01, (FAILED,)
            case m.Pause(until_s=until_s) if (
                until_s == NEVER_S
            ):  # the join is over, and its error on its way through a busy agent
                now_s, events = now_s + 5.0, (m.LeaveAsked(),)
            case m.Pause(until_s=until_s):
                assert until_s > now_s + 0.01, "it must not turn in circles"
                now_s, events = until_s + LATE_S, ()


@pytest.mark.parametrize("connect_timeout_s", [0.5, 1.0, 1.3, 2.0])
def test_who_soon_gives_up_on_a_store_says_one_line(connect_timeout_s):
    ((at_s, line),) = lines(connect_timeout_s)
    assert isinstance(line, m.JoinFailed)
    assert connect_timeout_s <= at_s < connect_timeout_s + 2 * LATE_S


@pytest.mark.parametrize("connect_timeout_s", [4.0, 60.0])
def test_who_waits_longer_for_a_store_says_so_soon(connect_timeout_s):
    (first_s, first), (last_s, last) = lines(connect_timeout_s)
    assert isinstance(first, m.Said)
    assert "store unreachable" in first.text
    assert 1.0 <= first_s < 2.0
    assert isinstance(last, m.JoinFailed)
    assert connect_timeout_s <= last_s < connect_timeout_s + 2 * LATE_S


DECIDED = Ending(token=0, nonce="", kind="restart", reason="n2 failed", by="n2", evidence="what n2 saw")


@pytest.mark.parametrize(
    ("question", "posted"),
    [(question_about(7, "b"), (7, "b")), (question_about(6, "a"), None), (question_about(7, "a"), None), ("", None)],
    ids=["this round's", "the one's before", "one's that the store has lost", "nobody's"],
)
def test_an_answer_counts_for_the_round_that_it_was_asked_about_only(question, posted):
    """A policy thought so long that another node decided, and the next round has failed, too."""
    asked = State(me=ME, want=Want.STOP, asked=(7, "b"), asked_s=90.0)
    after = hear(asked, m.AnswerGiven(post=DECIDED, question=question), 100.0)
    assert (None if after.post is None else (after.post.token, after.post.nonce)) == posted
    assert after.asked == (asked.asked if posted is None else None)
