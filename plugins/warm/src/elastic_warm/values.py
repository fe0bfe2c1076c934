"""Nested values of a training state as plain JSON and a list of tensors, and back.

Nothing is pickled, and reading the JSON runs no code of it: it can only name the kinds of this module.
"""

import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch

from elastic_warm.division import Division, division_of, local_shape
from elastic_warm.state_errors import StateError

Tree = Any
"""A plain scalar, or a list of a tag and its arguments."""

_SCALARS: Final = (type(None), bool, int, float, str)
_DICTS: Final[dict[type, str]] = {dict: "dict", OrderedDict: "OrderedDict", Counter: "Counter"}
_LISTS: Final[dict[type, str]] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset", torch.Size: "Size"}
_TENSORS: Final = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_DTYPES: Final[dict[str, torch.dtype]] = {
    str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)
}
_ALIGNED: Final = 64
"""Tensors begin at multiples of this many bytes."""


class TensorInfo(NamedTuple):
    """What describes a tensor's bytes."""

    dtype: str
    shape: tuple[int, ...]
    device: str
    """The type of the device it was on, such as `cpu` or `cuda`."""

    @property
    def dtype_of_torch(self) -> torch.dtype:
        """The dtype as torch's object."""
        return _DTYPES[self.dtype]

    @property
    def size(self) -> int:
        """The number of bytes."""
        return math.prod(self.shape) * int(self.dtype_of_torch.itemsize)


class Flat(NamedTuple):
    """A value as a tree, with the tensors that it refers to."""

    tree: Tree
    common: list[torch.Tensor]
    """The tensors that are the same on all ranks."""
    own: list[torch.Tensor]
    """The tensors of which each rank has its own: local shards."""
    divisions: tuple[Division | None, ...] = ()
    """How the own ones are divided among ranks, each way once. `None`: in a way that is not known."""


class _Tensors:
    """The tensors of a value, as its tree is made."""

    def __init__(self, all_own: bool) -> None:
        self.common: list[torch.Tensor] = []
        self.own: list[torch.Tensor] = []
        self.divisions: dict[Division | None, None] = {}
        self.all_own = all_own

    def add(self, tensor: torch.Tensor, *, is_own: bool = False) -> list[Any]:
        """Return the reference to a tensor in the tree."""
        is_own = is_own or self.all_own
        tensors = self.own if is_own else self.common
        tensors.append(tensor)
        return ["own" if is_own else "common", len(tensors) - 1]


def flattened(value: object, name: str, *, all_own: bool = False) -> Flat:
    """Return a value as a tree and its tensors, which are not copied.

    Args:
        value: Tensors, plain values, numpy arrays, and dicts, lists, tuples and sets of these.
        name: Name of the part of the state, for errors.
        all_own: Whether all tensors are the rank's own.

    Raises:
        StateError: the value contains something else, or contains itself.
    """
    found = _Tensors(all_own)
    try:
        return Flat(_tree_of(value, name, found), found.common, found.own, tuple(found.divisions))
    except RecursionError:
        raise StateError(f"state.{name} contains itself, or is nested too deeply", hint="a flat dict") from None


def _tree_of(value: Any, place: str, found: _Tensors) -> Tree:  # noqa: ANN401  # anything
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind in _TENSORS:
        return _tensor_tree(value, place, found)
    if kind in _DICTS or (isinstance(value, dict) and kind.__name__ == "defaultdict"):
        entries = [
            [_tree_of(key, f"a key of {place}", found), _tree_of(each, f"{place}[{key!r}]", found)]
            for key, each in value.items()
        ]
        return ["map", _DICTS.get(kind, "dict"), entries]
    if kind in _LISTS:
        return ["seq", _LISTS[kind], [_tree_of(each, f"{place}[{at}]", found) for at, each in enumerate(value)]]
    if kind in (bytes, bytearray):
        return ["bytes", kind.__name__, *found.add(_tensor_of(value))]
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind is torch.dtype:
        return ["dtype", str(value).removeprefix("torch.")]
    if kind is torch.device:
        return ["device", str(value)]
    if hasattr(value, "to_local") and isinstance(value, torch.Tensor):
        return _sharded_tree(value, place, found)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype.kind in "biufc":
        is_scalar = isinstance(value, numpy.generic)
        return ["numpy", is_scalar, value.dtype.str, list(value.shape), *found.add(_tensor_of(value.tobytes()))]
    raise StateError(
        f"state.{place} is a {kind.__module__}.{kind.__qualname__}; expected a tensor, a plain value, or a dict, list, "
        "tuple or set of these",
        hint="an object with state_dict() and load_state_dict(), or a plain value",
    )


def _tensor_tree(tensor: torch.Tensor, place: str, found: _Tensors) -> Tree:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
        raise StateError(
            f"state.{place} is a tensor of layout {tensor.layout}, dtype {tensor.dtype}, on {tensor.device}; "
            "expected a dense tensor in memory",
            hint="its dense form, or its parts as several tensors",
        )
    return ["tensor", *found.add(tensor)]


def _sharded_tree(value: Any, place: str, found: _Tensors) -> Tree:  # noqa: ANN401  # a DTensor
    placements = [str(each) for each in value.placements]
    is_own = any(not each.is_replicate() for each in value.placements)
    local = value.to_local().detach()
    if type(local) not in _TENSORS:
        raise StateError(f"the local part of state.{place} is a {type(local).__qualname__}", hint="a plain tensor")
    shape, division = tuple(value.shape), division_of(value)
    if division is not None and division.ranks != ():
        rank = sys.modules["torch.distributed"].get_rank()
        if rank >= math.prod(division.mesh) or local_shape(shape, division, rank) != tuple(local.shape):
            division = None
    if is_own and not found.all_own:  # otherwise all is each rank's own, and nothing can be divided
        found.divisions[division] = None
    where = [*found.add(local, is_own=is_own), list(shape), list(value.stride()), placements]
    return ["sharded", *where, division, str(local.dtype).removeprefix("torch."), local.device.type]


def _tensor_of(data: bytes | bytearray) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


# --- back

Sharded = Callable[[torch.Tensor, Sequence[int], Sequence[int], Sequence[str]], torch.Tensor]
"""Makes a sharded tensor of its local part, global shape, global stride and placements."""


def _not_sharded(*_: object) -> torch.Tensor:
    raise StateError(
        "a sharded tensor is kept in an object that is neither a module nor an optimizer of torch",
        hint="a module or optimizer as a part of State",
    )


class Values:
    """Reads values from a tree.

    Args:
        common: Returns tensor number i of the common ones; the reader may keep it.
        own: The same for the rank's own ones.
        sharded: Makes a sharded tensor.
    """

    def __init__(
        self,
        common: Callable[[int], torch.Tensor],
        own: Callable[[int], torch.Tensor],
        sharded: Sharded = _not_sharded,
    ) -> None:
        self._tensors = {"common": common, "own": own}
        self._sharded = sharded

    def of(self, tree: Tree) -> Any:  # noqa: ANN401  # anything
        """Return the value of a tree.

        Raises:
            StateError: the tree is malformed.
        """
        try:
            return self._of(tree)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as err:
            raise StateError(f"a copy of the state is malformed: {type(err).__name__}: {err}") from err

    def _of(self, tree: Tree) -> Any:  # noqa: ANN401  # anything
        if type(tree) is not list:
            return tree
        match tree:
            case ["tensor", which, index]:
                return self._tensors[which](index)
            case ["map", kind, entries]:
                made = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}[kind]()
                for key, value in entries:
                    made[self._of(key)] = self._of(value)
                return made
            case ["seq", kind, values]:
                return {name: type_ for type_, name in _LISTS.items()}[kind](self._of(each) for each in values)
            case ["bytes", kind, which, index]:
                data = _bytes_of(self._tensors[which](index))
                return data if kind == "bytearray" else bytes(data)
            case ["complex", real, imag]:
                return complex(real, imag)
            case ["dtype", name]:
                return _DTYPES[name]
            case ["device", name]:
                return torch.device(name)
            case ["sharded", which, index, shape, stride, placements, *_]:
                return self._sharded(self._tensors[which](index), shape, stride, placements)
            case ["numpy", is_scalar, dtype, shape, which, index]:
                import numpy

                data = _bytes_of(self._tensors[which](index))
                array = numpy.frombuffer(data, dtype=_plain_dtype(dtype)).reshape(shape)
                return array[()] if is_scalar else array
        raise ValueError(f"unknown tag {tree[:1]!r}")


def _plain_dtype(name: str) -> str:
    if name[1:2] not in "biufc" or len(name) < 3:  # byte order, kind, size
        raise ValueError(f"unknown dtype {name!r}")
    return name


def _bytes_of(tensor: torch.Tensor) -> bytearray:
    """Return the bytes of a tensor of uint8, without numpy."""
    data = bytearray(tensor.numel())
    if data:
        torch.frombuffer(data, dtype=torch.uint8).copy_(tensor)
    return data


def skeleton(tree: Tree) -> Tree:
    """Return a tree without its scalars: what must agree for two states to have one structure."""
    if type(tree) is not list:
        return 0
    match tree:
        case ["map", kind, entries]:
            return [
                "map",
                kind,
                [[key if type(key) is not list else skeleton(key), skeleton(each)] for key, each in entries],
            ]
        case ["seq", kind, values]:
            return ["seq", kind, [skeleton(each) for each in values]]
        case ["complex", *_] | ["dtype", *_] | ["device", *_]:
            return tree[0]
        case ["sharded", *_]:
            return tree[:6]  # without how it is divided, which may be unknown on some ranks
    return tree


# --- bytes


def info_of(tensor: torch.Tensor) -> TensorInfo:
    """Return the description of a tensor."""
    return TensorInfo(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.device.type)


def offsets_of(infos: Iterable[TensorInfo], start: int = 0) -> tuple[list[int], int]:
    """Return where each tensor begins in one block of memory, in bytes, and where the last one ends, rounded up."""
    offsets = []
    at = start
    for info in infos:
        offsets.append(at)
        at += -(-info.size // _ALIGNED) * _ALIGNED
    return offsets, at


def view_of(arena: torch.Tensor, info: TensorInfo, offset: int) -> torch.Tensor:
    """Return a tensor that shares the memory of a block.

    Args:
        arena: The block, `[bytes]`, uint8.
        info: The tensor's dtype and shape.
        offset: Where it begins, in bytes.
    """
    if info.size == 0:
        return torch.empty(info.shape, dtype=info.dtype_of_torch)
    return arena[offset : offset + info.size].view(info.dtype_of_torch).view(info.shape)
