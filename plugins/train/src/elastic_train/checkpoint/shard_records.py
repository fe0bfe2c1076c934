"""Reader of `.metadata`, torch's pickled index of a sharded checkpoint, which runs no code from it.

The file names classes, and an unpickler calls what a file names. Here each name stands for an inert record, made for
one read alone, whatever the file does with it; from the records, checked field by field, torch's own are built anew.
"""

import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from elastic_train.checkpoint.errors import CheckpointError

_NAMES: Final = {
    "pathlib": ("Path", "PosixPath"),
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
"""The names in torch's own index of a sharded checkpoint, beside sizes and types of elements."""


class _Record:
    """An object in the file: the name that made it, and its fields. Other content is dropped."""

    def __init__(self, *_arguments: object) -> None:
        self.fields: dict[object, object] = {}

    def __setstate__(self, state: object) -> None:
        if type(state) is dict:
            self.fields = state
        elif type(state) is tuple:  # of TensorProperties
            self.fields = dict(enumerate(state))


class _Unpickler(pickle.Unpickler):
    """An unpickler that makes only records."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401  # a file
        super().__init__(stream)
        # Classes of this read: a file may set attributes of a class that it names.
        self._kinds: dict[tuple[str, str], type] = {("torch", "Size"): tuple}

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401  # a class, or a type of elements
        import torch

        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in self._kinds:
            if name not in _NAMES.get(module, ()):
                raise pickle.UnpicklingError(f"{module}.{name} has no place in a sharded checkpoint's index")
            self._kinds[module, name] = type(name, (_Record,), {})
        return self._kinds[module, name]


def read_index(path: Path, files: Collection[str]) -> Any:  # noqa: ANN401  # torch's Metadata
    """Return torch's index of the places of tensor parts.

    Args:
        path: The index file.
        files: The names of files with parts in the checkpoint's manifest.

    Raises:
        CheckpointError: it has content that a save does not write, such as an entry that is not a tensor, or a part in
            another file.
        OSError: it can't be read.
    """
    with path.open("rb") as stream:
        try:
            return _built(_Unpickler(stream).load(), files)
        except CheckpointError as err:
            raise CheckpointError(f"{path.name} of its shards {err.what}") from err
        except pickle.UnpicklingError as err:
            raise CheckpointError(f"{path.name} of its shards has something that only code could read") from err
        except Exception as err:
            if isinstance(err, OSError):
                raise
            # A pickle may call a record with anything, and end anywhere.
            raise CheckpointError(f"{path.name} of its shards is torn ({type(err).__name__})") from err


def _built(index: object, files: Collection[str]) -> Any:  # noqa: ANN401  # torch's
    from torch.distributed.checkpoint import metadata as torchs
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    fields = _fields(index, "Metadata")
    tensors = {}
    for name, entry in _of(dict, fields.get("state_dict_metadata")).items():
        if type(entry).__name__ == "BytesStorageMetadata":
            raise CheckpointError(f"has an entry that is no tensor ({_of(str, name)!a}), which only code could read")
        tensor = _fields(entry, "TensorStorageMetadata")
        properties = _fields(tensor.get("properties"), "TensorProperties")
        chunks = [_fields(chunk, "ChunkStorageMetadata") for chunk in _of(list, tensor.get("chunks"))]
        tensors[_of(str, name)] = torchs.TensorStorageMetadata(
            torchs.TensorProperties(dtype=_dtype(properties.get(0, properties.get("dtype")))),
            _size(tensor.get("size")),
            [torchs.ChunkStorageMetadata(_size(each.get("offsets")), _size(each.get("sizes"))) for each in chunks],
        )
    parts = {}
    for key, value in _of(dict, fields.get("storage_data")).items():
        place, part = _fields(key, "MetadataIndex"), _fields(value, "_StorageInfo")
        name = _of(str, place.get("fqn"))
        file, (offset, length) = _of(str, part.get("relative_path")), _size((part.get("offset"), part.get("length")))
        if name not in tensors:
            raise CheckpointError(f"has a part of no tensor ({name!a})")
        if file not in files:
            raise CheckpointError(f"names a file that the checkpoint has not ({file!a})")
        if part.get("transform_descriptors"):
            raise CheckpointError("names a transformation, and a save has none")
        index_hint = place.get("index")
        at = torchs.MetadataIndex(
            name,
            None if place.get("offset") is None else _size(place["offset"]),
            None if index_hint is None else _of(int, index_hint),
        )
        parts[at] = _StorageInfo(file, offset, length)
    return torchs.Metadata(tensors, storage_data=parts, storage_meta=torchs.StorageMeta())


def _fields(record: object, name: str) -> dict[Any, Any]:
    if not isinstance(record, _Record) or type(record).__name__ != name:
        raise CheckpointError(f"is torn: it has a {type(record).__name__} in place of a {name}")
    return record.fields


def _of(kind: type, value: Any) -> Any:  # noqa: ANN401  # of that kind
    if type(value) is not kind:
        raise CheckpointError(f"is torn: it has a {type(value).__name__} in place of a {kind.__name__}")
    return value


def _size(value: object) -> Any:  # noqa: ANN401  # torch's
    import torch

    if any(type(each) is not int or not 0 <= each < 1 << 63 for each in _of(tuple, value)):
        raise CheckpointError("is torn: it has a size that is none")
    return torch.Size(value)


def _dtype(value: object) -> Any:  # noqa: ANN401  # torch's
    import torch

    return _of(torch.dtype, value)
