"""A run as its store has it, in every state it can be in, and as another version may have written it."""

import json

import pytest

from elastic_core.api import ConfigError, Failure, FailureClass, Restart
from elastic_core.api.commands import StoreChoice
from elastic_core.api.rendezvous import RendezvousStateError
from elastic_core.api.stores import Member, Survey
from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    Ending,
    MemberRecord,
    RosterEntry,
    RoundDocument,
    Verdict,
    encode,
)
from elastic_core.reports import Absence
from elastic_core.types import Stop
from elastic_ops.status.command import _over
from elastic_ops.status.store_view import RunInStore
from elastic_ops.store import StoreReading

CHOICE = StoreChoice(backend="redis", endpoint="r:6379", run_id="bert-7", conf={})
FAILURE = Failure(
    failure_class=FailureClass.SIGNAL,
    summary="killed by SIGKILL (9)",
    node_id="b",
    round_index=0,
    at_s=12.0,
    uptime_s=11.0,
    global_rank=3,
    decision=Restart(delay_s=2.0, rule="max-restarts"),
)


def control(**changes):
    return ControlDocument(**({"epoch": "e", "attempt": 0, "secret": "s3cret"} | changes))


def round_(**changes):
    roster = (
        RosterEntry(incarnation="ia", node="a", address="10.0.0.1", agent_port=1, nproc=2),
        RosterEntry(incarnation="ib", node="b@10.0.0.2", address="", agent_port=1, nproc=4),
    )
    fields = {"epoch": "e", "token": 5, "nonce": "n", "index": 1, "restarts": 1, "changes": 0}
    return RoundDocument(**(fields | {"master_addr": "10.0.0.1", "master_port": 7, "roster": roster} | changes))


def member(incarnation, seat=1, **changes):
    fields = {"epoch": "e", "node": incarnation[1:], "state": "running", "token": 5, "nonce": "n", "nproc": 2}
    return Member(seat=seat, incarnation=incarnation, record=encode(MemberRecord(**(fields | changes))))


def view(*members, silent=(), **documents):
    found = {key: value if isinstance(value, bytes) else encode(value) for key, value in documents.items()}
    survey = Survey(members=members, silent=frozenset(silent), documents=found)
    return RunInStore(StoreReading(survey=survey, latency_s=0.002), CHOICE, "redis at r:6379").view()


def test_a_running_run():
    seen = view(member("ia"), member("ib"), member("ic", state="ready"), control=control(), round=round_())
    assert (seen.run_id, seen.state, seen.restart_count) == ("bert-7", "running", 1)
    assert [(node.node_id, node.address, node.first_rank, node.worker_count) for node in seen.nodes] == [
        ("a", "10.0.0.1", 0, 2),
        ("b@10.0.0.2", "10.0.0.2", 2, 4),
        ("c", "", None, 2),
    ]
    assert seen.waiting == ("c",)
    assert (seen.round.index, seen.round.world_size, seen.round.node_count) == (1, 6, 2)
    assert (seen.store.reachable, seen.store.latency_s) == (True, 0.002)


def test_nodes_that_are_left_out_do_not_wait_for_a_place():
    gate = Absence(by="hook 'gate' (acme 1.0)", reason="hot", for_s=60.0)
    policy = Absence(by="policy 'hw'", reason="exit code 77", for_s=20.0, refused=False)
    seen = view(
        member("ia"),
        member("ib"),
        member("ic", state="out", absence=gate),
        member("id", state="ready", absence=policy),
        control=control(),
        round=round_(),
    )
    assert seen.waiting == ()
    assert [(node.node_id, node.state) for node in seen.nodes[2:]] == [("c", "out"), ("d", "out")]
    assert [(node.absence.by, node.absence.for_s, node.absence.refused) for node in seen.nodes[2:]] == [
        ("hook 'gate' (acme 1.0)", 60.0, True),
        ("policy 'hw'", 20.0, False),
    ]


def test_nothing_secret_is_shown():
    seen = view(member("ia"), control=control(), round=round_())
    assert "s3cret" not in repr(seen)


def test_who_has_no_seat_is_lost_and_who_is_not_heard_is_silent():
    seen = view(member("ib"), silent=("ib",), control=control(), round=round_())
    assert [node.state for node in seen.nodes] == ["lost", "silent"]
    assert seen.state == "all nodes lost"


@pytest.mark.parametrize(
    ("ending", "state"), [("restart", "restarting"), ("regroup", "regrouping"), ("pause", "pause")]
)
def test_a_round_that_ended_says_how(ending, state):
    raw = json.loads(encode(control()))
    raw["ending"] = {"token": 5, "nonce": "n", "kind": ending, "reason": "r", "by": "a"}
    assert view(member("ia"), control=json.dumps(raw).encode(), round=round_()).state == state


def test_a_run_whose_last_node_has_left_is_over_for_who_watches():
    ended = Ending(token=5, nonce="n", kind="regroup", reason="a left", by="a")
    seen = view(control=control(ending=ended), round=round_())
    assert (seen.state, seen.verdict) == ("no node is left", None)
    assert _over(seen)
    for still in (
        view(member("ia"), silent=("ia",), control=control(ending=ended), round=round_()),
        view(round=round_()),
    ):
        assert not _over(still)  # it may be back


def test_the_end_of_an_earlier_round_says_nothing():
    ended = Ending(token=4, nonce="m", kind="restart", reason="r", by="a")
    assert view(member("ia"), member("ib"), control=control(ending=ended), round=round_()).state == "running"


def test_a_verdict_stands():
    verdict = Verdict(decision=Stop(reason="exit code 7"), exit_code=7, by="a")
    seen = view(control=control(verdict=verdict), round=round_())
    assert (seen.state, seen.verdict.exit_code, seen.verdict.by) == ("failed", 7, "a")


def test_before_the_first_round():
    seen = view(member("ia", state="ready", token=0, nonce=""), control=control())
    assert (seen.state, seen.round, seen.waiting) == ("waiting for a round", None, ("a",))


def test_a_node_that_still_has_workers_of_another_round_is_starting():
    seen = view(member("ia"), member("ib", token=4, nonce="m"), control=control(), round=round_())
    assert [node.state for node in seen.nodes] == ["running", "starting"]
    assert seen.state == "starting"


def test_a_round_of_another_run_of_that_name_is_left_out():
    assert view(member("ia", state="ready"), control=control(), round=round_(epoch="old")).round is None


def test_the_last_failure_is_the_last_incident():
    seen = view(member("ia"), control=control(history=(FAILURE,)), round=round_())
    last = seen.last_incident
    assert (last.rank, last.node_id, last.failure_class) == (3, "b", "signal")
    assert last.decision == "restart in 2 s (max-restarts)"


def test_words_and_fields_of_a_later_version_are_shown_or_passed_over():
    raw = json.loads(encode(control(history=(FAILURE,))))
    raw |= {"stopping": {"by": "b", "token": 5, "nonce": "n", "report": [1]}, "novelty": {"x": 1}}
    raw["history"][0]["failure_class"] = "cosmic ray"
    new = json.loads(member("ia").record) | {"state": "stopped", "exits": [1, 2]}
    a = Member(seat=1, incarnation="ia", record=json.dumps(new).encode())
    seen = view(a, member("ib"), control=json.dumps(raw).encode(), round=round_())
    assert seen.nodes[0].state == "stopped"
    assert seen.state == "stopping"
    assert seen.last_incident.failure_class == "cosmic ray"


def test_no_such_run():
    with pytest.raises(ConfigError, match=r"no run 'bert-7' in redis at r:6379"):
        view()


@pytest.mark.parametrize("raw", [b'{"v":99}', b"nonsense", b"\xff"])
def test_content_of_another_format_is_refused(raw):
    with pytest.raises(RendezvousStateError, match="control document"):
        view(control=raw)
