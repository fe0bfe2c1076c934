"""`--timings` adds up: each moment belongs to what it ended."""

from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.agent.machine.journal import Gap
from elastic_core.launcher.timings import Timings
from elastic_core.types import Round


class SteppedClock:
    """Shows the times that a test gives it."""

    def __init__(self, now_s):
        self.now_s = now_s

    def monotonic_s(self):
        return self.now_s

    def wall_ns(self):
        return 0


ROUND = Round(
    index=0,
    token=1,
    nonce="",
    node_rank=0,
    node_count=1,
    local_world_size=1,
    base_rank=0,
    world_size=1,
    role="default",
    role_base_rank=0,
    role_world_size=1,
    master_addr="127.0.0.1",
    master_port=1,
)


def test_a_run_with_one_round_is_told_in_four_lines():
    clock = SteppedClock(100.030)
    timings = Timings(clock=clock, started_s=100.0)
    clock.now_s = 100.035
    timings.mark("options")
    timings.take(
        [
            (100.040, m.StartRequested()),
            (100.041, m.JoinAllowed()),
            (100.043, m.RoundFormed(round=ROUND)),
            (100.043, m.StartAllowed(changes=())),
            (100.050, m.WorkersSpawned()),
            (101.050, m.WorkersStopped()),
            (101.052, m.RendezvousLeft()),
        ]
    )
    clock.now_s = 101.055
    timings.mark("exit")
    assert timings.lines() == [
        "timings: start: interpreter and command line 30.0 ms, options 5.0 ms, agent 5.0 ms",
        "timings: round 0: hooks asked 1.0 ms, rendezvous 2.0 ms, spawn 7.0 ms, stop 1000.0 ms",
        "timings: end: rendezvous left 2.0 ms, exit 3.0 ms",
        "timings: all: 50.0 ms until workers ran, 1055.0 ms to the end",
    ]


def test_waiting_for_evidence_and_for_the_restart_are_told_apart():
    clock = SteppedClock(0.0)
    timings = Timings(clock=clock, started_s=0.0)
    timings.take(
        [
            (1.0, m.StartRequested()),
            (1.1, m.TimerFired(name="settle")),
            (1.1, m.WorkersStopped()),
            (1.6, m.TimerFired(name="backoff")),
            (1.6, m.WorkersStopped()),
        ]
    )
    assert timings.lines()[1:3] == [
        "timings: round 0: wait for more evidence 100.0 ms",
        "timings: round 1: wait before the restart 500.0 ms",
    ]


def test_a_run_that_did_not_get_so_far_tells_what_there_was():
    clock = SteppedClock(0.5)
    timings = Timings(clock=clock, started_s=0.0)
    clock.now_s = 0.6
    timings.mark("exit")
    assert timings.lines() == [
        "timings: start: interpreter and command line 500.0 ms, exit 100.0 ms",
        "timings: end: nothing",
        "timings: all: 600.0 ms to the end",
    ]


def test_the_process_itself_knows_its_age():
    clock = SteppedClock(1000.0)
    (line,) = (line for line in Timings(clock=clock).lines() if "start:" in line)
    age_ms = float(line.removesuffix(" ms").rpartition(" ")[2])
    assert 0 < age_ms < 3_600_000


def test_rounds_that_the_journal_did_not_keep_are_named_as_a_gap():
    clock = SteppedClock(0.0)
    timings = Timings(clock=clock, started_s=0.0)
    timings.take(
        [
            (1.0, m.StartRequested()),
            (1.5, m.RoundFormed(round=ROUND)),
            (9.5, Gap(event_count=70)),
            (9.6, m.WorkersStopped()),
            (9.7, m.RoundFormed(round=replace(ROUND, index=12))),
            (9.8, m.WorkersStopped()),
        ]
    )
    assert timings.lines()[1:3] == [
        "timings: round 0: rendezvous 500.0 ms, 70 events left out 8000.0 ms, stop 100.0 ms",
        "timings: round 12: rendezvous 100.0 ms, stop 100.0 ms",
    ]
