"""Incidents of lost nodes, made of the events of an agent's feed."""

import json

import pytest
from msgspec.structs import replace

from elastic_core.agent.feed import StepTaken, described
from elastic_core.agent.machine.states import Joining, Ledger, Rejoin, Running, Step, Stopping
from elastic_core.api import FailureClass, HookSettings, Restart, Round
from elastic_core.api.commands import find_incidents, render_incident
from elastic_core.api.feed import Phase, RunEvent
from elastic_core.api.rendezvous import MemberLost, NodesWaiting, RosterMember, RoundEnded
from elastic_core.messages import RoundChanged, RoundFormed, StopRequested, WorkersStopped
from elastic_core.moments import RoundJoined
from elastic_core.rendezvous.member.leader import _reason_of
from elastic_ops.status import lost_nodes
from elastic_ops.status.lost_nodes import LostNodeFiles, LostNodes

SETTINGS = HookSettings(name="recorder", run_id="bert-7", node_id="a", backend="redis")
ROUND = Round(
    index=2, token=9, nonce="x", node_rank=0, node_count=4, local_world_size=2, base_rank=0, world_size=8,
    role="default", role_base_rank=0, role_world_size=8, master_addr="10.0.0.1", master_port=7, node_id="a",
)  # fmt: skip
MEMBERS = tuple(RosterMember(node_id=name, local_world_size=2, address=f"host-{name}") for name in "abcd")
LEDGER = Ledger(restart_count=1, membership_changes=2)
STOPPING = Stopping(ledger=LEDGER, round=ROUND, then=Rejoin())
AT_NS = 1_700_000_000_123_456_789
LOST_B = RoundEnded(reason="b lost; 3 nodes with 6 workers go on", lost=("b",))


class Kept:
    def __init__(self):
        self.lost = LostNodes(SETTINGS)
        self.observe(RoundJoined(round=ROUND, members=MEMBERS))

    def observe(self, what):
        name, values = described(what)
        self.lost.observe(RunEvent(name=name, at_s=0.0, at_ns=AT_NS, values=values))

    def take(self, state, event, phases=(), *, entered=True):
        step = Step(state=state, reason="x")
        self.observe(StepTaken(event=event, step=step, at_s=0.0, entered=entered, phases=phases))

    def change(self, change, state=STOPPING, *, entered=True):
        self.take(state, RoundChanged(change=change), entered=entered)
        return list(self.lost.take().values())


@pytest.fixture
def kept():
    return Kept()


def test_a_lost_node_is_an_incident_with_its_ranks_round_and_time(kept):
    (incident,) = kept.change(LOST_B)
    assert (incident.run_id, incident.node_id, incident.host) == ("bert-7", "b", "host-b")
    assert (incident.round_index, incident.round_token, incident.restart_count) == (2, 9, 1)
    assert (incident.at_ns, incident.at) == (AT_NS, "2023-11-14T22:13:20.123456789Z")
    assert (incident.failure_class, incident.source) == (FailureClass.NODE_LOST, "launcher")
    assert incident.summary == "b was lost (ranks 2, 3)"
    assert incident.decision == Restart(rule="membership change", reason="no restart is counted")
    assert render_incident(incident, width=80).split("\n") == [
        "── round 2 of run 'bert-7' failed: node lost; restarted " + "─" * 24,
        "host b (host-b)  source=launcher  round 2, restarts 1  2023-11-14T22:13:20.1234…",
        "node lost: b was lost (ranks 2, 3)",
        "  end of the round: b lost; 3 nodes with 6 workers go on",
        "Decision: restart (no restart is counted; membership change)",
        "─" * 80,
    ]


def test_what_followed_is_added_to_it(kept):
    kept.take(STOPPING, RoundChanged(change=LOST_B))
    kept.take(Joining(ledger=LEDGER), WorkersStopped(), (Phase(name="stop", took_s=1.5, well=True),))
    following = replace(ROUND, index=3, token=10, node_count=1, world_size=2)
    rendezvous = Phase(name="rendezvous", took_s=0.25, well=True)
    kept.take(
        Running(ledger=LEDGER, round=following, alive=frozenset({0, 1})), RoundFormed(round=following), (rendezvous,)
    )
    started = tuple(Phase(name=name, took_s=0.5, well=True) for name in ("start", "initialize", "restart"))
    kept.take(Running(ledger=LEDGER, round=following, alive=frozenset({0, 1})), RoundFormed(round=following), started)
    (incident,) = kept.lost.take().values()
    assert incident.fields["next round"] == "3, 1 node with 2 workers"
    phases = incident.phases
    assert (phases.stop_s, phases.rendezvous_s, phases.start_s) == (1.5, 0.25, 0.5)
    kept.take(Joining(ledger=LEDGER), WorkersStopped(), (Phase(name="stop", took_s=9.0, well=True),))
    assert kept.lost.take() == {}, "the next round has started: later phases are not about it"


def test_a_start_that_did_not_succeed_is_not_counted(kept):
    kept.take(STOPPING, RoundChanged(change=LOST_B))
    kept.take(Joining(ledger=LEDGER), StopRequested(signum=15), (Phase(name="start", took_s=1.5, well=False),))
    (incident,) = kept.lost.take().values()
    assert incident.phases.start_s is None


def test_several_nodes_are_one_incident(kept):
    (incident,) = kept.change(RoundEnded(reason="b, d lost; 2 nodes go on", lost=("b", "d")))
    assert incident.summary == "2 nodes were lost: b, d (ranks 2, 3, 6, 7)"
    assert incident.fields["nodes"] == "b, d"


def test_a_rack_of_nodes_stays_within_bounds(kept):
    members = tuple(RosterMember(node_id=f"n{number}", local_world_size=8) for number in range(1000))
    kept.observe(RoundJoined(round=ROUND, members=members))
    lost = tuple(member.node_id for member in members[100:600])
    (incident,) = kept.change(RoundEnded(reason="x" * 1000, lost=lost))
    assert incident.summary == "500 nodes were lost: n100, n101, n102, n103 and 496 more (ranks 800-4799)"
    assert incident.fields["nodes"].endswith("n131 and 468 more")
    assert len(incident.fields["end of the round"]) == 240
    assert incident.host == "n100"


@pytest.mark.parametrize(
    "change",
    [
        RoundEnded(reason="b left; 3 nodes go on", lost=("b",), left=("b",), planned=True),
        RoundEnded(reason="b left; 3 nodes go on", lost=("b",), left=("b",)),
        RoundEnded(reason="1 node joined; 5 nodes go on", arrived=1, planned=True),
        RoundEnded(reason=f"{_reason_of((), (), {'b': 'ECC errors'}, 0)}; 3 nodes go on", lost=("b",)),
        RoundEnded(reason="b stopped while the store was away; 4 nodes go on", lost=("b",)),
        NodesWaiting(count=1),
    ],
    ids=["drain", "left", "join", "its hook refuses", "it is back", "nodes wait"],
)
def test_nodes_that_were_not_lost_are_no_incident(kept, change):
    assert kept.change(change) == []


def test_of_nodes_that_left_and_refused_only_the_lost_one_is_an_incident(kept):
    reason = _reason_of(("c",), ("b",), {"d": "ECC errors"}, 0)
    (incident,) = kept.change(RoundEnded(reason=reason, lost=("b", "c", "d"), left=("b",)))
    assert (incident.node_id, incident.summary) == ("c", "c was lost (ranks 4, 5)")


def test_the_same_end_twice_is_one_incident_and_the_next_round_has_its_own(kept):
    assert len(kept.change(LOST_B)) == 1
    assert kept.change(LOST_B) == []
    kept.observe(RoundJoined(round=replace(ROUND, index=3, token=10), members=MEMBERS))
    (incident,) = kept.change(LOST_B)
    assert incident.round_index == 3


def test_a_handler_without_decisions_for_all_nodes_reports_a_lost_member(kept):
    assert (
        kept.change(
            MemberLost(node_id="c"), Running(ledger=LEDGER, round=ROUND, alive=frozenset({0, 1})), entered=False
        )
        == []
    )
    (incident,) = kept.change(MemberLost(node_id="c"))
    assert (incident.summary, incident.fields) == ("c was lost (ranks 4, 5)", {"end of the round": "c lost"})


def test_a_node_that_was_cut_off_records_it_unless_it_leaves(kept):
    cut_off = RoundEnded(reason="the others have formed a round without this node", lost=("a",), stop_within_s=0.0)
    (incident,) = kept.change(cut_off)
    assert incident.summary == "this node was lost: the others have formed a round without this node"
    leaving = Kept()
    leaving.take(STOPPING, StopRequested(signum=15))
    assert leaving.change(cut_off) == []


def test_a_backend_that_does_not_know_its_nodes_gives_no_ranks(kept):
    kept.observe(RoundJoined(round=ROUND))
    (incident,) = kept.change(LOST_B)
    assert (incident.summary, incident.host) == ("b was lost", "b")


def test_files_are_numbered_apart_replaced_and_bounded(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(lost_nodes, "MOST_KEPT", 4)
    (incident,) = kept.change(LOST_B)
    files = LostNodeFiles()
    for number in range(9):
        one = replace(incident, at_ns=AT_NS + number, round_index=number)
        files.write(tmp_path, number, one)
        files.write(tmp_path, number, replace(one, fields={"again": "yes"}))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"incident-lost-{number}.json" for number in (0, 6, 7, 8)]
    assert (tmp_path / names[0]).stat().st_mode & 0o777 == 0o600
    assert [one.incident.round_index for one in find_incidents(tmp_path)] == [0, 6, 7, 8]
    assert json.loads((tmp_path / names[0]).read_text())["fields"] == {"again": "yes"}
    LostNodeFiles().write(tmp_path, 0, incident)
    assert (tmp_path / "incident-lost-9.json").exists(), "files of an earlier run in a chosen directory stay"


def test_an_incident_that_could_not_be_written_comes_again_unless_more_is_known(kept):
    kept.take(STOPPING, RoundChanged(change=LOST_B))
    first = kept.lost.take()
    kept.lost.return_unwritten(first)
    assert kept.lost.take() == first
    following = replace(ROUND, index=3)
    kept.take(Running(ledger=LEDGER, round=following, alive=frozenset({0, 1})), RoundFormed(round=following))
    kept.lost.return_unwritten(first)
    assert "next round" in kept.lost.take()[0].fields
