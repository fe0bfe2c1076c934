"""The hook that records a run in its run directory: `status.json`, `journal.jsonl`, and incidents of lost nodes."""

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from elastic_core.api import AgentHook, AgentStarted, HookSettings, Power, encode_json
from elastic_core.api.feed import Answer, RunEvent

if TYPE_CHECKING:
    from elastic_ops.status.files import StatusFiles

BEGIN_AFTER_S: Final = 0.5
"""How long a run must last before files are written, unless its directory is kept."""
WRITE_S: Final = 1.0
STATE: Final = "state"
"""The name under which the status is offered to requests to the agent."""
LISTENING: Final = "listening"
"""The event by which a hook adds the path of the agent's control plane to the status."""
_JSON: Final = "application/json"


class RunRecorder(AgentHook):
    """Records the agent: its status after each change, each event of its feed, and an incident for each lost node.

    Nothing is loaded or written within the first half second, so the start of a run does not wait for it.
    """

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.FEED, Power.RUN})
    without_events: ClassVar[frozenset[str]] = frozenset({"store_call"})

    def __init__(self, settings: HookSettings) -> None:
        """Write nothing yet."""
        super().__init__(settings)
        self._lock = threading.Lock()
        self._early: list[RunEvent] = []
        self._files: StatusFiles | None = None

    def on_agent_started(self, event: AgentStarted) -> None:
        """Begin to write soon, and offer the status."""
        self.run.offer(STATE, self._answer)
        self.run.call_later(BEGIN_AFTER_S, self._warm)

    def on_run_event(self, event: RunEvent) -> None:
        """Record an event. Threading: the feed's."""
        with self._lock:
            files = self._files
            if files is None:
                self._early.append(event)
        if files is not None:
            files.take((event,))
        if event.name == "feed_closed":
            kept = event.values.get("run_dir_kept") is True
            if kept or files is not None:
                self._begin().close(kept=kept, within_s=WRITE_S)

    def _warm(self) -> None:
        self._begin()

    def _begin(self) -> "StatusFiles":
        """Return the writer of the files. The first call adds all events so far. Threading: any."""
        from elastic_core.api.tools import AgentIdentity
        from elastic_ops.status.files import StatusFiles
        from elastic_ops.status.keeper import StatusKeeper
        from elastic_ops.status.lost_nodes import LostNodes

        with self._lock:
            if self._files is None:
                began_ns = self._early[0].at_ns if self._early else 0
                agent = AgentIdentity.own(host=os.uname().nodename, started_ns=began_ns)
                self._files = StatusFiles(
                    StatusKeeper(self.settings, agent),
                    LostNodes(self.settings),
                    run_dir=self.run.run_dir,
                    where=self.run.store_place,
                    notice=lambda text: self.run.notice(text, named=False),
                )
                self._files.take(self._early)
                self._early = []
            return self._files

    def _answer(self, parameters: Mapping[str, str]) -> Answer:
        """Return the status as JSON. Threading: any."""
        return Answer(content=encode_json(self._begin().status()).decode(), content_type=_JSON)
