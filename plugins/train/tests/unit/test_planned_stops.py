"""The agent's hook for planned stops, with a run and workers that this test plays."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from elastic_core.api import (
    AgentStarted,
    ConfigError,
    HookSettings,
    Launches,
    RunningWorker,
    WorkersStarting,
    WorkersStopping,
)
from elastic_core.api.feed import Agreed, StopPlanned
from elastic_plugin_kit import AgentHookConformance, FakeRun, sample_round
from elastic_train import stop_page as layout
from elastic_train.holding import NOBODY, Topic
from elastic_train.planned_stops import STARTUP, PlannedStops


class Clock:
    """The clock of a fake run."""

    def __init__(self, run):
        self._run = run

    def monotonic_s(self):
        return self._run.now_s


class Node:
    """A hook in a round of two workers, ranks 4 and 5."""

    def __init__(self, folder, pids=(11, 12), **options):
        self.hook = PlannedStops(
            HookSettings(
                name="planned-stops", run_dir=str(folder), options=options, shutdown_timeout_s=30.0, local_world_size=2
            )
        )
        self.run = FakeRun(
            tuple(
                RunningWorker(local_rank=rank, global_rank=rank + 4, pid=pid, stdout="", stderr="", error_file="")
                for rank, pid in enumerate(pids)
            )
        )
        self.run.directory = str(folder)
        self.hook.run, self.hook.clock = self.run, Clock(self.run)
        answer = self.hook.on_workers_starting(WorkersStarting(round=sample_round(), restart_count=0))
        assert isinstance(answer, Launches)
        self.environment = {rank: change.environment for rank, change in answer.workers.items()}

    def words(self, local_rank):
        return self.hook._pages._pages[local_rank].words

    def asks(self, local_rank, step):
        """Play a rank that asks about a step."""
        self.words(local_rank)[layout.OWNER], self.words(local_rank)[layout.STEP] = 99, step

    def plans(self, hold_s=30.0):
        self.hook.on_stop_planned(StopPlanned(round_index=0, reason="b joined", hold_s=hold_s))


@pytest.fixture
def node(tmp_path):
    """Return a function that makes a node; it is closed at the end."""
    nodes = []

    def make(**given):
        nodes.append(Node(tmp_path, **given))
        return nodes[-1]

    yield make
    for each in nodes:
        each.hook.close()


def test_other_hooks_of_the_agent_find_how_far_the_workers_are(node):
    it = node(save_timeout=20.0)
    it.hook.on_agent_started(AgentStarted(run_id="r", node_id="n", run_dir="", pid=1))

    def saving():
        return json.loads(it.run.offered["planned-stops"]({}).content)

    assert saving() == {"asks": True, "steps": None, "saved": False, "within_s": 20.0}
    for first, step, steps in ((40, 40, 0), (40, 52, 12), (-1, 52, None)):
        it.words(1)[layout.FIRST], it.words(1)[layout.STEP] = first, step
        assert (saving()["steps"], it.run.furthest_step()) == (steps, step)
    it.plans()
    it.run.pass_time(0.1)
    it.hook.on_agreed(Agreed(topic=Topic.STEP, value=53))
    assert not saving()["saved"]
    it.hook.on_agreed(Agreed(topic=Topic.SAVED, value=0))
    assert saving()["saved"]
    it.hook.on_workers_starting(WorkersStarting(round=sample_round(), restart_count=0))
    assert saving() == {"asks": True, "steps": None, "saved": False, "within_s": 20.0}
    it.hook.close()
    assert (saving()["steps"], it.run.furthest_step()) == (None, None)


def test_other_hooks_find_the_times_of_steps_and_saves(node):
    it = node()
    it.hook.on_agent_started(AgentStarted(run_id="r", node_id="n", run_dir="", pid=1))

    def progress(**parameters):
        return json.loads(it.run.offered["planned-stops-progress"](parameters).content)

    assert progress(above="41") == {"workers": {}}
    assert [it.words(rank)[layout.HIGH] for rank in (0, 1)] == [41, 41]
    words = it.words(1)
    written = {
        layout.ALIVE_NS: 1_500_000_000, layout.FIRST: 40, layout.FIRST_NS: 2 * 10**9, layout.STEP: 44,
        layout.TIMES_AT + 44: 9 * 10**9, layout.ABOVE_NS: 4 * 10**9, layout.ABOVE_OF: 41, layout.MARK_COUNT: 2,
        layout.WRITER: 77,
    }  # fmt: skip
    for word, value in written.items():
        words[word] = value
    for at, *mark in ((layout.MARKS_AT, 1, layout.RESTORE, 10**9, 2 * 10**9), (68, 2, layout.SAVE, 5 * 10**9, 0)):
        for word, value in enumerate(mark):
            words[at + word] = value
    expected = {
        "alive_s": 1.5, "first_step": 40, "first_step_s": 2.0, "step": 44, "step_s": 9.0, "above_s": 4.0,
        "marks": [["restore", 1.0, 2.0], ["save", 5.0, None]], "marks_dropped": 0, "pid": 77,
    }  # fmt: skip
    assert progress() == {"workers": {"1": expected}}
    assert progress(above="42") == {"workers": {"1": expected | {"above_s": None}}}
    with pytest.raises(ConfigError, match="above: 'x'; expected a step"):
        progress(above="x")
    it.hook.on_workers_starting(WorkersStarting(round=sample_round(), restart_count=0, asked_again=True))
    assert list(progress()["workers"]) == ["1"]
    now = sample_round().index
    it.hook.on_workers_starting(WorkersStarting(round=replace(sample_round(), index=now + 1), restart_count=0))
    assert progress() == progress(round=str(now + 1)) == progress(round=str(now + 2)) == {"workers": {}}
    assert progress(round=str(now)) == {"workers": {"1": expected | {"above_s": None}}}
    with pytest.raises(ConfigError, match="round: '-1'; expected the number of a round"):
        progress(round="-1")
    it.hook.close()
    assert progress(above="3") == {"workers": {}}


def test_nothing_is_held_for_workers_that_do_not_look(node):
    it = node()
    assert it.hook.hold_s == 0
    it.asks(1, 3)
    assert it.hook.hold_s == 30.0
    assert node(save_timeout=5.0).hook.hold_s == 5.0
    assert node(save_signal="usr1").hook.hold_s == 30.0


def test_workers_have_the_step_that_is_agreed_and_the_stop_goes_on_when_all_have_saved(node):
    it = node()
    it.asks(0, 7)
    it.asks(1, 6)
    it.plans()
    assert (it.words(0)[layout.ASKED], it.run.stated) == (1, {})
    it.run.pass_time(0.1)
    assert it.run.stated == {Topic.STEP: 8}
    it.hook.on_agreed(Agreed(topic=Topic.STEP, value=9))
    assert [it.words(rank)[layout.STOP_STEP] for rank in (0, 1)] == [9, 9]
    it.words(0)[layout.READY] = 1
    it.run.pass_time(0.1)
    assert Topic.SAVED not in it.run.stated
    it.run.running = it.run.running[:1]  # the other has ended
    it.run.pass_time(0.1)
    assert (it.run.stated[Topic.SAVED], it.run.stops_released) == (0, 0)
    it.hook.on_agreed(Agreed(topic=Topic.SAVED, value=0))
    assert (it.run.stops_released, it.run.notices) == (1, [])
    assert [name for name, _ in it.run.events] == ["save_asked", "save_agreed", "save_agreed", "save_released"]


@pytest.mark.parametrize(
    ("options", "hold_s", "name"),
    [
        ({}, 30.0, "30 s (--shutdown-timeout)"),
        ({"save_timeout": 20.0}, 20.0, "20 s (--save-timeout)"),
        ({"save_timeout": 20.0}, 3.0, "3 s (its deadline)"),
    ],
)
def test_who_has_not_saved_in_time_is_named_and_why_it_had_no_longer(node, options, hold_s, name):
    it = node(**options)
    it.asks(0, 7)
    it.asks(1, 7)
    it.plans(hold_s)
    it.run.pass_time(0.1)
    it.hook.on_agreed(Agreed(topic=Topic.STEP, value=8))
    it.words(0)[layout.READY] = 1
    it.run.pass_time(hold_s)
    assert it.run.notices == [f"stopped without having saved within {name}: rank 5 (last asked about step 7)"]
    assert it.run.stops_released == 1


def test_steps_that_fall_are_told_when_it_matters(node):
    it = node()
    it.asks(0, 7)
    it.words(0)[layout.WENT_BACK] = 5
    it.plans()
    it.run.pass_time(0.1)
    it.hook.on_agreed(Agreed(topic=Topic.STEP, value=NOBODY))
    (line,) = it.run.notices
    assert line.startswith("local rank 0: should_stop(step=4) came after a higher step")


def test_stop_that_has_begun_is_held_no_longer(node):
    it = node()
    it.asks(0, 7)
    it.plans()
    it.hook.on_workers_stopping(WorkersStopping(round_index=0, reason="cut off", grace_s=1.0))
    it.run.pass_time(60.0)
    it.hook.on_agreed(Agreed(topic=Topic.STEP, value=8))
    assert (it.run.stops_released, it.run.stated, it.words(0)[layout.STEP_KNOWN]) == (0, {}, 0)


def test_next_rounds_workers_find_their_pages_in_the_same_places_and_empty(node):
    """Else an interpreter that waits as their spare would be of no use."""
    it = node(save_timeout=9.0)
    it.asks(0, 7)
    it.plans()
    again = it.hook.on_workers_starting(WorkersStarting(round=sample_round(index=1), restart_count=0))
    assert {rank: change.environment for rank, change in again.workers.items()} == it.environment
    words = it.words(0)
    assert (words[layout.OWNER], words[layout.ASKED], words[layout.STEP]) == (0, 0, layout.NONE)
    assert not any(Path(place[layout.FILE_VARIABLE]).exists() for place in it.environment.values())
    it.run.pass_time(60.0)
    assert (it.run.stated, it.run.stops_released) == ({}, 0)


@pytest.mark.parametrize("may_restart", [True, False])
def test_a_process_that_may_be_kept_imports_in_its_first_round_what_it_needs_in_the_next_one(tmp_path, may_restart):
    settings = HookSettings(name="planned-stops", run_dir=str(tmp_path), local_world_size=2, may_restart=may_restart)
    hook = PlannedStops(settings)
    hook.run = FakeRun(())
    hook.run.directory = str(tmp_path)
    answer = hook.on_workers_starting(WorkersStarting(round=sample_round(), restart_count=0))
    hook.close()
    expected = STARTUP if may_restart else ()
    assert [change.startup for change in answer.workers.values()] == [expected] * 2


def test_workers_get_the_signal_of_choice(node):
    script = "import signal; signal.signal(signal.SIGUSR2, lambda *_: exit(7)); print(1, flush=True); signal.pause()"
    workers = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for worker in workers:
            worker.stdout.readline()
        it = node(pids=tuple(worker.pid for worker in workers), save_signal="SIGUSR2")
        workers[1].kill()
        workers[1].wait()  # reaped: its number may be anybody's
        it.plans()
        assert workers[0].wait(60) == 7
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            worker.stdout.close()
    assert it.hook._signal == signal.SIGUSR2


class TestPlannedStops(AgentHookConformance):
    """The kit's checks."""

    @pytest.fixture
    def make_hook(self):
        return lambda run_dir: PlannedStops(HookSettings(name="planned-stops", run_dir=run_dir, shutdown_timeout_s=30))
