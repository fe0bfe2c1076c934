"""What runs inside a worker, and what a training script may import; the one room that may import torch.

Importing it loads nothing: each name is fetched when it is first used.
"""

# Not from typing: the startup hook imports this package in every worker, and typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from elastic_core.processes.errors.recording import record
    from elastic_core.worker.beats import heartbeat, section

__all__ = ["heartbeat", "record", "section"]

_TRAINING = frozenset(
    {
        "CheckpointError",
        "Checkpointer",
        "ElasticSampler",
        "attempt",
        "init_process_group",
        "ready_to_stop",
        "should_stop",
    }
)
"""What comes with elastic-train, and is found here too."""


def __getattr__(name: str) -> object:
    if name == "record":
        from elastic_core.processes.errors.recording import record

        return record
    if name in ("heartbeat", "section"):
        from elastic_core.worker import beats

        return getattr(beats, name)
    if name in _TRAINING:
        return _of_training(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _of_training(name: str) -> object:
    from importlib import import_module

    try:
        return getattr(import_module("elastic_train"), name)  # a plugin, which the core may not know
    except ModuleNotFoundError as err:
        if err.name != "elastic_train":
            raise
        hint = "pip install ./plugins/train, in a checkout of elastic-core"
        raise ImportError(f"elastic_core.worker.{name} comes with elastic-train. Try: {hint}") from None
