"""The kit for starters that keep workers: tests that a worker leaves its round and has its place in the next one."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

import pytest

from elastic_core.api.starters import LeavingWorker, WorkerStarter
from elastic_plugin_kit.conformance.kit import Kit
from elastic_plugin_kit.conformance.starter import (
    Agent,
    MakeStarter,
    Worker,
    check_descriptors,
    descriptors,
    is_alive,
)
from elastic_plugin_kit.real_loop import RealLoop

WITHIN_S: Final = 30.0
"""How long the kit gives a worker to leave."""
ENDED_S: Final = 10.0


class Leaving(LeavingWorker):
    """A worker of the kit that may leave, and what the starter has reported of it."""

    def __init__(self, worker: Worker, *, ours: bool = True) -> None:
        assert worker.started is not None
        self.reports: list[str] = []

        def left() -> bool:
            self.reports.append("left")
            return ours

        super().__init__(
            worker.started,
            worker.wanted.local_rank,
            left=left,
            stays=lambda: self.reports.append("stays"),
            ended=lambda: self.reports.append("ended"),
        )


class WorkerKeeperConformance(Kit):
    """Subclass it and give the fixtures `make_starter` and `command`, the command of a worker that can leave a round.

    The worker prints one line of JSON to its stdout at the beginning of each round: `{"round": ELASTIC_ROUND, "pid":
    PID}`, with the variable's value and the process's number. It runs until it is signalled.
    """

    page: ClassVar[str] = "starter.md"

    @pytest.fixture
    def make_starter(self) -> MakeStarter:
        """Return a function that makes a starter from a loop."""
        pytest.fail(f"{type(self).__name__} must give the fixture `make_starter`: a function from a loop")

    @pytest.fixture
    def command(self) -> Sequence[str]:
        """Return the command of a worker that can leave its round."""
        pytest.fail(f"{type(self).__name__} must give the fixture `command`: that of a worker that can leave a round")

    @pytest.fixture
    def agent(self, make_starter: MakeStarter, tmp_path: Path) -> Iterator[Agent]:
        """Return an agent with a starter of this test's own."""
        loop = RealLoop()
        agent = Agent(make_starter(loop), loop, tmp_path)
        yield agent
        agent.close()

    def _begin(self, agent: Agent, command: Sequence[str], **variables: str) -> Worker:
        """Begin a round; check that its worker reports it."""
        worker = self._start(agent, command, **variables)
        running = agent.workers[-1]
        assert running.report, f"the worker has reported no round; expected one line of JSON: {running.errors}"
        assert str(running.report.get("round")) == str(agent.rounds), (
            "the worker reports another round; expected the new value of ELASTIC_ROUND"
        )
        return worker

    def _start(self, agent: Agent, command: Sequence[str], **variables: str) -> Worker:
        environment = {
            "PATH": os.defpath,
            "ELASTIC_INCARNATION": "the-kit",
            "ELASTIC_ROUND": str(agent.rounds + 1),
            **self.variables(agent.starter),
            **variables,
        }
        return agent.begin_round(argv=tuple(command), environment=environment)

    def variables(self, starter: WorkerStarter) -> dict[str, str]:
        """Return variables that the worker needs to find the starter. Override it where there are some."""
        return {}

    def _leave(self, agent: Agent, *, ours: bool = True) -> Leaving:
        """Have the round's worker leave it."""
        agent.starter.round_stopping()
        leaving = Leaving(agent.workers[-1], ours=ours)
        asked = agent.starter.keep(leaving, within_s=WITHIN_S, planned=False)
        assert asked is True, "`keep` did not return True; expected it to ask a worker that runs"
        assert agent.loop.turn_until(lambda: bool(leaving.reports), within_s=WITHIN_S), (
            f"the starter reported nothing of the worker within {WITHIN_S:g} s; expected `left`"
        )
        assert leaving.reports == ["left"], f"the starter reported {leaving.reports}; expected `left` once"
        if ours:
            agent.workers.pop()
        return leaving

    def test_a_worker_leaves_its_round_and_has_its_place_in_the_next(
        self, agent: Agent, command: Sequence[str]
    ) -> None:
        """The same process, with the new round's variables and streams."""
        self._begin(agent, command)
        pid = agent.workers[-1].report["pid"]
        for _ in range(2):
            leaving = self._leave(agent)
            assert is_alive(leaving.process.pid), "the process has ended after `left`; expected it to run on"
            worker = self._begin(agent, command)
            assert worker.started is not None, "`start` returned None; expected the kept process"
            assert worker.started.pid == leaving.process.pid, "`start` returned another process; expected the kept one"
            assert agent.workers[-1].report["pid"] == pid, "another process runs the round; expected the kept one"
            assert leaving.reports == ["left"], "the starter reported more of a process with a place; expected nothing"

    def test_a_process_that_is_not_its_own_is_left_alone(self, agent: Agent, command: Sequence[str]) -> None:
        """`left` returned False: the process was signalled meanwhile, and the agent ends and reaps it."""
        self._begin(agent, command)
        self._leave(agent, ours=False)
        agent.end_round()
        worker = self._start(agent, command)
        assert worker.started is None, "`start` returned a process; expected None, as `left` had returned False"

    def test_a_kept_process_that_dies_is_reaped_and_reported_once(self, agent: Agent, command: Sequence[str]) -> None:
        """And its rank is left to others."""
        self._begin(agent, command)
        leaving = self._leave(agent)
        os.kill(leaving.process.pid, signal.SIGKILL)
        assert agent.loop.turn_until(lambda: leaving.reports == ["left", "ended"], within_s=ENDED_S), (
            f"the starter reported {leaving.reports} of a process that died; expected `left`, then `ended` once"
        )
        assert not Path(f"/proc/{leaving.process.pid}").exists(), "the process was not reaped; expected no zombie"
        assert self._begin(agent, command).started is None, "`start` returned a process that has ended; expected None"

    def test_one_that_would_differ_has_no_place(self, agent: Agent, command: Sequence[str]) -> None:
        """A variable that libraries read at their import has another value: nothing can change that in a process."""
        self._begin(agent, command, KIT_SETTING="1")
        leaving = self._leave(agent)
        worker = self._begin(agent, command, KIT_SETTING="2")
        assert worker.started is None, "`start` returned a process with another KIT_SETTING; expected None"
        agent.loop.turn_until(lambda: not is_alive(leaving.process.pid), within_s=ENDED_S)
        assert not is_alive(leaving.process.pid), "the kept process still runs beside its successor; expected its end"

    def test_the_end_leaves_nothing(self, make_starter: MakeStarter, tmp_path: Path, command: Sequence[str]) -> None:
        """Kept processes end in `close`, and are reaped; no descriptor, timer or reader is left."""
        held = os.open(os.devnull, os.O_RDONLY)
        before = descriptors()
        loop = RealLoop()
        agent = Agent(make_starter(loop), loop, tmp_path)
        self._begin(agent, command)
        leaving = self._leave(agent)
        agent.close()
        agent.close()
        assert not Path(f"/proc/{leaving.process.pid}").exists(), "a kept process is there after `close`; expected none"
        assert leaving.reports == ["left", "ended"], "`ended` was not reported in `close`; expected it once"
        assert not loop.readers, "the starter has readers on the loop after `close`; expected none"
        assert all(timer.cancelled for timer in loop.timers), "timers are left after `close`; expected none"
        check_descriptors(before, held)
