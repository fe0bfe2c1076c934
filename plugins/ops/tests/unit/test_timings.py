"""`--timings` adds up: each moment belongs to what it ended."""

import pytest
from msgspec.structs import replace

from elastic_core.api import HookSettings
from elastic_core.api.feed import RunEvent
from elastic_core.types import Round
from elastic_ops.timings import MOST_ROUNDS, Timings, TimingsHook
from elastic_plugin_kit import FakeRun

ROUND = Round(
    index=0, token=1, nonce="", node_rank=0, node_count=1, local_world_size=1, base_rank=0, world_size=1,
    role="default", role_base_rank=0, role_world_size=1, master_addr="127.0.0.1", master_port=1,
)  # fmt: skip
CLOSED = "feed_closed"


def timed(events, began_s=0.0):
    timings = Timings(began_s)
    for at_s, name, values in events:
        timings.take(RunEvent(name=name, at_s=at_s, at_ns=0, values=values))
    return timings.lines()


def step(at_s, event, **values):
    return (at_s, "step", {"event": event, **values})


def test_a_run_with_one_round_is_four_lines():
    began = {"interpreter and command line": 100.030, "options": 100.035}
    assert timed(
        [
            (100.039, "agent_started", {"start_up": began}),
            step(100.040, "StartRequested"),
            step(100.041, "JoinAllowed"),
            step(100.043, "RoundFormed", round=ROUND),
            step(100.043, "StartAllowed"),
            step(100.050, "WorkersSpawned"),
            step(101.050, "WorkersStopped"),
            step(101.052, "RendezvousLeft"),
            (101.055, CLOSED, {}),
        ],
        began_s=100.0,
    ) == [
        "timings: start: interpreter and command line 30.0 ms, options 5.0 ms, agent 5.0 ms",
        "timings: round 0: hooks asked 1.0 ms, rendezvous 2.0 ms, spawn 7.0 ms, stop 1000.0 ms",
        "timings: end: rendezvous left 2.0 ms, hooks 3.0 ms",
        "timings: all: 50.0 ms until workers ran, 1055.0 ms to the end",
    ]


@pytest.mark.parametrize(
    ("after", "parts"),
    [
        ((step(5.0, "HangFound"), step(5.1, "Examined"), step(5.2, "DecisionMade")), ("4000.0", "100.0", "100.0")),
        ((step(2.0, "WorkerExited"), step(5.0, "HangFound"), step(5.2, "DecisionMade")), ("4000.0", None, "200.0")),
        ((step(2.0, "RoundChanged"), step(5.0, "StopRequested")), ("4000.0", None, None)),
        (
            (step(2.0, "HangFound"), step(2.0, "DecisionMade", state="running"), step(5.0, "StopRequested")),
            ("4000.0", None, None),
        ),
        ((step(5.0, "RestartRequested"), step(5.0, "RoundChanged")), ("4000.0", None, None)),
    ],
)
def test_workers_run_until_the_first_event_that_stops_them(after, parts):
    lines = timed([step(1.0, "WorkersSpawned"), *after, step(5.3, "WorkerExited"), step(6.2, "WorkersStopped")])
    run, examined, decided = parts
    expected = [f"workers' run {run} ms"]
    expected += [f"evidence read {examined} ms"] if examined else []
    expected += [f"decision {decided} ms"] if decided else []
    stopped = "1000.0" if decided else "1200.0"
    assert lines[1] == f"timings: round 0: {', '.join(['spawn 1000.0 ms', *expected, f'stop {stopped} ms'])}"


def test_a_stop_before_workers_run_is_part_of_what_it_interrupts():
    lines = timed(
        [step(1.0, "JoinAllowed"), step(2.0, "StopRequested"), step(3.0, "RendezvousLeft"), (3.5, CLOSED, {})]
    )
    assert lines[1] == "timings: end: hooks asked 1000.0 ms, rendezvous left 2000.0 ms, hooks 500.0 ms"


def test_how_a_hook_started_the_workers_is_named():
    lines = timed(
        [
            step(1.0, "StartRequested"),
            (1.1, "worker_starts", {"how": "2 forked"}),
            step(1.2, "WorkersSpawned"),
            step(1.3, "WorkersStopped"),
            step(1.5, "WorkersSpawned"),
            step(1.5, "WorkersStopped"),
            (1.6, "worker_starts", {"how": "1 of 2 kept"}),
            (1.6, "worker_starts", {"how": "1 forked"}),
            step(1.7, "WorkersSpawned"),
            step(1.7, "WorkersStopped"),
            (1.8, "worker_starts", {"how": "2 of 2 kept"}),
            (1.8, "worker_starts", {"how": ""}),
            step(1.9, "WorkersSpawned"),
            step(1.9, "WorkersStopped"),
        ]
    )
    assert lines[1:5] == [
        "timings: round 0: spawn (2 forked) 200.0 ms, stop 100.0 ms",
        "timings: round 1: spawn 200.0 ms",
        "timings: round 2: spawn (1 of 2 kept, 1 forked) 200.0 ms",
        "timings: round 3: spawn (2 of 2 kept) 200.0 ms",
    ]


def test_waiting_for_evidence_and_for_the_restart_are_told_apart():
    lines = timed(
        [
            step(1.0, "StartRequested"),
            step(1.1, "Examined"),
            step(1.1, "WorkersStopped"),
            step(1.6, "TimerFired", name="backoff"),
            step(1.6, "WorkersStopped"),
        ]
    )
    assert lines[1:3] == [
        "timings: round 0: evidence read 100.0 ms",
        "timings: round 1: wait before the restart 500.0 ms",
    ]


def test_a_run_that_did_not_get_so_far_has_what_there_was():
    assert timed([(0.6, CLOSED, {})]) == [
        "timings: start: nothing",
        "timings: end: hooks 600.0 ms",
        "timings: all: 600.0 ms to the end",
    ]


def test_of_many_rounds_the_first_and_the_last_have_a_line():
    events = []
    for index in range(2 * MOST_ROUNDS + 7):
        events += [
            step(index + 0.5, "RoundFormed", round=replace(ROUND, index=index)),
            step(index + 1.0, "WorkersStopped"),
        ]
    lines = timed(events)
    assert len(lines) == 2 * MOST_ROUNDS + 4
    assert lines[MOST_ROUNDS + 1] == "timings: 7 rounds left out"
    assert lines[MOST_ROUNDS + 2].startswith(f"timings: round {MOST_ROUNDS + 7}: rendezvous 500.0 ms")


def test_the_hook_prints_the_lines_at_the_end_and_knows_the_age_of_its_process():
    hook = TimingsHook(HookSettings(name="timings"))
    hook.run = FakeRun()
    at_s = hook.clock.monotonic_s()
    hook.on_run_event(RunEvent(name=CLOSED, at_s=at_s, at_ns=0))
    (end,) = (line for line in hook.run.notices if line.startswith("timings: all: "))
    assert 0 < float(end.split()[2]) < 3_600_000
    assert float(end.split()[2]) == pytest.approx((at_s - hook._timings._began_s) * 1e3, abs=0.1)
