"""The workers of a node, as its agent tells of them."""

from elastic_core.api import Record
from elastic_ops.status.document import WorkerStatus


class WorkerState(WorkerStatus, frozen=True, kw_only=True):
    """One worker. `uptime_s` is None once it has ended; paths are empty where there is none.

    `state`: `alive`, `done` (it ended well by itself), or `ended`. `control`: where its own server would be.
    """

    alive: bool
    uptime_s: float | None = None
    stdout: str = ""
    stderr: str = ""
    error_file: str = ""
    control: str = ""


class WorkersDocument(Record, frozen=True, kw_only=True):
    """What the agent answers to `workers`."""

    workers: tuple[WorkerState, ...]
