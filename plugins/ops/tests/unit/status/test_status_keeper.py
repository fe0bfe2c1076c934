"""The agent's status, made of the events of its feed."""

import pytest
from msgspec.structs import replace

from elastic_core.agent.feed import StepTaken, described
from elastic_core.agent.machine.states import (
    Deciding,
    Gating,
    Joining,
    Ledger,
    Refused,
    Running,
    Step,
    Stopping,
)
from elastic_core.agent.machine.states import Rejoin as Again
from elastic_core.api import HookSettings
from elastic_core.api.feed import RunEvent
from elastic_core.api.tools import AgentIdentity
from elastic_core.messages import DecisionMade, JoinAllowed, LeftOut, RoundChanged, RoundFormed
from elastic_core.moments import AgentStopped, FieldsPublished, RoundJoined, StoreReachable, WorkerEnded, WorkersStarted
from elastic_core.rendezvous.member.leader import _reason_of
from elastic_core.reports import Absence
from elastic_core.types import (
    Decided,
    Failure,
    FailureClass,
    Ignore,
    MemberLost,
    NodesWaiting,
    Restart,
    Resumed,
    RosterMember,
    Round,
    RoundEnded,
    Suspended,
    WorkerExit,
)
from elastic_ops.status.keeper import StatusKeeper

SETTINGS = HookSettings(
    name="recorder", run_id="bert-7", node_id="n0", backend="redis", entry_point="train.py", max_restarts=3,
    policy="intensity", endpoint="r:6379",
)  # fmt: skip
ROUND = Round(
    index=2, token=9, nonce="secret-nonce", node_rank=1, node_count=2, local_world_size=2, base_rank=4, world_size=6,
    role="default", role_base_rank=4, role_world_size=6, master_addr="10.0.0.1", master_port=7, node_id="n0@10.0.0.2",
)  # fmt: skip
LEDGER = Ledger(restart_count=1, membership_changes=2)
STOPPING = Stopping(ledger=LEDGER, round=ROUND, then=Again())
RUNNING = Running(ledger=LEDGER, round=ROUND, alive=frozenset({0, 1}))


class Kept:
    def __init__(self, settings=SETTINGS):
        self.keeper = StatusKeeper(settings, AgentIdentity(pid=1, started_ns=5))
        self.at_ns = 1_000

    def observe(self, what):
        self.at_ns += 1_000
        name, values = described(what)
        self.keeper.observe(RunEvent(name=name, at_s=0.0, at_ns=self.at_ns, values=values))

    def take(self, state, reason="x", event=None, *, entered=True):
        step = Step(state=state, reason=reason)
        self.observe(StepTaken(event=event or JoinAllowed(), step=step, at_s=0.0, entered=entered))

    @property
    def now(self):
        return self.keeper.status(where="redis at r:6379", written_ns=self.at_ns)


@pytest.fixture
def kept():
    return Kept()


def ended(rank, code, stop_signal=None):
    exit = WorkerExit(
        local_rank=rank, global_rank=4 + rank, pid=70 + rank, code=code, at_s=9.0, at_ns=9, runtime_s=1.0,
        stop_signal=stop_signal,
    )  # fmt: skip
    return WorkerEnded(round_index=2, exit=exit)


def test_all_of_it_is_there_and_nothing_secret(kept):
    kept.take(RUNNING, "workers run")
    kept.observe(WorkersStarted(round=ROUND, pids=(70, 71)))
    kept.observe(ended(0, 0))
    kept.observe(FieldsPublished(hook="gate", fields={"healthy": True}))
    kept.keeper.observe(RunEvent(name="listening", at_s=0.0, at_ns=1, values={"address": "/s"}, source="control"))
    status = kept.now
    assert (status.run_id, status.node_id, status.backend, status.script) == (
        "bert-7",
        "n0@10.0.0.2",
        "redis",
        "train.py",
    )
    assert (status.state, status.reason) == ("running", "workers run")
    assert (status.restart_count, status.max_restarts, status.membership_changes) == (1, 3, 2)
    assert (status.round.index, status.round.base_rank, status.round.world_size) == (2, 4, 6)
    assert [(w.global_rank, w.pid, w.state) for w in status.workers] == [(4, 70, "done"), (5, 71, "alive")]
    assert (status.where, status.control, status.hooks) == ("redis at r:6379", "/s", {"gate": {"healthy": True}})
    assert "secret" not in repr(status)


@pytest.mark.parametrize(("code", "stop_signal"), [(1, None), (-9, None), (0, 15)])
def test_a_worker_that_did_not_end_well_by_itself_has_ended(kept, code, stop_signal):
    kept.observe(WorkersStarted(round=ROUND, pids=(70, 71)))
    kept.observe(ended(1, code, stop_signal))
    assert [worker.state for worker in kept.now.workers] == ["alive", "ended"]


def test_only_the_built_in_policy_has_a_number_of_restarts():
    assert Kept(replace(SETTINGS, policy="rules")).now.max_restarts is None


@pytest.mark.parametrize(
    "state",
    [Deciding(ledger=LEDGER, running=RUNNING, round=ROUND), Stopping(ledger=LEDGER, round=ROUND, then=Again())],
)
def test_every_kind_of_state_has_its_counts(kept, state):
    kept.take(RUNNING)
    kept.take(state)
    assert (kept.now.restart_count, kept.now.round.index) == (1, 2)


def test_the_round_stays_known_while_the_next_one_forms(kept):
    kept.take(RUNNING)
    since_ns = kept.at_ns
    kept.take(RUNNING, entered=False)
    assert kept.now.since_ns == since_ns
    kept.take(Joining(ledger=LEDGER), "next round")
    assert (kept.now.state, kept.now.round.index, kept.now.since_ns) == ("joining", 2, kept.at_ns)


def test_trouble_with_the_store_is_kept_until_it_is_over(kept):
    kept.observe(StoreReachable(reachable=False, text="store unreachable: connection refused; workers go on"))
    assert kept.now.trouble.startswith("store unreachable: connection refused")
    assert kept.now.trouble_since_ns == kept.at_ns
    kept.observe(StoreReachable(reachable=True, text="store back: redis at r:6379"))
    assert (kept.now.trouble, kept.now.trouble_since_ns) == ("", 0)


def test_a_suspended_rendezvous_is_trouble_too(kept):
    kept.take(RUNNING, event=RoundChanged(change=Suspended(reason="no quorum")))
    assert kept.now.trouble == "no quorum"
    kept.take(RUNNING, event=RoundChanged(change=Resumed()))
    assert kept.now.trouble == ""


HOT = Absence(by="hook 'gate' (acme 1.0)", reason="hot", for_s=2.0)
LEFT_OUT = Absence(by="policy 'hw'", reason="exit code 77", for_s=20.0, refused=False)


def test_what_keeps_the_node_out_and_until_when_is_there_as_long_as_it_does(kept):
    kept.take(Refused(ledger=LEDGER, absence=HOT), "hot")
    absence = kept.now.absence
    assert (absence.by, absence.reason, absence.refused) == (HOT.by, "hot", True)
    assert absence.until_ns - absence.since_ns == 2_000_000_000
    kept.take(Gating(ledger=LEDGER), "the hooks are asked again")
    kept.take(Refused(ledger=LEDGER, absence=replace(HOT, for_s=4.0)), "hot")
    again = kept.now.absence
    assert (again.since_ns, again.until_ns > absence.until_ns) == (absence.since_ns, True)
    kept.take(Joining(ledger=LEDGER), "joining")
    assert kept.now.absence is None


def test_a_policys_exclusion_is_there_until_the_rendezvous_ends_it(kept):
    kept.observe(LeftOut(absence=LEFT_OUT))
    kept.take(Joining(ledger=LEDGER), "joining")
    assert (kept.now.absence.by, kept.now.absence.refused) == ("policy 'hw'", False)
    kept.observe(LeftOut(absence=None))
    assert kept.now.absence is None


def test_the_end_has_no_workers_any_more(kept):
    kept.observe(WorkersStarted(round=ROUND, pids=(70, 71)))
    kept.observe(AgentStopped(exit_code=3, reason="exit code 3", outcome="failed"))
    assert (kept.now.end.outcome, kept.now.end.exit_code, kept.now.end.reason) == ("failed", 3, "exit code 3")


def test_the_last_rounds_say_what_ended_them(kept):
    def formed(index):
        kept.take(Joining(ledger=LEDGER), event=RoundFormed(round=replace(ROUND, index=index, token=index + 1)))

    def changed(change):
        kept.take(Joining(ledger=LEDGER), event=RoundChanged(change=change))

    failure = Failure(
        failure_class=FailureClass.SIGNAL, summary="killed", node_id="b", round_index=1, at_s=1.0, uptime_s=1.0
    )
    formed(0)
    changed(RoundEnded(reason="b lost; 1 node with 2 workers goes on", lost=("b",)))
    formed(1)
    kept.take(Joining(ledger=LEDGER), event=DecisionMade(failure=failure, decision=Ignore()))
    kept.take(Joining(ledger=LEDGER), event=DecisionMade(failure=failure, decision=Restart()))
    changed(Decided(decision=Restart(), failure=replace(failure, summary="another word on what is over")))
    formed(2)
    changed(Decided(decision=Restart(rule="hook 'act' requests a restart")))
    formed(3)
    past = kept.now.rounds
    assert [(one.index, one.token, one.ended_by, one.reason) for one in past] == [
        (0, 1, "membership", "b lost; 1 node with 2 workers goes on"),
        (1, 2, "failure", "killed"),
        (2, 3, "restart", "hook 'act' requests a restart"),
        (3, 4, "", ""),
    ]
    assert [bool(one.ended_ns) for one in past] == [True, True, True, False]
    assert (past[3].node_count, past[3].world_size, past[3].began_ns > 0) == (2, 6, True)
    assert kept.now.earlier_rounds == 0
    for index in range(4, 100):
        formed(index)
    assert [one.index for one in kept.now.rounds] == list(range(36, 100))
    assert kept.now.earlier_rounds == 36


def members(names):
    return tuple(RosterMember(node_id=name, local_world_size=2) for name in names)


def rounds_of(kept, *rounds):
    """Play rounds, each with its nodes and the change that ended it, and return what is kept about them."""
    for index, (names, change) in enumerate(rounds):
        round_ = replace(ROUND, index=index, token=index + 1, node_count=len(names))
        kept.take(Joining(ledger=LEDGER), event=RoundFormed(round=round_))
        kept.observe(RoundJoined(round=round_, members=members(names)))
        if change is not None:
            kept.take(STOPPING, event=RoundChanged(change=change))
    return [(past.joined, past.left, past.lost) for past in kept.now.rounds]


def test_a_round_has_the_nodes_that_joined_left_and_were_lost_since_the_one_before(kept):
    assert rounds_of(
        kept,
        ("ab", RoundEnded(reason="1 node joined; 3 nodes go on", arrived=1, planned=True)),
        ("abc", RoundEnded(reason="b lost; 2 nodes go on", lost=("b",))),
        ("ac", RoundEnded(reason="c left; b lost; 1 node joined", lost=("c", "b"), left=("c",), arrived=1)),
        ("ad", RoundEnded(reason="d lost; 1 node left of at least 2", lost=("d",))),
        ("ad", Decided(decision=Restart(exclude_nodes=("d",)))),
        ("ae", None),
    ) == [
        ((), (), ()),
        (("c",), (), ()),
        ((), (), ("b",)),
        (("d",), ("c",), ("b",)),
        (("d",), (), ("d",)),  # it is back
        (("e",), ("d",), ()),
    ]
    assert kept.now.rounds[3].ended_by == "membership"


def test_a_node_whose_hook_refuses_has_left(kept):
    reason = f"{_reason_of((), (), {'b': 'ECC errors'}, 0)}; 1 node goes on"
    assert rounds_of(kept, ("ab", RoundEnded(reason=reason, lost=("b",))), ("a", None))[1] == ((), ("b",), ())


def test_many_nodes_are_counted_and_some_are_named(kept):
    names = [f"n{number:03}" for number in range(1000)]
    lost, arrived = tuple(names[:500]), names[500:]
    rounds_of(kept, (names[:600], RoundEnded(reason="rack down", lost=lost)), (arrived, None))
    past = kept.now.rounds[1]
    assert (past.lost, past.lost_count) == (tuple(names[:32]), 500)
    assert (past.joined, past.joined_count) == (tuple(names[600:632]), 400)
    assert (past.left, past.left_count) == ((), 0)


def test_without_names_of_nodes_a_round_has_only_those_by_which_the_one_before_ended(kept):
    assert rounds_of(kept, ("", RoundEnded(reason="b lost", lost=("b",))), ("", None)) == [
        ((), (), ()),
        ((), (), ("b",)),
    ]


def test_a_handler_without_decisions_for_all_nodes_ends_a_round_by_nodes_that_come_or_go(kept):
    found = rounds_of(kept, ("ab", MemberLost(node_id="b")), ("a", NodesWaiting(count=1)), ("ac", None))
    assert found == [((), (), ()), ((), (), ("b",)), (("c",), (), ())]
    assert [past.reason for past in kept.now.rounds] == ["b lost", "1 node joined", ""]
