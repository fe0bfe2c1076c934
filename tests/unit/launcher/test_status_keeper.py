"""The agent's status: written after bursts of change, told whole, and never by the clock."""

import pytest
from msgspec.structs import replace

from elastic_core.agent.feed import StepTaken
from elastic_core.agent.machine.states import (
    Created,
    Ending,
    Gating,
    Joining,
    Ledger,
    Refused,
    Running,
    Settling,
    Step,
    Stopping,
)
from elastic_core.agent.machine.states import Rejoin as Again
from elastic_core.agent.parts import AgentResult
from elastic_core.launcher.status_keeper import StatusKeeper
from elastic_core.messages import DecisionMade, LeftOut, RoundChanged, RoundFormed
from elastic_core.moments import StoreReachable
from elastic_core.options.settings import Entrypoint, RunSettings
from elastic_core.reports import Absence
from elastic_core.rundir import status_file
from elastic_core.rundir.status_file import is_running, own_identity, read_status, write_status
from elastic_core.status import AgentIdentity
from elastic_core.types import (
    Decided,
    Failure,
    FailureClass,
    Ignore,
    PolicySettings,
    RendezvousSettings,
    Restart,
    Resumed,
    Round,
    RoundEnded,
    Suspended,
)

SETTINGS = RunSettings(
    entrypoint=Entrypoint(argv=("train.py",), name="train.py"),
    nodes=RendezvousSettings(run_id="bert-7", backend="redis", endpoint="redis://u:secret@r:6379"),
    restarts=PolicySettings(name="intensity", max_restarts=3),
)
ROUND = Round(
    index=2, token=9, nonce="secret-nonce", node_rank=1, node_count=2, local_world_size=2, base_rank=4, world_size=6,
    role="default", role_base_rank=4, role_world_size=6, master_addr="10.0.0.1", master_port=7, node_id="n0@10.0.0.2",
)  # fmt: skip
LEDGER = Ledger(restart_count=1, membership_changes=2)


class Workers:
    pids, alive = {0: 70, 1: 71}, frozenset({0, 1})


class Writer:
    def __init__(self, path, *, failed):
        self.path, self.written, self.closed = path, [], 0

    def put(self, status):
        self.written.append(status)

    def close(self, *, within_s):
        self.closed += 1


class Rig:
    """A keeper whose timers and writer are the test's."""

    def __init__(self, folder, monkeypatch):
        monkeypatch.setattr(status_file, "StatusWriter", Writer)
        self.timers, self.incident, self.where = [], "", lambda: "redis at r:6379"
        self.keeper = StatusKeeper(
            SETTINGS,
            node_id="n0",
            run_dir=folder,
            call_later=lambda delay_s, callback: self.timers.append(callback),
            post=lambda callback: callback(),
            notice=lambda text: None,
            where=lambda: self.where(),
            last_incident=lambda: self.incident,
        )
        self.keeper.workers = Workers()

    def take(self, state, reason="x", event=None):
        self.keeper.observe(StepTaken(event=event, step=Step(state=state, reason=reason), at_s=0.0, entered=True))

    def fire(self):
        timers, self.timers = self.timers, []
        for callback in timers:
            callback()

    @property
    def written(self):
        writer = self.keeper._writer
        return [] if writer is None else writer.written

    def running(self, **changes):
        fields = {"ledger": LEDGER, "round": ROUND, "started_s": 1.0, "alive": frozenset({0, 1})}
        return Running(**(fields | changes))


@pytest.fixture
def rig(tmp_path, monkeypatch):
    return Rig(tmp_path, monkeypatch)


def test_nothing_is_written_before_the_workers_run_and_then_once_for_all(rig):
    rig.take(Joining(ledger=Ledger()), "joining")
    assert rig.timers == []
    rig.keeper.warm()
    rig.take(rig.running(), "workers run")
    assert len(rig.timers) == 1
    rig.fire()
    (status,) = rig.written
    assert (status.state, status.reason) == ("running", "workers run")
    assert rig.timers == []  # idle: nothing is due


def test_all_of_it_is_told_and_nothing_secret(rig):
    rig.incident = "/r/incident.json"
    rig.keeper.warm()
    rig.take(rig.running(alive=frozenset({1}), done=frozenset({0})), "x")
    Workers.alive = frozenset({1})
    rig.fire()
    Workers.alive = frozenset({0, 1})
    (status,) = rig.written
    assert (status.run_id, status.node_id, status.backend) == ("bert-7", "n0@10.0.0.2", "redis")
    assert (status.restart_count, status.max_restarts, status.membership_changes) == (1, 3, 2)
    assert (status.round.index, status.round.base_rank, status.round.world_size) == (2, 4, 6)
    assert [(w.global_rank, w.pid, w.state) for w in status.workers] == [(4, 70, "done"), (5, 71, "alive")]
    assert (status.where, status.last_incident) == ("redis at r:6379", "/r/incident.json")
    assert "secret" not in repr(status)


@pytest.mark.parametrize(
    "state",
    [
        Settling(running=Running(ledger=LEDGER, round=ROUND, started_s=1.0, alive=frozenset()), exits=()),
        Stopping(ledger=LEDGER, round=ROUND, then=Again()),
    ],
)
def test_every_kind_of_state_has_its_counts(rig, state):
    rig.keeper.warm()
    rig.take(state, "x")
    rig.fire()
    assert rig.written[-1].restart_count == 1
    assert rig.written[-1].round.index == 2


def test_the_round_stays_known_while_the_next_one_forms(rig):
    rig.keeper.warm()
    rig.take(rig.running(), "x")
    rig.take(Joining(ledger=LEDGER), "next round")
    rig.fire()
    assert (rig.written[-1].state, rig.written[-1].round.index) == ("joining", 2)


def test_trouble_with_the_store_is_kept_until_it_is_over(rig):
    rig.keeper.warm()
    text = "store unreachable: connection refused; workers go on"
    rig.keeper.observe(StoreReachable(reachable=False, text=text))
    rig.fire()
    assert rig.written[-1].trouble.startswith("store unreachable: connection refused")
    assert rig.written[-1].trouble_since_ns > 0
    rig.keeper.observe(StoreReachable(reachable=True, text="store back: redis at r:6379"))
    rig.fire()
    assert (rig.written[-1].trouble, rig.written[-1].trouble_since_ns) == ("", 0)


def test_a_suspended_rendezvous_is_trouble_too(rig):
    rig.keeper.warm()
    rig.take(rig.running(), event=RoundChanged(change=Suspended(reason="no quorum")))
    rig.fire()
    assert rig.written[-1].trouble == "no quorum"
    rig.take(rig.running(), event=RoundChanged(change=Resumed()))
    rig.fire()
    assert rig.written[-1].trouble == ""


HOT = Absence(by="hook 'gate' (acme 1.0)", reason="hot", for_s=2.0)
LEFT_OUT = Absence(by="policy 'hw'", reason="exit code 77", for_s=20.0, refused=False)


def test_who_keeps_the_node_out_and_until_when_is_told_as_long_as_it_is(rig):
    rig.keeper.warm()
    ledger = Ledger()
    rig.take(Refused(ledger=ledger, absence=HOT), "hot")
    rig.fire()
    absence = rig.written[-1].absence
    assert (absence.by, absence.reason, absence.refused) == (HOT.by, "hot", True)
    assert absence.until_ns - absence.since_ns == 2_000_000_000
    rig.take(Gating(ledger=ledger), "the hooks are asked again")
    rig.take(Refused(ledger=ledger, absence=replace(HOT, for_s=4.0)), "hot")
    rig.fire()
    again = rig.written[-1].absence
    assert (again.since_ns, again.until_ns > absence.until_ns) == (absence.since_ns, True)
    rig.take(Joining(ledger=ledger), "joining")
    rig.fire()
    assert rig.written[-1].absence is None


def test_a_policys_exclusion_is_told_until_the_rendezvous_says_that_it_is_over(rig):
    rig.keeper.warm()
    rig.take(Joining(ledger=LEDGER), "joining")
    rig.keeper.observe(LeftOut(absence=LEFT_OUT))
    rig.take(Joining(ledger=LEDGER), "joining")
    rig.fire()
    absence = rig.written[-1].absence
    assert (absence.by, absence.refused) == ("policy 'hw'", False)
    rig.keeper.observe(LeftOut(absence=None))
    rig.fire()
    assert rig.written[-1].absence is None


def test_a_plugin_that_can_not_say_where_its_store_is_does_no_harm(rig):
    rig.where = lambda: 1 / 0
    rig.keeper.warm()
    rig.fire()
    assert rig.written[-1].where == ""


@pytest.mark.parametrize("kept", [True, False])
def test_the_end_is_left_where_the_directory_is(rig, kept):
    rig.keeper.warm()
    rig.take(rig.running(), "x")
    result = AgentResult(exit_code=3, reason="exit code 3", ending=Ending.FAILED)
    rig.keeper.end(result, kept=kept)
    ends = [status.end for status in rig.written]
    assert [(end.outcome, end.exit_code) for end in ends] == ([("failed", 3)] if kept else [])
    rig.fire()  # what was due comes too late
    rig.take(Created(), "x")
    assert rig.timers == []
    assert len(rig.written) == len(ends)


# --- the file


def test_the_file_is_its_owners_and_comes_back_as_it_was(rig, tmp_path):
    rig.keeper.warm()
    rig.take(rig.running(), "x")
    rig.fire()
    path = tmp_path / "status.json"
    write_status(path, rig.written[-1])
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_status(path) == rig.written[-1]
    assert [each.name for each in tmp_path.iterdir()] == ["status.json"]


def test_a_process_is_known_by_more_than_its_number():
    own = own_identity(host="h", started_ns=1)
    assert is_running(own) is True
    fields = {name: getattr(own, name) for name in AgentIdentity.__struct_fields__}
    assert is_running(AgentIdentity(**(fields | {"start_ticks": own.start_ticks - 1}))) is False
    assert is_running(AgentIdentity(**(fields | {"pid": 2**22 + 1}))) is False
    assert is_running(AgentIdentity(**(fields | {"boot_id": "another"}))) is None
    assert is_running(AgentIdentity(**(fields | {"pid_namespace": "pid:[1]"}))) is None


def test_the_last_rounds_say_what_ended_them(rig):
    def formed(index):
        rig.take(Joining(ledger=LEDGER), event=RoundFormed(round=replace(ROUND, index=index, token=index + 1)))

    def changed(change):
        rig.take(Joining(ledger=LEDGER), event=RoundChanged(change=change))

    failure = Failure(
        failure_class=FailureClass.SIGNAL, summary="killed", node_id="b", round_index=1, at_s=1.0, uptime_s=1.0
    )
    formed(0)
    changed(RoundEnded(reason="b lost; 1 node with 2 workers goes on", lost=("b",)))
    formed(1)
    rig.take(Joining(ledger=LEDGER), event=DecisionMade(failure=failure, decision=Ignore()))
    rig.take(Joining(ledger=LEDGER), event=DecisionMade(failure=failure, decision=Restart()))
    changed(Decided(decision=Restart(), failure=replace(failure, summary="another word on what is over")))
    formed(2)
    changed(Decided(decision=Restart(rule="hook 'act' asks for a restart")))
    formed(3)
    past = rig.keeper.now().rounds
    assert [(one.index, one.token, one.ended_by, one.reason) for one in past] == [
        (0, 1, "membership", "b lost; 1 node with 2 workers goes on"),
        (1, 2, "failure", "killed"),
        (2, 3, "restart", "hook 'act' asks for a restart"),
        (3, 4, "", ""),
    ]
    assert [bool(one.ended_ns) for one in past] == [True, True, True, False]
    assert (past[3].node_count, past[3].world_size, past[3].began_ns > 0) == (2, 6, True)
    for index in range(4, 40):
        formed(index)
    assert [one.index for one in rig.keeper.now().rounds] == list(range(24, 40))
