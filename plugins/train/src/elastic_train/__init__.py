"""Names for training scripts. Importing the package loads nothing; each name is imported at its first use.

    attempt                 this worker's place in its run: round, restarts, rank, world size
    init_process_group      joins the process group that the worker's environment variables describe
    Checkpointer            saves the training state, and loads the newest checkpoint that all ranks see
    ElasticSampler          batches of a data set: each sample once per epoch, at any world size
    should_stop             whether to save now, because this worker will be stopped
    ready_to_stop           reports that this worker has saved
    saving, restoring       mark the time during which training waits for a save, or a restore

None of them needs `elastic run`. Each docstring describes what differs under torchrun and bare Python.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from elastic_train.attempts import Attempt, attempt
    from elastic_train.checkpoint.checkpointer import Checkpointer, Loaded
    from elastic_train.checkpoint.errors import CheckpointError
    from elastic_train.marks import restoring, saving
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
    "restoring",
    "saving",
    "should_stop",
]

_ROOMS = {  # no module has the name of its content: an import would replace the name by the module
    "attempts": "Attempt attempt",
    "checkpoint.checkpointer": "Checkpointer Loaded",
    "checkpoint.errors": "CheckpointError",
    "marks": "restoring saving",
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
