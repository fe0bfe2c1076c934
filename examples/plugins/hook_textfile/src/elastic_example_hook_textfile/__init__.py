"""A hook that writes a run's numbers to a file for the textfile collector of Prometheus' node_exporter."""

import os
import re
from collections import Counter
from pathlib import Path
from typing import ClassVar

from elastic_core.api import (
    AgentHook,
    AgentStarted,
    AgentStopped,
    ConfigError,
    DecisionTaken,
    FailureSeen,
    HookSettings,
    Restart,
    RoundJoined,
    WorkerEnded,
    WorkersStarted,
)

METRICS = {
    "elastic_agent_up": ("gauge", "1 while the agent runs"),
    "elastic_exit_code": ("gauge", "the agent's exit code; absent until it has ended"),
    "elastic_failures_total": ("counter", "failures that this node has seen, by class"),
    "elastic_restarts_total": ("counter", "restarts that were decided after failures"),
    "elastic_rounds_total": ("counter", "rounds that this node has joined"),
    "elastic_workers": ("gauge", "workers of this node that run"),
    "elastic_world_size": ("gauge", "workers of all nodes in the last round"),
}


class Textfile(AgentHook):
    """Writes the file again whenever a number changes; a reader gets the whole file, or the one before it.

    The folder is the value of the variable `TEXTFILE_DIR`, or else the run directory.
    """

    api_version: ClassVar[int] = 1

    def __init__(self, settings: HookSettings) -> None:
        """Choose the folder; nothing is written before the agent has started."""
        super().__init__(settings)
        named = os.environ.get("TEXTFILE_DIR")
        if named and not Path(named).is_dir():
            raise ConfigError(f"TEXTFILE_DIR={named!r} is no directory", hint="make it, or unset the variable")
        self._folder = Path(named or settings.run_dir)
        self._file: Path | None = None
        self._labels = ""
        self._values = Counter[tuple[str, str]]()

    def on_agent_started(self, event: AgentStarted) -> None:
        """Name the file after run and node: each agent of a host has its own file."""
        name = re.sub(r"[^\w.-]", "_", f"elastic_{event.run_id}_{event.node_id}.prom")
        self._file = self._folder / name
        self._labels = f'run_id="{_escaped(event.run_id)}",node="{_escaped(event.node_id)}"'
        self._values["elastic_agent_up", ""] = 1
        self._write()

    def on_round_joined(self, event: RoundJoined) -> None:
        """Count the round."""
        self._values["elastic_rounds_total", ""] += 1
        self._values["elastic_world_size", ""] = event.round.world_size
        self._write()

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Set the number of workers."""
        self._values["elastic_workers", ""] = len(event.pids)
        self._write()

    def on_worker_exited(self, event: WorkerEnded) -> None:
        """Count one worker less."""
        self._values["elastic_workers", ""] -= 1
        self._write()

    def on_failure(self, event: FailureSeen) -> None:
        """Count the failure under its class."""
        self._values["elastic_failures_total", f',class="{_escaped(event.failure.failure_class)}"'] += 1
        self._write()

    def on_decision(self, event: DecisionTaken) -> None:
        """Count a restart."""
        self._values["elastic_restarts_total", ""] += isinstance(event.decision, Restart)
        self._write()

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Set the exit code."""
        self._values["elastic_agent_up", ""] = 0
        self._values["elastic_exit_code", ""] = event.exit_code
        self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        beside = self._file.with_suffix(".tmp")  # the collector reads *.prom only
        beside.write_text(self._text(), encoding="utf-8")
        beside.replace(self._file)

    def _text(self) -> str:
        lines = []
        for metric, (kind, meaning) in METRICS.items():
            samples = [(more, value) for (name, more), value in self._values.items() if name == metric]
            if samples:
                lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} {kind}"]
                lines += [f"{metric}{{{self._labels}{more}}} {value}" for more, value in samples]
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
