"""Some agents of one run, from their start to their end."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL
from string import ascii_lowercase
from typing import Final, TypeVar

from elastic_core.api import SYSTEM_CLOCK, WaitBudget
from elastic_plugin_kit.agents import worker as worker_script
from elastic_plugin_kit.agents.agent import Agent

T = TypeVar("T")

_MARK: Final = "PLUGIN_KIT_RUN"
"""The variable by which all processes of a run are known, however they were started."""
_FOREIGN: Final = ("PET_", "ELASTIC_", "TORCHELASTIC_", "MASTER_")
"""Beginnings of variables that would choose something for these agents."""
_BACKEND: Final = "plugin-kit-files"
_POINTS: Final = f"""\
[elastic_core.hooks]
plugin-kit-recorder = elastic_plugin_kit.agents.recorder:Recorder

[elastic_core.rendezvous]
{_BACKEND} = elastic_plugin_kit.file_store:FileStore
"""
_LOOK_S: Final = 0.02
_SHOWN_LINES: Final = 40


class Agents:
    """The agents of one run, in the order of their start: `agents[0]`, or by its node id `agents["a"]`."""

    def __init__(
        self,
        folder: Path,
        *,
        line: Sequence[str],
        script: str | Path | None,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        within_s: float,
    ) -> None:
        self.folder = folder
        self.run_id = f"kit-{os.getpid()}-{folder.name}"
        self._line, self._script, self._arguments = list(line), script, list(arguments)
        self._environment, self._within_s = dict(environment), within_s
        self._agents: list[Agent] = []
        self._metadata = _metadata(folder)
        if isinstance(script, str):
            self._script = folder / "script.py"
            self._script.write_text(script)

    def __getitem__(self, which: int | str) -> Agent:
        """Return an agent by its number or its node id; of several with one id the last."""
        if isinstance(which, int):
            return self._agents[which]
        return next(agent for agent in reversed(self._agents) if agent.node_id == which)

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)

    # --- nodes

    def join(self, node_id: str = "", *, options: Sequence[str] = ()) -> Agent:
        """Start another agent, with further options if need be; a node that was killed comes back by its id."""
        name = node_id or ascii_lowercase[len(self._agents) % 26]
        own = self.folder / f"agent{len(self._agents)}-{name}"
        own.mkdir(mode=0o700)
        script = str(self._script if self._script is not None else worker_script.__file__)
        line = [*self._line, "--rdzv-id", self.run_id, "--node-id", name, "--run-dir", str(own / "run"), *options]
        command = [sys.executable, "-m", "elastic_core", "run", *line, script, *self._arguments]
        agent = Agent(command, node_id=name, folder=own, environment=self._variables(own))
        self._agents.append(agent)
        return agent

    def _variables(self, own: Path) -> dict[str, str]:
        inherited = {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN)}
        paths = [str(self._metadata), *(path for path in sys.path if path)]  # what this test can import
        places = {"XDG_RUNTIME_DIR": str(own), "TMPDIR": str(own), "PYTHONPATH": os.pathsep.join(paths)}
        return inherited | places | self._environment | {_MARK: self.run_id, worker_script.FOLDER: str(own)}

    # --- conditions

    def wait_for(self, condition: Callable[[], T], *, what: str = "", within_s: float | None = None) -> T:
        """Return the condition's first true value.

        Raises:
            AssertionError: it did not come in time; with what the agents have printed.
        """
        limit_s = within_s or self._within_s
        end_s = SYSTEM_CLOCK.monotonic_s() + limit_s
        while not (value := condition()):
            if SYSTEM_CLOCK.monotonic_s() > end_s:
                raise AssertionError(f"not within {limit_s:g} s: {what or condition}\n{self.printed()}")
            WaitBudget().sleep(_LOOK_S)
        return value

    def wait_for_workers(self, count: int, *, within_s: float | None = None) -> None:
        """Wait until so many workers run, of the agents that live, all in one round.

        Workers of the kit's own script have then written down their variables.
        """
        self.wait_for(lambda: self._running() == count, what=f"{count} workers of one round", within_s=within_s)

    def _running(self) -> int:
        """Return how many workers run in the newest round; 0 while any agent that has some is in another."""
        found = [agent.workers for agent in self._agents if agent.exit_code is None]
        workers = [worker for of_agent in found for worker in of_agent]
        if len({worker.round_index for worker in workers}) != 1:
            return 0
        begun = self._script is not None or all(worker.environment for worker in workers)
        alive = all(Path(f"/proc/{worker.pid}").exists() for worker in workers)
        return len(workers) if begun and alive and len(workers) == workers[0].world_size else 0

    # --- ends

    def finish(self, exit_code: int = 0) -> None:
        """Let all workers of the kit's own script end with this exit code."""
        for agent in self._agents:
            word = agent.folder / worker_script.FINISH
            word.with_suffix(".new").write_text(str(exit_code))
            word.with_suffix(".new").replace(word)

    def wait(self, *, within_s: float | None = None) -> list[int]:
        """Return the exit codes of all agents, in the order of their start, once they have ended."""
        limit_s = within_s or self._within_s
        end_s = SYSTEM_CLOCK.monotonic_s() + limit_s
        codes = []
        for agent in self._agents:
            try:
                codes.append(agent.wait(max(0.0, end_s - SYSTEM_CLOCK.monotonic_s())))
            except subprocess.TimeoutExpired:
                text = f"agent {agent.node_id} has not ended within {limit_s:g} s\n{self.printed()}"
                raise AssertionError(text) from None
        return codes

    def printed(self) -> str:
        """Return the end of what each agent has printed, for the report of a test."""
        parts = []
        for agent in self._agents:
            state = "runs" if agent.exit_code is None else f"exit code {agent.exit_code}"
            lines = (agent.stderr.splitlines() or ["(nothing)"])[-_SHOWN_LINES:]
            parts += [f"--- agent {agent.node_id}, {state}:", *lines]
        return "\n".join(parts)

    def close(self) -> None:
        """End all that is left: agents, their guards and their workers, each by its pid."""
        for agent in self._agents:
            if agent.exit_code is None:
                agent.kill()
        end_s = SYSTEM_CLOCK.monotonic_s() + self._within_s
        while (left := _processes_of(self.run_id)) and SYSTEM_CLOCK.monotonic_s() < end_s:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, SIGKILL)
            WaitBudget().sleep(_LOOK_S)
        for agent in self._agents:
            agent.outlast(max(0.0, end_s - SYSTEM_CLOCK.monotonic_s()))


@contextmanager
def run_agents(
    nodes: int = 1,
    *options: str,
    script: str | Path | None = None,
    arguments: Sequence[str] = (),
    nnodes: str = "",
    nproc_per_node: int = 1,
    backend: str = "",
    endpoint: str | Path = "",
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    within_s: float = 60.0,
) -> Iterator[Agents]:
    """Start real agents of one run on this host, and end whatever is left of them with the block.

    Each has a folder, a run directory and a node id (`a`, `b`, …) of its own, and a hook that writes down every moment.
    Where the block fails, what the agents have printed is a part of the report.

    Args:
        nodes: How many to start; `join` starts more.
        options: Further options of `elastic run`, the same for all: `"--policy", "mine", "--max-restarts", "3"`.
        script: What workers run: Python source, or the path of a script. None: the kit's own, which waits until the
            test says how it ends (`finish`, `Agent.end_worker`).
        arguments: The script's.
        nnodes: As `--nnodes`; empty: as many as `nodes`.
        nproc_per_node: As `--nproc-per-node`.
        backend: As `--rdzv-backend`. Empty: a store in files that the kit brings, or, for one node alone, `local`.
        endpoint: As `--rdzv-endpoint`, of that backend.
        environment: Variables that agents and workers have besides those of this process.
        folder: Where all files go; None: a temporary folder, removed with the block.
        within_s: How long each wait lasts at most, if nothing else is said.
    """
    own = folder or Path(tempfile.mkdtemp(prefix="agents-"))
    line = [*_meeting(own, nodes, nnodes, backend, str(endpoint)), "--nproc-per-node", str(nproc_per_node), *options]
    agents = Agents(
        own, line=line, script=script, arguments=arguments, environment=environment or {}, within_s=within_s
    )
    try:
        for _ in range(nodes):
            agents.join()
        yield agents
    except BaseException as err:
        if not isinstance(err, AssertionError) or "--- agent " not in str(err):
            err.add_note(agents.printed())
        raise
    finally:
        agents.close()
        if folder is None:
            shutil.rmtree(own, ignore_errors=True)


def _meeting(folder: Path, nodes: int, nnodes: str, backend: str, endpoint: str) -> list[str]:
    """Return the options by which the nodes meet; a last call is short where the store is the kit's own."""
    count = nnodes or str(nodes)
    if not backend and count == "1":
        return []
    if backend:
        where = ["--rdzv-endpoint", endpoint] if endpoint else []
        return ["--nnodes", count, "--rdzv-backend", backend, *where]
    where = ["--rdzv-endpoint", str(folder / "store"), "--rdzv-conf", "last_call_timeout=0.5"]
    return ["--nnodes", count, "--rdzv-backend", _BACKEND, *where]


def _metadata(folder: Path) -> Path:
    """Write what makes the recorder and the store plugins of these agents alone; return the folder to search."""
    place = folder / "plugins"
    info = place / "elastic_plugin_kit_agents-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elastic-plugin-kit-agents\nVersion: 0\n")
    (info / "entry_points.txt").write_text(_POINTS)
    return place


def _processes_of(run_id: str) -> list[int]:
    """Return the processes that live and have the run's mark among their variables."""
    mark = f"{_MARK}={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
