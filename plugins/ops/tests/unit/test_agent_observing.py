"""What the agent's metrics and events say of a run, step by step, and that no handler is felt by it."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from elastic_core import messages, moments
from elastic_core.agent.feed import Phases, StepTaken, described
from elastic_core.agent.machine import states as s
from elastic_core.agent.machine.states import Step
from elastic_core.launcher import LaunchConfig
from elastic_core.moments import FieldsPublished, RanksAssigned, StoreReachable
from elastic_core.options.settings import Entrypoint
from elastic_core.reports import Phase, RunEvent
from elastic_core.types import (
    ErrorRecord,
    FailedWorker,
    FailureClass,
    Origin,
    Record,
    Restart,
    RoundEnded,
    Stop,
    WorkerExit,
)
from elastic_ops.exporters.agent_events import AgentEvents, Event, Identity, RdzvEvent
from elastic_ops.exporters.agent_metrics import AgentMetrics, heartbeats
from elastic_ops.exporters.delivery import STRIKES, Guard
from elastic_ops.exporters.looks import Beat, CallCount, StoreMeter
from elastic_ops.metrics.table import BY_NAME, GROUP, Kind
from elastic_plugin_kit import samples
from elastic_torchrun.launcher.run_settings import settings_of_config

LEDGER = s.Ledger()
ROUND = samples.sample_round(index=3, node_rank=1, node_count=2, base_rank=2, world_size=4, role_base_rank=2)
RUNNING = s.Running(ledger=LEDGER, round=ROUND, alive=frozenset({0, 1}))
STOPPING = s.Stopping(ledger=LEDGER, round=ROUND, then=s.Rejoin())
BASE_NS = 1_700_000_000_000_000_000


class Observed(Record, frozen=True, kw_only=True):
    at_s: float
    at_ns: int
    what: object

    @property
    def event(self):
        """As the feed has it."""
        name, values = described(self.what)
        return RunEvent(name=name, at_s=self.at_s, at_ns=self.at_ns, values=values)


def seen(at_s, what):
    return Observed(at_s=at_s, at_ns=BASE_NS + int(at_s * 1e9), what=what)


def entered(at_s, state):
    return seen(at_s, StepTaken(event=messages.JoinAllowed(), step=Step(state=state), at_s=at_s, entered=True))


def ended(rank, code, stop_signal=None):
    exit = WorkerExit(
        local_rank=rank, global_rank=2 + rank, pid=70 + rank, code=code, at_s=9.0, at_ns=BASE_NS + 9_000_000_000,
        runtime_s=1.0, stop_signal=stop_signal,
    )  # fmt: skip
    return moments.WorkerEnded(round_index=3, exit=exit)


def failure_seen(rank=1, kind=FailureClass.USER_EXCEPTION):
    exit = ended(rank, 1).exit
    worker = FailedWorker(
        exit=exit,
        origin=Origin.INTRINSIC,
        failure_class=kind,
        summary="ValueError: boom",
        at_ns=exit.at_ns - 500_000_000,
        error=ErrorRecord(source="hook", type="ValueError", message="boom", timestamp_ns=5_000_000_000, callstack="T"),
    )
    return moments.FailureSeen(failure=samples.sample_failure(failure_class=kind, local_rank=rank), workers=(worker,))


START = (
    seen(0.0, moments.AgentStarted(run_id="r", node_id="n1", run_dir="/d", pid=1)),
    entered(0.0, s.Gating(ledger=LEDGER)),
    seen(0.0, moments.RoundJoining(round_index=3)),
    entered(1.0, s.Joining(ledger=LEDGER)),
    seen(3.9, RanksAssigned(took_s=0.5)),
    entered(4.0, s.Preparing(ledger=LEDGER, round=ROUND)),
    seen(4.0, moments.RoundJoined(round=ROUND)),
    seen(4.0, moments.WorkersStarting(round=ROUND, restart_count=1)),
    entered(4.5, s.Starting(ledger=LEDGER, round=ROUND)),
    entered(6.0, RUNNING),
    seen(6.0, moments.WorkersStarted(round=ROUND, pids=(70, 71))),
)
RESTART = (
    seen(9.1, failure_seen()),
    seen(9.2, moments.DecisionTaken(failure=samples.sample_failure(), decision=Restart(), policy="intensity")),
    entered(9.2, STOPPING),
    entered(9.7, s.Waiting(ledger=LEDGER)),
    entered(10.7, s.Gating(ledger=LEDGER)),
    entered(10.7, s.Joining(ledger=LEDGER)),
    entered(11.0, s.Preparing(ledger=LEDGER, round=ROUND)),
    seen(11.0, moments.WorkersStarting(round=ROUND, restart_count=2)),
    entered(11.2, RUNNING),
)


def with_phases(observed):
    """As the agent publishes them: each step with the phases that it ends."""
    machine = Phases()
    for each in observed:
        if isinstance(each.what, StepTaken):
            ended = tuple(machine.enter(each.what.step.state, each.at_s))
            each = replace(each, what=replace(each.what, phases=ended))
        yield each


def phases(*steps):
    machine = Phases()
    return [phase for at_s, state in steps for phase in machine.enter(state, at_s)]


def test_phases_of_a_start():
    steps = [(each.at_s, each.what.step.state) for each in START if isinstance(each.what, StepTaken)]
    assert phases(*steps) == [
        Phase(name="rendezvous", took_s=3.0, well=True),
        Phase(name="start", took_s=2.0, well=True),
        Phase(name="initialize", took_s=5.0, well=True),
    ]


def test_phases_of_a_restart():
    steps = [(each.at_s, each.what.step.state) for each in (*START, *RESTART) if isinstance(each.what, StepTaken)]
    found = {phase.name: round(phase.took_s, 3) for phase in phases(*steps)[3:]}
    assert found == {"stop": 0.5, "rendezvous": 0.3, "start": 0.2, "initialize": 0.5, "restart": 2.0}


def test_a_rendezvous_that_fails_is_over_too():
    leaving = s.Leaving(ledger=LEDGER, outcome=s.Outcome(ending=s.AgentEnd.FAILED, exit_code=4, reason="nobody came"))
    deciding = s.Deciding(ledger=LEDGER, running=None, round=ROUND)
    assert phases((1.0, s.Joining(ledger=LEDGER)), (3.0, deciding), (3.0, leaving)) == [
        Phase(name="rendezvous", took_s=2.0, well=False),
        Phase(name="initialize", took_s=2.0, well=False),
    ]


# --- metrics


def metrics(*sights):
    agent = AgentMetrics(run_id="r", role="trainer", backend="redis", max_restarts=3)
    found = [metric for each in with_phases(sights) for metric in agent.observe(each.event)]
    for metric in found:
        name = metric.name.partition("{")[0]
        assert metric.group != GROUP or name in BY_NAME, name
    return found


def values(*sights):
    return {metric.name: metric.value for metric in metrics(*sights)}


def test_a_start_is_measured():
    found = values(*START)
    assert found['elastic_phase_seconds{phase="rendezvous"}'] == 3.0
    assert found['elastic_phase_seconds{phase="start"}'] == 2.0
    assert (found["elastic_round"], found["elastic_round_nodes"], found["elastic_world_size"]) == (3, 2, 4)
    assert (found["elastic_node_rank"], found["elastic_rounds_total"], found["elastic_workers_alive"]) == (1, 1, 2)
    assert (found["workers.trainer.remaining_restarts"], found["workers.trainer.healthy"]) == (2, 1)
    assert found['elastic_agent_state{state="running"}'] == 1
    assert found['elastic_agent_state{state="starting"}'] == 0
    assert found["SimpleElasticAgent._rendezvous.duration.ms"] == 3000
    assert found["SimpleElasticAgent._assign_worker_ranks.duration.ms"] == 500
    assert found["LocalElasticAgent._start_workers.success"] == 1
    assert found["SimpleElasticAgent._initialize_workers.duration.ms"] == 5000


def test_each_change_is_told_once():
    deciding = s.Deciding(ledger=RUNNING.ledger, running=RUNNING, round=RUNNING.round)
    found = metrics(*START, entered(7.0, deciding), entered(7.1, RUNNING))
    assert [metric.name for metric in found].count("workers.trainer.healthy") == 1
    assert [metric.name for metric in found].count("workers.trainer.remaining_restarts") == 1


def test_a_restart_is_counted_by_its_class():
    found = values(*START, seen(9.0, ended(1, 1)), *RESTART)
    assert found['elastic_failures_total{class="user_exception"}'] == 1
    assert found['elastic_restarts_total{class="user_exception"}'] == 1
    assert found['elastic_phase_seconds{phase="detect"}'] == 0.5
    assert found['elastic_phase_seconds{phase="stop"}'] == pytest.approx(0.5)
    assert found['elastic_worker_exits_total{outcome="failed"}'] == 1
    assert found["SimpleElasticAgent._restart_workers.success"] == 1
    assert found["workers.trainer.failed"] == 0  # healthy again
    assert found["workers.trainer.remaining_restarts"] == 1


def test_a_stop_is_no_restart():
    failure = samples.sample_failure()
    found = values(seen(1.0, moments.DecisionTaken(failure=failure, decision=Stop(reason="x"), policy="p")))
    assert found == {}


@pytest.mark.parametrize(
    ("code", "restarts", "one", "flakiness"),
    [
        (0, 0, "run_success_no_retries", 0),
        (0, 2, "run_success_with_retries", 50),
        (1, 0, "run_failed_no_retries", 100),
        (1, 3, "run_failed_with_retries", 100),
    ],
)
def test_the_end_has_torchs_figures(code, restarts, one, flakiness):
    found = values(
        seen(1.0, moments.AgentStarted(run_id="r", node_id="n", run_dir="/", pid=1)),
        seen(1.0, moments.WorkersStarting(round=ROUND, restart_count=restarts)),
        seen(3.5, moments.AgentStopped(exit_code=code, reason="x")),
    )
    prefix = "workers.trainer."
    results = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(f"{prefix}run_")}
    assert {name for name, value in results.items() if value} == {"run_total", one}
    assert len(results) == 5
    assert found[f"{prefix}flakiness"] == flakiness
    assert found[f"{prefix}{'failed' if code else 'succeeded'}"] == 1
    assert found["SimpleElasticAgent.run.duration.ms"] == 2500
    assert found["elastic_exit_code"] == code


def test_membership_store_and_heartbeats():
    found = values(
        seen(1.0, moments.MembershipChanged(round_index=0, change=RoundEnded(reason="n2 was lost"))),
        seen(2.0, StoreReachable(reachable=False)),
    )
    agent = AgentMetrics(run_id="r", role="trainer", backend="redis", max_restarts=3)
    calls = agent.calls({"renew": CallCount(answered=4, took_s=0.2, failed=1)})
    beats = heartbeats({0: Beat(age_s=1.5, step=7), 1: Beat(age_s=2.5, step=None)})
    found |= {metric.name: metric.value for metric in (*calls, *beats)}
    assert found == {
        "elastic_membership_changes_total": 1,
        "elastic_store_reachable": 0,
        'elastic_store_latency_seconds{call="renew"}': 0.05,
        'elastic_store_calls_total{call="renew",outcome="answered"}': 4,
        'elastic_store_calls_total{call="renew",outcome="failed"}': 1,
        'elastic_heartbeat_age_seconds{local_rank="0"}': 1.5,
        'elastic_heartbeat_step{local_rank="0"}': 7,
        'elastic_heartbeat_age_seconds{local_rank="1"}': 2.5,
    }


def test_what_hooks_publish_is_measured_where_it_is_a_number():
    fields = {"lost": 2, "temperature": 41.5, "well": True, "driver": "550", "none": None}
    assert values(seen(1.0, FieldsPublished(hook="gpu", fields=fields))) == {
        'elastic_hook_field{hook="gpu",field="lost"}': 2,
        'elastic_hook_field{hook="gpu",field="temperature"}': 41.5,
        'elastic_hook_field{hook="gpu",field="well"}': 1,
    }


def test_counters_only_rise_and_labels_are_those_of_the_table():
    found = metrics(*START, seen(9.0, ended(0, 0)), seen(9.0, ended(1, 1)), *RESTART)
    last = {}
    for metric in found:
        family = BY_NAME.get(metric.name.partition("{")[0])
        if family is not None and family.kind is Kind.COUNTER:
            assert metric.value > last.get(metric.name, 0)
            last[metric.name] = metric.value
    assert len(last) >= 4


# --- events


IDENTITY = Identity(
    run_id="r", role="trainer", backend="redis", entry_point="t.py", hostname="h", pid=5, endpoint="e:1"
)


def told(*sights):
    agent = AgentEvents(IDENTITY)
    return [event for each in with_phases(sights) for event in agent.observe(each.event)]


def of_kind(found, kind):
    return [event for event in found if isinstance(event, kind)]


def states_of(found):
    return [(event.source, event.metadata["state"]) for event in of_kind(found, Event)]


def test_events_of_a_start():
    found = told(*START)
    assert states_of(found) == [
        ("AGENT", "RENDEZVOUS"),
        ("AGENT", "ASSIGN_WORKER_RANKS"),
        ("WORKER", "START"),
        ("WORKER", "START"),
    ]
    rendezvous, assign, first, second = of_kind(found, Event)
    assert (rendezvous.name, rendezvous.metadata["duration_ms"]) == ("torchelastic.worker.status.RENDEZVOUS", 2500.0)
    assert (assign.metadata["duration_ms"], assign.timestamp) == (500.0, BASE_NS // 1_000_000 + 4000)
    assert second.metadata == {
        "run_id": "r",
        "global_rank": 3,
        "group_rank": 1,
        "worker_id": "71",
        "role": "trainer",
        "hostname": "h",
        "state": "START",
        "total_run_time": 6,
        "rdzv_backend": "redis",
        "raw_error": None,
        "metadata": second.metadata["metadata"],
        "agent_restarts": 1,
        "duration_ms": None,
    }
    assert json.loads(second.metadata["metadata"]) == {
        "group_world_size": 2,
        "entry_point": "t.py",
        "local_rank": 1,  # a number, not a list of one
        "role_rank": 3,
        "role_world_size": ROUND.role_world_size,
        "exit_code": None,
        "worker_pid": 71,
    }
    assert json.loads(first.serialize()) == vars(first)


def test_a_failure_is_told_with_its_reason_and_its_own_time():
    found = told(*START, seen(9.0, ended(1, 1)), seen(9.1, ended(0, -15, stop_signal=15)), seen(9.2, failure_seen()))
    terminated, failed = of_kind(found, Event)[-2:]
    assert (terminated.metadata["state"], failed.metadata["state"]) == ("TERMINATED", "FAILED")
    assert json.loads(failed.metadata["raw_error"]) == {
        "message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "T", "timestamp": "5"}}
    }
    assert json.loads(failed.metadata["metadata"])["exit_code"] == 1
    assert failed.timestamp == BASE_NS // 1_000_000 + 9000


def test_a_failure_that_nobody_explains_is_told_when_the_round_is_over():
    found = told(*START, seen(9.0, ended(1, 1)), entered(9.5, STOPPING))
    assert ("WORKER", "FAILED") not in states_of(found)
    found = told(*START, seen(9.0, ended(1, 1)), entered(9.5, STOPPING), entered(9.6, s.Waiting(ledger=LEDGER)))
    (failed,) = [event for event in of_kind(found, Event) if event.metadata["state"] == "FAILED"]
    assert failed.metadata["raw_error"] is None


@pytest.mark.parametrize(("code", "state"), [(0, "SUCCEEDED"), (7, "FAILED")])
def test_the_end_is_the_agents(code, state):
    found = told(*START, seen(20.0, ended(0, 0)), seen(21.0, moments.AgentStopped(exit_code=code, reason="why")))
    worker, agent = of_kind(found, Event)[-2:]
    assert (worker.metadata["state"], agent.metadata["state"], agent.source) == ("SUCCEEDED", state, "AGENT")
    assert agent.metadata["total_run_time"] == 21
    assert json.loads(agent.metadata["metadata"])["exit_code"] == code
    last = of_kind(found, RdzvEvent)[-1]
    assert (last.node_state, last.message, last.rank) == (state, "why", 1)


def test_what_hooks_publish_for_the_status_and_metrics_is_no_event():
    agent = AgentEvents(IDENTITY)
    quiet = [
        ("fields_published", {"hook": "ledger", "fields": {"state": "ended"}}),
        ("metric", {"group": "g", "name": "n", "value": 1}),
        ("listening", {"address": "/s"}),
    ]
    for name, values in quiet:
        assert [*agent.observe(RunEvent(name=name, at_s=1.0, at_ns=BASE_NS, values=values, source="mine"))] == []
    (event,) = agent.observe(RunEvent(name="noted", at_s=1.0, at_ns=BASE_NS, values={"a": 1}, source="mine"))
    assert (event.name, event.metadata["state"]) == ("noted", "RUNNING")


def test_the_rendezvous_has_events_of_its_own():
    found = of_kind(
        told(
            *START,
            seen(7.0, moments.MembershipChanged(round_index=3, change=RoundEnded(reason="n2 was lost"))),
            seen(7.5, StoreReachable(reachable=False)),
        ),
        RdzvEvent,
    )
    assert [event.message for event in found] == [
        "the agent has begun",
        "this node asks for a place in round 3",
        "this node has rank 1 of 2 nodes in round 3",
        "round 3 ends: n2 was lost",
        "the rendezvous store is away",
    ]
    assert {(event.run_id, event.hostname, event.pid, event.master_endpoint) for event in found} == {
        ("r", "h", 5, "e:1")
    }
    assert [event.node_state for event in found] == ["INIT", *["RUNNING"] * 4]


# --- handlers can't be felt


def test_a_handler_that_raises_is_named_and_turned_off():
    lines, calls = [], []

    def fail():
        calls.append(1)
        raise OSError("disk\nfull")

    guard = Guard("metrics handler 'x' (mine 1.0)", lines.append)
    for _ in range(STRIKES + 2):
        guard.call(fail)
    assert (len(calls), guard.faults, guard.off) == (STRIKES, STRIKES, True)
    assert lines == [
        "metrics handler 'x' (mine 1.0) raised OSError: disk full",
        "metrics handler 'x' (mine 1.0) raised OSError: disk full, 3 times by now; it is off for the rest of the run",
    ]


def test_faults_now_and_then_are_forgiven():
    guard = Guard("x", lambda line: None)
    for _ in range(5):
        guard.call(lambda: 1 / 0)
        guard.call(lambda: 1 / 0)
        guard.call(lambda: None)
    assert (guard.faults, guard.off) == (10, False)


def test_a_meter_counts_what_a_store_answers_and_refuses():
    meter = StoreMeter()
    meter.add("renew", 0.25, failed=False)
    meter.add("renew", 0.0, failed=True)
    assert meter.take() == {"renew": CallCount(answered=1, took_s=0.25, failed=1)}
    assert meter.take() == {}


# --- what a caller of the library says


def test_a_launch_config_says_where_metrics_and_events_go():
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=1,
        metrics_cfg={"handler": "console", "port": "0.0.0.0:9400", "theirs": "x"},
        event_log_handler="console",
    )
    settings = settings_of_config(config, Entrypoint(argv=("t.py",), name="t.py"))
    assert settings.hook_options == {
        "metrics_handler": ("console",),
        "metrics_port": "0.0.0.0:9400",
        "event_log_handler": "console",
    }


def test_the_reference_names_all_that_is_published():
    run = (*START, seen(9.0, ended(1, 1)), *RESTART, seen(12.0, moments.AgentStopped(exit_code=0, reason="")))
    docs = Path(__file__).parents[4] / "docs/reference"
    page = (docs / "metrics.md").read_text()
    torchs = {metric.name for metric in metrics(*run) if metric.group != GROUP}
    for name in torchs:
        own = name.removeprefix("workers.trainer.").removesuffix(".duration.ms")
        assert own.removesuffix(".success").rpartition(".")[2] in page, name
    page = (docs / "events.md").read_text()
    for event in of_kind(told(*run), Event):
        assert f"`{event.metadata['state']}`" in page
        for field in (*event.metadata, *json.loads(event.metadata["metadata"])):
            assert f"`{field}`" in page, field
    for field in vars(of_kind(told(*run), RdzvEvent)[0]):
        assert f"`{field}`" in page, field
