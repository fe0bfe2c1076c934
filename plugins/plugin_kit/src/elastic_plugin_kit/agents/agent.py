"""One agent that a test has started, and what can be seen of it from outside."""

import json
import os
import select
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, pidfd_send_signal
from typing import TypeVar

from elastic_core.api import Moment, Round, RoundJoined, WorkersStarted
from elastic_core.api.commands import Incident, find_incidents
from elastic_plugin_kit.agents.recorder import read_moments

M = TypeVar("M")


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One worker process, as its agent has started it."""

    pid: int
    round_index: int
    rank: int
    local_rank: int
    world_size: int
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Its variables as it found them; empty until it runs, and for a script of the test's own."""


class Agent:
    """One agent, on a node of its own as far as it knows."""

    def __init__(self, command: Sequence[str], *, node_id: str, folder: Path, environment: Mapping[str, str]) -> None:
        """Start it. `folder`: its own; what it prints, its run directory and its temporary files are there."""
        self.node_id = node_id
        self.folder = folder
        self.run_dir = folder / "run"
        self._out, self._err = folder / "stdout", folder / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        self.pid = self._process.pid
        self._survivors: dict[int, int] = {}

    # --- what it has come to

    @property
    def exit_code(self) -> int | None:
        """Its exit code; -N after death by signal N. `None` means that it runs."""
        return self._process.poll()

    @property
    def stdout(self) -> str:
        """What it and its workers have printed so far; lines of several workers are whole if each is one write."""
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What it and its workers have printed so far, where errors go."""
        return self._err.read_text(errors="replace")

    @property
    def incidents(self) -> list[Incident]:
        """The incidents that this node has written, oldest first; a moment behind the agent until it ends."""
        return [found.incident for found in find_incidents(self.run_dir)]

    @property
    def moments(self) -> list[Moment]:
        """All moments of this node so far, in order: failures, decisions, ends of workers and others."""
        return list(read_moments(self.run_dir))

    def moments_of(self, kind: type[M]) -> list[M]:
        """The moments of one kind, such as `DecisionTaken`."""
        return [moment for moment in self.moments if isinstance(moment, kind)]

    @property
    def rounds(self) -> list[Round]:
        """The rounds that this node was in, oldest first."""
        return [moment.round for moment in self.moments_of(RoundJoined)]

    @property
    def started(self) -> list[Worker]:
        """All workers that this node has started, of all rounds, oldest first."""
        return [worker for moment in self.moments_of(WorkersStarted) for worker in self._workers(moment)]

    @property
    def workers(self) -> list[Worker]:
        """Those that it has started last, by local rank, whether or not they run still."""
        starts = self.moments_of(WorkersStarted)
        return self._workers(starts[-1]) if starts else []

    @property
    def ranks(self) -> list[tuple[int, ...]]:
        """The global ranks of its workers, start by start: `[(0, 1), (2, 3)]`."""
        return [tuple(worker.rank for worker in self._workers(moment)) for moment in self.moments_of(WorkersStarted)]

    def _workers(self, moment: WorkersStarted) -> list[Worker]:
        return [
            Worker(
                pid=pid,
                round_index=moment.round.index,
                rank=moment.round.global_rank(local_rank),
                local_rank=local_rank,
                world_size=moment.round.world_size,
                environment=self._environment(pid),
            )
            for local_rank, pid in enumerate(moment.pids)
        ]

    def _environment(self, pid: int) -> dict[str, str]:
        try:
            found: dict[str, str] = json.loads((self.folder / f"worker-{pid}.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    # --- what a test does to it

    def signal(self, number: int) -> None:
        """Send the agent a signal: `SIGTERM` stops it, `SIGSTOP` pauses it."""
        self._note_children()
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it, as a node that loses its power: its guard ends its workers."""
        self.signal(SIGKILL)
        self._process.wait()

    def kill_worker(self, local_rank: int = 0, number: int = SIGKILL) -> None:
        """Send a worker of those started last a signal."""
        os.kill(self.workers[local_rank].pid, number)

    def end_worker(self, local_rank: int = 0, *, exit_code: int) -> None:
        """Let a worker end with this exit code; it must run the kit's own script."""
        word = self.folder / f"exit-{self.workers[local_rank].pid}"
        word.with_suffix(".new").write_text(str(exit_code))
        word.with_suffix(".new").replace(word)

    def wait(self, within_s: float) -> int:
        """Return its exit code, once it has ended; TimeoutExpired where it does not in time."""
        return self._process.wait(within_s)

    # --- what survives it

    def _note_children(self) -> None:
        """Hold on to its children: once it is dead nothing else leads to its guard, whose environment is empty."""
        if self.exit_code is not None:
            return  # its number may be another's by now
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in self._survivors:
                with suppress(OSError):  # it ends while we look
                    parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[1]
                    if int(parent) == self.pid:
                        self._survivors[int(entry.name)] = os.pidfd_open(int(entry.name))

    def outlast(self, within_s: float) -> None:
        """Wait until its guard has given its seat back and ended, and kill it where that takes longer; idempotent."""
        while self._survivors:
            _, pidfd = self._survivors.popitem()
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(within_s * 1000):
                with suppress(ProcessLookupError):
                    pidfd_send_signal(pidfd, SIGKILL)
            os.close(pidfd)
