"""The current ledger of agents on this machine, requested from their control planes.

The hook `ledger` publishes its fields when the state of the agent changes. A screen needs the current step and state.
"""

import http.client
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, Clock, ConfigError
from elastic_ops.control_plane.client import call
from elastic_ops.status.document import STATUS_FILE, UNREADABLE, read_status
from elastic_ops.status.ledger_bar import HOOK
from elastic_ops.status.view import RunView

ASK_S: Final = 1.0
"""The time limit of a request."""
LEAST_REST: Final = 20.0
"""How many times its own duration a request is away from the next one to that agent: a long ledger takes longer."""
_FIELDS: Final = msgspec.json.Decoder(dict[str, object])


class LiveLedgers:
    """Replaces the published fields of the ledger by the current ones. Threading: one thread."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Request nothing yet."""
        self._clock = clock
        self._sockets: dict[tuple[str, int], str] = {}
        self._next_s: dict[str, float] = {}
        self._fields: dict[str, Mapping[str, object]] = {}

    def of(self, runs: Sequence[RunView]) -> tuple[RunView, ...]:
        """Return the views with the current fields of live agents that have the hook."""
        return tuple(map(self._of, runs))

    def _of(self, run: RunView) -> RunView:
        agent = run.agent
        if HOOK not in run.hooks or agent is None or not agent.alive or run.verdict is not None:
            return run
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_s.get(run.run_dir, 0.0):
            fields = self._ask(run.run_dir, agent.pid)
            took_s = self._clock.monotonic_s() - now_s
            self._next_s[run.run_dir] = now_s + LEAST_REST * took_s
            if fields is None:
                self._fields.pop(run.run_dir, None)
            else:
                self._fields[run.run_dir] = fields
        known = self._fields.get(run.run_dir)
        published = run.hooks[HOOK]
        # What was published since the last request is newer.
        if known is None or _present_s(published) > _present_s(known):
            return run
        return replace(run, hooks={**run.hooks, HOOK: known})

    def _ask(self, run_dir: str, pid: int) -> Mapping[str, object] | None:
        path = self._socket(run_dir, pid)
        if not path:
            return None
        try:
            reply = call(path, HOOK, {"lines": "no"}, timeout_s=ASK_S)
            fields = _FIELDS.decode(reply.content) if reply.ok else {}
        except (OSError, http.client.HTTPException, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None  # it has just ended, or is another user's: the published fields remain
        fields.pop("lines", None)
        return fields if _present_s(fields) > 0 else None

    def _socket(self, run_dir: str, pid: int) -> str:
        known = self._sockets.get((run_dir, pid), "")
        if not known:
            try:
                known = read_status(Path(run_dir) / STATUS_FILE).control
            except (OSError, ConfigError, *UNREADABLE):
                return ""
            self._sockets[run_dir, pid] = known
        return known


def _present_s(fields: Mapping[str, object]) -> float:
    value = fields.get("present_s")
    return float(value) if isinstance(value, int | float) else 0.0
