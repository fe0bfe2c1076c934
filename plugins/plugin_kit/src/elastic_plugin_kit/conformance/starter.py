"""The kit for worker starters: tests that a `WorkerStarter` starts the requested worker, and nothing else."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import pytest

from elastic_core.api.starters import AgentLoop, StartedProcess, WorkerStart, WorkerStarter
from elastic_core.api.workers import bound_to
from elastic_plugin_kit.conformance.kit import Kit, settle
from elastic_plugin_kit.real_loop import RealLoop

MakeStarter = Callable[[AgentLoop], WorkerStarter]
"""What the fixture `make_starter` gives: called with a loop, it returns a new starter."""

QUICK_S: Final = 2.0
"""A call of five seconds turns a starter off; this is what one that is well may take on a busy machine."""
END_S: Final = 30.0
READY_S: Final = 300.0
"""How long the agent waits for `prepare`."""
_OTHERS_S: Final = 5.0
"""How long other threads may keep what they have opened meanwhile."""

_REPORT: Final = """\
import json, os, sys, time
text = json.dumps({"environment": dict(os.environ), "arguments": sys.argv[1:], "pid": os.getpid(),
    "session": os.getsid(0), "group": os.getpgid(0), "processors": sorted(os.sched_getaffinity(0)),
    "folder": os.getcwd(), "stdin": list(os.fstat(0)[1:3])})
print(text, flush=True)
print("to stderr", file=sys.stderr, flush=True)
if sys.argv[1] == "sleep":
    time.sleep(600)
sys.exit(int(sys.argv[2]))
"""


class Worker:
    """One worker that a starter was asked for."""

    def __init__(self, wanted: WorkerStart, started: StartedProcess | None, folder: Path, took_s: float) -> None:
        self.wanted = wanted
        self.started = started
        self.took_s = took_s
        self._folder = folder

    @property
    def report(self) -> dict[str, Any]:
        """What the worker says of itself; empty until it has."""
        text = (self._folder / "out").read_text()
        found: dict[str, Any] = json.loads(text) if text.endswith("\n") else {}
        return found

    @property
    def errors(self) -> str:
        """What it has written to stderr."""
        return (self._folder / "err").read_text()

    def reap(self) -> int | None:
        """Return its exit code, as the agent would ask for it."""
        assert self.started is not None
        if self.started.reap is not None:
            return self.started.reap()
        pid, status = os.waitpid(self.started.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None


class Agent:
    """As much of an agent as a starter sees: rounds of one worker, started by it or else afresh.

    Args:
        starter: Asked first.
        loop: Its own.
        folder: For the script and what workers write.
    """

    def __init__(self, starter: WorkerStarter, loop: RealLoop, folder: Path) -> None:
        self.starter = starter
        self.loop = loop
        self.folder = folder
        self.rounds = 0
        self.workers: list[Worker] = []
        (folder / "report.py").write_text(_REPORT)

    def begin_round(self, *words: str, **different: Any) -> Worker:  # noqa: ANN401  # fields of `WorkerStart`
        """Start a worker that reports, and then sleeps (`sleep`) or exits (`exit CODE`)."""
        self.rounds += 1
        folder = self.folder / str(self.rounds)
        folder.mkdir()
        prepared: list[bool] = []
        self.starter.prepare(1, lambda: prepared.append(True))
        assert self.loop.turn_until(lambda: bool(prepared), within_s=READY_S), "`prepare` did not call `done`"
        environment = {"PATH": os.defpath, "ELASTIC_INCARNATION": "the-kit", "ELASTIC_ROUND": str(self.rounds)}
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            wanted = WorkerStart(
                local_rank=0,
                global_rank=0,
                argv=(sys.executable, "-u", str(self.folder / "report.py"), *words),
                environment=environment,
                round_variables=frozenset({"ELASTIC_ROUND"}),
                stdout=out.fileno(),
                stderr=err.fileno(),
            )
            wanted = msgspec.structs.replace(wanted, **different)
            began_s = time.monotonic()
            started = self.starter.start(wanted)
            took_s = time.monotonic() - began_s
            if started is None:
                with bound_to(wanted.processors):
                    fresh = subprocess.Popen(
                        wanted.argv, env=wanted.environment, stdout=out, stderr=err, start_new_session=True
                    )
                fresh.returncode = 0  # reaped below
                self.workers.append(Worker(wanted, StartedProcess(pid=fresh.pid), folder, took_s))
            else:
                self.workers.append(Worker(wanted, started, folder, took_s))
        self.starter.round_started()
        self.loop.turn_until(lambda: bool(self.workers[-1].report), within_s=END_S)
        return Worker(wanted, started, folder, took_s)

    def end_round(self, signum: int = signal.SIGKILL) -> int:
        """Stop the worker, and return its exit code."""
        self.starter.round_stopping()
        worker = self.workers[-1]
        assert worker.started is not None
        with suppress(ProcessLookupError):
            os.killpg(worker.started.pid, signum)
        return self.end_of_worker()

    def end_of_worker(self) -> int:
        """Wait until the worker has ended, and return its exit code."""
        worker = self.workers[-1]
        codes: list[int] = []

        def ended() -> bool:
            code = worker.reap()
            codes.extend([] if code is None else [code])
            return bool(codes)

        assert self.loop.turn_until(ended, within_s=END_S), "the worker does not end"
        assert worker.started is not None
        self.starter.worker_ended(worker.started.pid)
        del self.workers[-1]
        return codes[0]

    def close(self) -> None:
        """End whatever runs."""
        while self.workers:
            self.end_round()
        self.starter.close()


class WorkerStarterConformance(Kit):
    """Subclass it and give the fixture `make_starter`: a function from a loop to a new starter.

    The kit runs rounds of one worker, a Python script. A starter may need a round to be ready: `is_ready` says when.
    One that never starts such a worker fails.
    """

    page: ClassVar[str] = "starter.md"

    ready_s = 30.0
    """How long the starter may take to be ready."""

    @pytest.fixture
    def make_starter(self) -> MakeStarter:
        """Return a function that makes a starter: the one fixture that a subclass must give."""
        pytest.fail(f"{type(self).__name__} must give the fixture `make_starter`: a function from a loop")

    def is_ready(self, starter: WorkerStarter) -> bool:
        """Return whether it would start the next worker. Override it where it has to get ready."""
        return True

    @pytest.fixture
    def agent(self, make_starter: MakeStarter, tmp_path: Path) -> Iterator[Agent]:
        """Return an agent with a starter of this test's own."""
        loop = RealLoop()
        agent = Agent(make_starter(loop), loop, tmp_path)
        yield agent
        agent.close()

    def _start(self, agent: Agent, *words: str, **different: Any) -> Worker:  # noqa: ANN401  # as above
        """Have it start a worker: in the first round, or once it is ready."""
        worker = agent.begin_round(*words, **different)
        if worker.started is None:
            ready = agent.loop.turn_until(lambda: self.is_ready(agent.starter), within_s=self.ready_s)
            assert ready, f"the starter is not ready within {self.ready_s:g} s; expected it ready: {agent.loop.notices}"
            agent.end_round()
            worker = agent.begin_round(*words, **different)
        assert worker.started is not None, (
            f"`start` returned None for {worker.wanted.argv}; expected a StartedProcess: {agent.loop.notices}"
        )
        assert worker.report, f"the started worker wrote no report; expected it to run its script: {worker.errors}"
        return worker

    def test_the_worker_is_the_one_that_was_asked_for(self, agent: Agent) -> None:
        """Its arguments, all of its environment and nothing else, its folder and its stdin."""
        worker = self._start(agent, "sleep")
        report = worker.report
        assert report["arguments"] == ["sleep"], "the worker has other arguments; expected those of `WorkerStart.argv`"
        wanted = {"LC_CTYPE": report["environment"].get("LC_CTYPE"), **worker.wanted.environment}
        assert {"LC_CTYPE": None, **report["environment"]} == wanted, (
            "the worker has another environment; expected exactly `WorkerStart.environment`"
        )  # Python sets that
        assert report["folder"] == os.getcwd(), "the worker has another working directory; expected the agent's"  # noqa: PTH109  # text
        assert report["stdin"] == list(os.fstat(0)[1:3]), "the worker has another stdin; expected the agent's"
        assert worker.started is not None
        assert report["pid"] == worker.started.pid, "the worker has another pid; expected `StartedProcess.pid`"

    def test_it_leads_a_session(self, agent: Agent) -> None:
        """The agent signals its process group, so no other process may be in it."""
        worker = self._start(agent, "sleep")
        assert worker.started is not None
        pid = worker.started.pid
        assert (os.getsid(pid), os.getpgid(pid)) == (pid, pid), (
            "the worker leads no session or no process group; expected both"
        )

    def test_it_writes_to_its_streams_and_nobody_holds_them(self, agent: Agent) -> None:
        """What reads a worker's output sees its end when the worker has ended."""
        read_fd, write_fd = os.pipe()
        try:
            worker = self._start(agent, "exit", "0", stderr=write_fd)
            assert os.fstat(write_fd), (
                "the starter closed a descriptor of the caller; expected it to close only its own"
            )
            assert worker.report["arguments"] == ["exit", "0"]
            agent.end_of_worker()
        finally:
            os.close(write_fd)
        os.set_blocking(read_fd, False)
        text = b""

        def ended() -> bool:
            nonlocal text
            with suppress(BlockingIOError):
                part = os.read(read_fd, 65536)
                text += part
                return not part
            return False

        try:
            assert agent.loop.turn_until(ended, within_s=5.0), (
                "a process holds the worker's stderr after the worker's end; expected all copies closed"
            )
        finally:
            os.close(read_fd)
        assert b"to stderr\n" in text, "the worker's stderr is not in its stream; expected it there"

    @pytest.mark.parametrize("code", [0, 7])
    def test_its_exit_code_is_told(self, agent: Agent, code: int) -> None:
        """The process that reaps it returns the code."""
        self._start(agent, "exit", str(code))
        assert agent.end_of_worker() == code, "`reap` returned another exit code; expected the worker's"

    def test_a_signal_ends_it_and_is_told(self, agent: Agent) -> None:
        """A code of -N is a death by signal N."""
        self._start(agent, "sleep")
        assert agent.end_round(signal.SIGTERM) == -signal.SIGTERM, (
            "`reap` returned another code; expected -N after signal N"
        )

    def test_it_runs_on_its_processors(self, agent: Agent) -> None:
        """On those alone, if they are given."""
        one = frozenset({min(os.sched_getaffinity(0))})
        report = self._start(agent, "sleep", processors=one).report
        assert report["processors"] == sorted(one), (
            "the worker runs on other processors; expected those of `WorkerStart.processors`"
        )

    def test_the_sweep_finds_what_it_leaves(self, agent: Agent) -> None:
        """The process was started with the mark in its environment."""
        worker = self._start(agent, "sleep")
        assert worker.started is not None
        entries = Path(f"/proc/{worker.started.pid}/environ").read_bytes().split(b"\0")
        assert b"ELASTIC_INCARNATION=the-kit" in entries, (
            "the worker's process started without ELASTIC_INCARNATION; expected the variable from its start"
        )

    def test_every_call_is_quick(self, agent: Agent) -> None:
        """All that the agent does waits for it."""
        took_s = [agent.begin_round("sleep").took_s]
        agent.loop.turn_until(lambda: self.is_ready(agent.starter), within_s=self.ready_s)
        agent.end_round()
        took_s.append(agent.begin_round("sleep").took_s)
        assert max(took_s) < QUICK_S, f"`start` took {max(took_s):.1f} s; expected less than {QUICK_S:g} s"

    def test_one_that_keeps_the_terminal_stays_in_this_session(self, agent: Agent) -> None:
        """Or is left to the core."""
        starter = agent.starter
        worker = agent.begin_round("exit", "0", terminal=True)
        if worker.started is not None:
            assert worker.report["session"] == os.getsid(0), (
                "a worker with `terminal` left the terminal's session; expected this one"
            )
        agent.end_of_worker()
        starter.round_stopping()

    def test_the_end_leaves_nothing(self, make_starter: MakeStarter, tmp_path: Path) -> None:
        """No process, no descriptor, no timer and no reader; a second `close` does nothing."""
        held = os.open(os.devnull, os.O_RDONLY)
        before = descriptors()
        loop = RealLoop()
        agent = Agent(make_starter(loop), loop, tmp_path)
        self._start(agent, "sleep")
        pids = frozenset(agent.starter.pids())
        agent.end_round()
        agent.close()
        agent.close()
        gone = loop.turn_until(lambda: not any(map(is_alive, pids)), within_s=5.0)
        assert gone, f"some of the starter's processes {sorted(pids)} run after `close`; expected none"
        assert not agent.starter.pids(), "`pids()` is not empty after `close`; expected no processes"
        assert not loop.readers, "the starter has readers on the loop after `close`; expected none"
        assert all(timer.cancelled for timer in loop.timers), (
            "the starter has timers on the loop after `close`; expected none"
        )
        check_descriptors(before, held)


def descriptors() -> frozenset[str]:
    """Return what this process has open."""
    return frozenset(os.listdir("/proc/self/fd"))  # noqa: PTH208  # as text


def check_descriptors(before: frozenset[str], held: int) -> None:
    """Check that a starter has closed its own descriptors in `close`, and no other; `held` is the caller's.

    Other threads of this process may open and close some of their own, so what is there for a moment is no fault.
    """
    end_s = time.monotonic() + _OTHERS_S
    while not (nothing_left := descriptors() <= before) and time.monotonic() < end_s:
        settle()
    assert nothing_left, "the starter left descriptors open after `close`; expected none"
    try:
        os.close(held)
    except OSError:
        raise AssertionError("the starter closed a descriptor of its caller; expected it to close its own") from None


def is_alive(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
