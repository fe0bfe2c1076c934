"""The files of one checkpoint, by torch: a rank's values in one, shards by torch.distributed.checkpoint."""

import pickle
from pathlib import Path
from typing import Any, Final

from elastic_train.checkpoint.disk import sync_file, write_file
from elastic_train.checkpoint.layout import SHARDS

_METADATA: Final = ".metadata"
_OF_TORCH: Final = {
    "pathlib": ("Path", "PosixPath"),
    "torch": ("Size",),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.serialization": ("_get_layout",),
}
"""What torch's own pickle of a sharded checkpoint's metadata is made of, beside types of elements."""


def file_of(kind: str, rank: int) -> str:
    """Return the file with a rank's values."""
    return f"rank-{rank:05d}.pt" if kind == "each" else "state.pt"


def write_values(path: Path, values: object) -> None:
    """Write values into a file, synced.

    Raises:
        OSError, RuntimeError: the disk is full, say.
    """
    import torch

    write_file(path, lambda file: torch.save(values, file))


def read_values(path: Path, map_location: Any) -> Any:  # noqa: ANN401  # torch's
    """Return the values of a file, without running any code of its."""
    import torch

    return torch.load(path, map_location=map_location, weights_only=True)


def write_shards(folder: Path, shards: dict[str, Any], group: object, rank: int) -> list[str]:
    """Write this rank's part of sharded tensors; return the files that are its own, from `folder` on.

    Called: by all ranks of the group, of which the first writes what is where.
    """
    import torch.distributed.checkpoint as dcp

    target = folder / SHARDS
    dcp.save(shards, storage_writer=dcp.FileSystemWriter(target, sync_files=True), process_group=group)
    mine = sorted(target.glob(f"__{rank}_*"))
    if rank == 0:
        mine.append(target / _METADATA)
    for path in mine:
        sync_file(path)
    return [f"{SHARDS}/{path.name}" for path in mine]


def read_shards(folder: Path, shards: dict[str, Any], group: object) -> None:
    """Read shards into sharded tensors, whatever the ranks were that wrote them. Called: by all ranks."""
    import torch.distributed.checkpoint as dcp

    class Reader(dcp.FileSystemReader):  # type: ignore[misc]  # torch is not known to the type checker
        """Torch's reader, but for the pickle of what is where: it may name nothing but torch's own records."""

        def read_metadata(self, *args: object, **options: Any) -> Any:  # noqa: ANN401  # torch's
            with self.fs.create_stream(self.path / _METADATA, "rb") as stream:
                metadata = _RecordsOfTorch(stream).load()
            metadata.storage_meta = metadata.storage_meta or dcp.metadata.StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            return metadata

    dcp.load(shards, storage_reader=Reader(folder / SHARDS), process_group=group)


class _RecordsOfTorch(pickle.Unpickler):
    """A reader of pickles of torch's records alone."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401  # a class
        import torch

        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name not in _OF_TORCH.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a sharded checkpoint's metadata")
        return super().find_class(module, name)
