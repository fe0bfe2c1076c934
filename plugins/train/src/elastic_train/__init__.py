"""What a training script may use, each name alone: importing it loads nothing, a name is fetched when first used.

    attempt                 where in its run this worker is
    init_process_group      the process group of its variables
    Checkpointer            saves its state, and loads the newest that all ranks see
    ElasticSampler          its batches, each sample once an epoch however many ranks there come to be
    should_stop             whether to save, as this worker will be stopped
    ready_to_stop           that it has saved

None of it needs `elastic run`; what differs under torchrun and bare Python stands with each name.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from elastic_train.attempts import Attempt, attempt
    from elastic_train.checkpoint.checkpointer import Checkpointer, Loaded
    from elastic_train.checkpoint.errors import CheckpointError
    from elastic_train.process_group import JoinedGroup, init_process_group
    from elastic_train.sampler import ElasticSampler
    from elastic_train.stops import ready_to_stop, should_stop

__all__ = [
    "Attempt",
    "CheckpointError",
    "Checkpointer",
    "ElasticSampler",
    "JoinedGroup",
    "Loaded",
    "attempt",
    "init_process_group",
    "ready_to_stop",
    "should_stop",
]

_ROOMS = {  # none has the name of what is in it: the import would put the module in its place
    "attempts": "Attempt attempt",
    "checkpoint.checkpointer": "Checkpointer Loaded",
    "checkpoint.errors": "CheckpointError",
    "process_group": "JoinedGroup init_process_group",
    "sampler": "ElasticSampler",
    "stops": "ready_to_stop should_stop",
}
_PLACES = {name: room for room, names in _ROOMS.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
