"""The workers of a node, as its agent reports them."""

from elastic_core.api import Record
from elastic_ops.status.document import WorkerStatus


class WorkerState(WorkerStatus, frozen=True, kw_only=True):
    """One worker. `uptime_s` is `None` after it has ended; missing paths are empty.

    `state`: `alive`, `done` (it succeeded), or `ended`. `control`: the path of its own server, if it starts one.
    """

    alive: bool
    uptime_s: float | None = None
    stdout: str = ""
    stderr: str = ""
    error_file: str = ""
    control: str = ""


class WorkersDocument(Record, frozen=True, kw_only=True):
    """The agent's response to `workers`."""

    workers: tuple[WorkerState, ...]
