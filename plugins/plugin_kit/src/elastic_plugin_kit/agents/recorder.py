"""The hook by which a test knows what happened on a node: it writes down each moment, and read they are the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final, get_args

import msgspec

from elastic_core.api import AgentHook, AgentStopped, Moment

FILE: Final = "kit-moments.jsonl"
"""In the run directory."""
_KINDS: Final[dict[str, type[Moment]]] = {kind.__name__: kind for kind in get_args(Moment)}


class Recorder(AgentHook):
    """Appends each moment to a file, one JSON object a line: its kind, and the record."""

    api_version: ClassVar[int] = 1

    def on_moment(self, event: Moment) -> None:
        """Write it down."""
        self._keep(event)

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Write it down: the agent waits for this one."""
        self._keep(event)

    def _keep(self, event: Moment) -> None:
        line = msgspec.json.encode((type(event).__name__, event))
        with (Path(self.settings.run_dir) / FILE).open("ab") as file:
            file.write(line + b"\n")


def read_moments(run_dir: Path) -> Iterator[Moment]:
    """Give the moments that were written down; a line that is being written is left for later."""
    try:
        text = (run_dir / FILE).read_bytes()
    except FileNotFoundError:
        return
    for line in text.splitlines(keepends=True):
        if line.endswith(b"\n"):
            name, record = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
            yield msgspec.json.decode(record, type=_KINDS[name])
