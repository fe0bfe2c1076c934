"""What runs inside a worker, and what a training script may import; the one room that may import torch.

Importing it loads nothing: each name is fetched when it is first used.
"""

# Not from typing: the startup hook imports this package in every worker, and typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from elastic_core.processes.errors.recording import record

__all__ = ["record"]

_OF_OTHERS = {
    "CheckpointError": "elastic_train",
    "Checkpointer": "elastic_train",
    "ElasticSampler": "elastic_train",
    "attempt": "elastic_train",
    "heartbeat": "elastic_watch.beats",
    "init_process_group": "elastic_train",
    "ready_to_stop": "elastic_train",
    "section": "elastic_watch.beats",
    "should_stop": "elastic_train",
}
"""Names that come with another distribution, and are found here too: the modules that have them."""


def __getattr__(name: str) -> "Any":  # noqa: ANN401  # what another distribution has
    if name == "record":
        from elastic_core.processes.errors.recording import record

        return record
    if name in _OF_OTHERS:
        return globals().setdefault(name, _of_another(name, _OF_OTHERS[name]))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _of_another(name: str, module: str) -> object:
    from importlib import import_module

    package = module.partition(".")[0]
    try:
        return getattr(import_module(module), name)  # a plugin, which the core may not know
    except ModuleNotFoundError as err:
        if err.name != package:
            raise
        folder = package.removeprefix("elastic_")
        hint = "pip install -r sets/train.txt, in a checkout of elastic-core"  # which has both
        raise ImportError(f"elastic_core.worker.{name} comes with elastic-{folder}. Try: {hint}") from None
