"""How agents of a hosted round learn of each other: on a store in memory, one thread for each."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from elastic_core.errors import RendezvousStateError, RendezvousTimeoutError, WaitCancelledError
from elastic_core.system.clock import WaitBudget
from elastic_core.types import Decided, Failure, FailureClass, Restart, RosterMember, Stop
from elastic_torchrun.hosting import roll_call
from elastic_torchrun.hosting.roll_call import Books, RoundTalk, Word, decode, unlike_names

FAILURE = Failure(
    failure_class=FailureClass.EXIT, summary="exit code 3", node_id="b", round_index=0, at_s=1.0, uptime_s=1.0
)


class Store:
    """torch's methods on a dict."""

    def __init__(self):
        self._lock = threading.Lock()
        self._values = {}

    def set(self, key, value):
        self._values[key] = value

    def get(self, key):
        return self._values[key]

    def check(self, keys):
        return all(key in self._values for key in keys)

    def add(self, key, amount):
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount
            return self._values[key]


def word(node, mark, **books):
    return Word(mark=mark, member=RosterMember(node_id=node, local_world_size=2), books=Books(**books))


def meet(store, words):
    """Let the agents of one round meet, and return their talks and rosters by rank."""
    talks = [RoundTalk(store, rank=rank, count=len(words)) for rank in range(len(words))]

    def one(rank):
        master = (lambda: (f"host-of-{words[0].mark}", 4711)) if rank == 0 else pytest.fail
        return talks[rank].meet(words[rank], master, WaitBudget.lasting(10))

    with ThreadPoolExecutor(len(words)) as pool:
        return talks, list(pool.map(one, range(len(words))))


def test_all_get_one_roster_and_the_books_of_whoever_was_there_longest():
    words = [word("new", "m0"), word("old", "m1", rounds=3, restarts=1, changes=2), word("middle", "m2", rounds=1)]
    _, rosters = meet(Store(), words)
    assert rosters[0] == rosters[1] == rosters[2]
    assert rosters[0].words == tuple(words)
    assert (rosters[0].master_addr, rosters[0].master_port) == ("host-of-m0", 4711)
    assert rosters[0].books == words[1].books


def test_words_of_an_earlier_round_in_the_same_store_do_no_harm():
    store = Store()
    first = meet(store, [word("a", "1"), word("b", "2")])
    first[0][1].decide(Decided(decision=Restart(), failure=FAILURE))
    for turn in range(5):
        talks, rosters = meet(store, [word("b", f"{turn}-3"), word("a", f"{turn}-4")])
        assert rosters[0] == rosters[1]
        assert [each.mark for each in rosters[0].words] == [f"{turn}-3", f"{turn}-4"]
        assert rosters[0].nonce != first[1][0].nonce
        assert [talk.decision() for talk in talks] == [None, None]


def test_first_decision_stands():
    talks, _ = meet(Store(), [word("a", "1"), word("b", "2")])
    first = Decided(decision=Restart(delay_s=0.5, rule="intensity"), failure=FAILURE)
    talks[1].decide(first)
    talks[0].decide(Decided(decision=Stop(reason="no"), failure=FAILURE))
    assert [talk.decision() for talk in talks] == [first, first]


def test_agent_that_never_answers_is_waited_for_for_a_bounded_time(monkeypatch):
    monkeypatch.setattr(roll_call, "LIMIT_S", 0.1)
    with pytest.raises(RendezvousTimeoutError, match="a round of 2 nodes was formed, and not all of them answered"):
        RoundTalk(Store(), rank=1, count=2).meet(word("b", "2"), pytest.fail, WaitBudget())


def test_wait_for_others_can_be_cancelled():
    wait = WaitBudget()
    wait.cancel()
    with pytest.raises(WaitCancelledError):
        RoundTalk(Store(), rank=0, count=2).meet(word("a", "1"), lambda: ("a", 1), wait)


def test_what_is_no_record_is_refused():
    for raw in (b"\x80\x04K\x01.", b"[]", b'{"mark": 3}', b""):
        with pytest.raises(RendezvousStateError, match="no Word where one was expected"):
            decode(raw, Word)


def test_agents_of_one_host_are_told_apart():
    members = [RosterMember(node_id=name, local_world_size=1) for name in ("vm", "other", "vm")]
    names = [member.node_id for member in unlike_names(members, ["aaaaaa", "bbbbbb", "cccccc"])]
    assert names == ["vm#aaaa", "other", "vm#cccc"]
