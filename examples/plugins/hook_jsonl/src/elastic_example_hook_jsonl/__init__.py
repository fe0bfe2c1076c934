"""A hook that writes each moment of the agent's life as one JSON line into the run directory."""

from pathlib import Path
from typing import ClassVar

import msgspec

from elastic_core.api import SYSTEM_CLOCK, AgentHook, AgentStarted, HookSettings, Moment

FILE_NAME = "moments.jsonl"


class MomentLog(AgentHook):
    """Writes `{"moment": …, "at_ns": …, <the moment's fields>}` a line; the file is whole after each line."""

    api_version: ClassVar[int] = 1

    def __init__(self, settings: HookSettings) -> None:
        """Open nothing yet: the run directory is there when the agent has started."""
        super().__init__(settings)
        self._path: Path | None = None

    def on_agent_started(self, event: AgentStarted) -> None:
        """Choose the file."""
        self._path = Path(event.run_dir) / FILE_NAME
        self._write(event)

    def on_moment(self, event: Moment) -> None:
        """Note every other moment, also those that later versions add."""
        self._write(event)

    def _write(self, event: Moment) -> None:
        if self._path is None:
            return
        line = {"moment": type(event).__name__, "at_ns": SYSTEM_CLOCK.wall_ns(), **msgspec.to_builtins(event)}
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
