"""What runs inside a worker, and what a training script may import; the one room that may import torch.

Importing it loads nothing: each name is fetched when it is first used.
"""

# Not from typing: the startup hook imports this package in every worker, and typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from elastic_core.processes.errors.recording import record
    from elastic_core.worker.beats import heartbeat, section

__all__ = ["heartbeat", "record", "section"]


def __getattr__(name: str) -> object:
    if name == "record":
        from elastic_core.processes.errors.recording import record

        return record
    if name in ("heartbeat", "section"):
        from elastic_core.worker import beats

        return getattr(beats, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
