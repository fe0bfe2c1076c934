"""Prints the failures of a run on the console. The modules that format them are imported at the first failure."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from elastic_core.types import FailureClass

if TYPE_CHECKING:
    from elastic_core.failure.incident import Incident
    from elastic_core.logger import Logger


class FailureConsole:
    """Prints the line about a restart, and the block that ends a failed run. Threading: the supervisor's thread only.

    `endpoint` is where the nodes meet: it identifies a run without an id. `max_restarts` is the limit of the
    built-in policy; `None` for another policy, which has its own budget.
    """

    def __init__(self, log: Logger, run_id: str, *, endpoint: str = "", max_restarts: int | None = None) -> None:
        self._log = log
        self._run_id = run_id
        self._endpoint = endpoint
        self._max_restarts = max_restarts

    def restart(self, incident: Incident, count: int, *, node_id: str) -> None:
        """Print the failure and its restart; `count` is the number of the restart, `node_id` this node."""
        from elastic_core.failure.report import render_attempt
        from elastic_core.system.colours import paint_restart

        elsewhere, encoding = _is_elsewhere(incident, node_id), _encoding()
        text = render_attempt(
            incident, restart=count, max_restarts=self._max_restarts, elsewhere=elsewhere, encoding=encoding
        )
        self._log.notice(text, painter=paint_restart)

    def end(self, incident: Incident, path: str, *, node_id: str, host: str) -> None:
        """Print the block, or a line if another node prints the block or the run was preempted."""
        if incident.failure_class is FailureClass.PREEMPTED:  # there is nothing to repair
            where = f". Incident: {path}" if path else ""
            self._log.notice(f"run {self._run_id!r} was preempted: {incident.summary}{where}")
            return
        from elastic_core.failure.report import NO_ID, render_elsewhere, render_incident
        from elastic_core.system.colours import paint_failure, report_painter

        several = (incident.node_count or 1) > 1
        encoding, host = _encoding(), host if several else ""
        title = f"run at {self._endpoint}" if self._run_id == NO_ID else ""
        if _is_elsewhere(incident, node_id):
            text = render_elsewhere(incident, title=title, incident_path=path, host=host, encoding=encoding)
            self._log.notice(text, painter=paint_failure)
            return
        block = render_incident(incident, width=_width(), encoding=encoding, incident_path=path, title=title, host=host)
        painter = report_painter(incident.failure_class, incident.summary, incident.decision)
        self._log.block(*block.split("\n"), painter=painter)


def _is_elsewhere(incident: Incident, node_id: str) -> bool:
    """Return whether the node of the failure prints it, because that node reported after its workers had stopped."""
    whose = incident.node_id
    return whose != node_id and any(node.complete and node.node_id == whose for node in incident.nodes)


def _width() -> int:
    try:
        return max(80, min(120, os.get_terminal_size(2).columns))
    except OSError:
        return 100


def _encoding() -> str:
    return getattr(sys.stderr, "encoding", None) or "utf-8"  # None: an in-memory stream, for example of a notebook
