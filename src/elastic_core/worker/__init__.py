"""Code that runs inside workers, and names that a training script may import. Only this package may import torch.

Importing it imports nothing else: each name is imported at its first use.
"""

# Not from typing: the startup hook imports this package in every worker, and typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Names that another distribution provides and that can be imported from here too, with their modules.
_OF_OTHERS = {
    "CheckpointError": "elastic_train",
    "Checkpointer": "elastic_train",
    "ElasticSampler": "elastic_train",
    "attempt": "elastic_train",
    "heartbeat": "elastic_watch.beats",
    "init_process_group": "elastic_train",
    "ready_to_stop": "elastic_train",
    "record": "elastic_ops.recording",
    "section": "elastic_watch.beats",
    "should_stop": "elastic_train",
    "step_completed": "elastic_watch.beats",
}


def __getattr__(name: str) -> "Any":  # noqa: ANN401  # of another distribution
    if name in _OF_OTHERS:
        return globals().setdefault(name, _of_another(name, _OF_OTHERS[name]))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _of_another(name: str, module: str) -> object:
    from importlib import import_module

    package = module.partition(".")[0]
    try:
        return getattr(import_module(module), name)  # imported at run time: the core must not depend on it
    except ModuleNotFoundError as err:
        if err.name != package:
            raise
        folder = package.removeprefix("elastic_")
        hint = "pip install -r sets/train.txt, in a checkout of elastic-core"  # installs all three
        raise ImportError(f"elastic_core.worker.{name} comes with elastic-{folder}. Try: {hint}") from None
