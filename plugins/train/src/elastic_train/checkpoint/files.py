"""The files of one checkpoint: one per rank for values, and those of torch.distributed.checkpoint for shards."""

import pickle
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from elastic_train.checkpoint.disk import sync_file, write_file
from elastic_train.checkpoint.errors import CheckpointError, UnreadableError, hint_of, reason_of, system_error
from elastic_train.checkpoint.layout import SHARDS
from elastic_train.checkpoint.shard_records import read_index

_METADATA: Final = ".metadata"


def file_of(kind: str, rank: int) -> str:
    """Return the name of the file with a rank's values."""
    return f"rank-{rank:05d}.pt" if kind == "each" else "state.pt"


def write_values(path: Path, values: object) -> None:
    """Write values to a file, and sync it.

    Raises:
        OSError, RuntimeError: the write failed, as when the disk is full.
    """
    import torch

    write_file(path, lambda file: torch.save(values, file))


def read_values(path: Path, map_location: Any) -> Any:  # noqa: ANN401  # torch's
    """Return the values in a file, without running code from it."""
    import torch

    return torch.load(path, map_location=map_location, weights_only=True)


def write_shards(folder: Path, shards: dict[str, Any], group: object, rank: int) -> list[str]:
    """Write this rank's part of sharded tensors. Return the names of its files, relative to `folder`.

    Called: by all ranks of the group. The first rank writes the index.
    """
    import torch.distributed.checkpoint as dcp

    class Writer(dcp.FileSystemWriter):  # type: ignore[misc]  # torch is not known to the type checker
        """Torch's writer with the system's error, if there is one: ranks send each other errors without causes."""

        def write_data(self, *args: Any) -> Any:  # noqa: ANN401  # torch's
            try:
                return super().write_data(*args)
            except Exception as err:
                cause = system_error(err)
                if cause is None or cause is err:
                    raise
                raise OSError(cause.errno, cause.strerror) from err

    target = folder / SHARDS
    _in_torch(lambda: dcp.save(shards, storage_writer=Writer(target, sync_files=True), process_group=group))
    mine = sorted(target.glob(f"__{rank}_*"))
    if rank == 0:
        mine.append(target / _METADATA)
    for path in mine:
        sync_file(path)
    return [f"{SHARDS}/{path.name}" for path in mine]


def read_shard_index(folder: Path, names: Collection[str]) -> Any:  # noqa: ANN401  # torch's
    """Return the index of a sharded checkpoint, for `read_shards`.

    Raises:
        CheckpointError: the index is incomplete, or has content that only code could read.
        OSError: it can't be read.
    """
    return read_index(folder / SHARDS / _METADATA, {name.removeprefix(f"{SHARDS}/") for name in names})


def read_shards(folder: Path, shards: dict[str, Any], index: Any, group: object) -> None:  # noqa: ANN401  # torch's
    """Read shards into sharded tensors, at any world size. Called: by all ranks.

    Args:
        folder: The checkpoint's folder.
        shards: The tensors, by their places in the state.
        index: The result of `read_shard_index`.
        group: The ranks' process group.

    Raises:
        UnreadableError: a file has an entry that is not a tensor.
        CheckpointError: the shards can't be read.
    """
    import torch.distributed.checkpoint as dcp

    class Reader(dcp.FileSystemReader):  # type: ignore[misc]  # torch is not known to the type checker
        """Torch's reader, with an index that was read before. Torch's own way to read the index runs code."""

        def read_metadata(self, *args: object, **options: object) -> Any:  # noqa: ANN401  # torch's
            index.storage_meta.load_id = self.load_id
            return index

    class Planner(dcp.DefaultLoadPlanner):  # type: ignore[misc]  # torch is not known to the type checker
        """Torch's planner for tensors only. Torch reads all other entries by running their code."""

        def load_bytes(self, read_item: Any, value: object) -> None:  # noqa: ANN401  # torch's
            raise CheckpointError(f"the entry {read_item.dest_index.fqn!a} is no tensor, and only code could read it")

    reader = Reader(folder / SHARDS)
    _in_torch(lambda: dcp.load(shards, storage_reader=reader, planner=Planner(), process_group=group))


def _in_torch(call: Callable[[], object]) -> None:
    """Call torch.distributed.checkpoint, whose own exception does not inherit from `Exception`.

    Raises:
        UnreadableError: a file has an entry that is not a tensor.
        CheckpointError: the error of the first rank that failed, the same on all ranks.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        call()
    except CheckpointException as err:
        failures = {rank: failure[0] for rank, failure in sorted(err.failures.items())}
        first = next(iter(failures.values()), err)
        if isinstance(first, pickle.UnpicklingError):
            raise UnreadableError(reason_of(first)) from err
        raise CheckpointError(reason_of(first), hint=hint_of(first)) from err
