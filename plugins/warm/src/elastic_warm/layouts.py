"""The sharded tensors of a commit, and how those of the objects that they are for are divided among ranks now.

The objects of a round are made on its own mesh, so their division is what a commit of another round has to fit.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from elastic_warm.division import Division, Tensor, division_from, division_of, local_shape
from elastic_warm.host_copy import Commit, Part
from elastic_warm.objects import bare, entries_of, is_plain, parameters_of
from elastic_warm.state_errors import StateError
from elastic_warm.values import TensorInfo, Tree


class _Node(NamedTuple):
    """A sharded tensor in a tree: the arguments of its tag."""

    which: str
    """`own` or `common`."""
    number: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    placements: tuple[str, ...]
    division: Division | None
    dtype: str
    device: str

    def as_tree(self) -> Tree:
        return ["sharded", *self[:2], *map(list, self[2:5]), *self[5:]]


class _Place(NamedTuple):
    """A sharded tensor of a commit, and the object that it is for."""

    tree: Tree
    node: _Node
    live: Any
    """The parameter, buffer or tensor. For the state of an optimizer, the parameter that it belongs to."""
    name: str


def layout_of(parts: Mapping[str, Any]) -> str:
    """Return a digest of how the objects of a state are divided. Empty if no one is."""
    rows = []
    for name, value in parts.items():
        for key, tensor in _tensors_of(bare(value)):
            if hasattr(tensor, "placements"):
                division = division_of(tensor)
                row = division and (division.mesh, division.ranks or None, division.splits)
                rows.append([name, key, row])
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] if rows else ""


def _tensors_of(value: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401  # anything
    if isinstance(value, torch.nn.Module):
        yield from value.state_dict(keep_vars=True).items()
    elif isinstance(value, torch.optim.Optimizer):
        yield from enumerate(parameters_of(value))
    else:
        yield "", value


def fit_of(parts: Mapping[str, Any], commit: Commit, world_size: int) -> tuple[bool, str]:
    """Return whether the objects are divided as a commit is, and why it can't be divided anew for them. Empty: it can.

    Args:
        parts: The objects by name.
        commit: The commit.
        world_size: The number of ranks now.
    """
    fits, obstacle = True, ""
    for name, part in commit.parts.items():
        if part.is_own:
            continue
        try:
            places = _places_of(parts.get(name), part, name)
        except StateError as err:
            fits, obstacle = False, obstacle or str(err)
            continue
        for place in places:
            division = division_of(place.live) if hasattr(place.live, "placements") else None
            if place.node.division is None or division is None:
                fits = fits and list(place.node.placements) == _placements_of(place.live)
                obstacle = obstacle or f"{place.name} is divided in a way that is not known"
            else:
                fits = fits and division.is_like(place.node.division)
                obstacle = obstacle or _obstacle_to(place, division, world_size)
    return fits, obstacle


def _placements_of(live: Any) -> list[str]:  # noqa: ANN401  # a DTensor or another tensor
    return [str(each) for each in getattr(live, "placements", ())]


def _obstacle_to(place: _Place, division: Division, world_size: int) -> str:
    """Return why a tensor can't be divided in the way of the live one. Empty if it can."""
    if not division.covers(world_size):
        return f"{place.name} is sharded over a mesh of {division.mesh} now, and not over all {world_size} ranks"
    if tuple(place.live.shape) != place.node.shape:
        return f"{place.name} has shape {place.node.shape}, and what it is for has shape {tuple(place.live.shape)}"
    if (place.node.which == "own") is not any(split is not None for split in division.splits):
        return f"{place.name} is sharded in one of both, and the same on all ranks in the other"
    return ""


def divided_anew(
    parts: Mapping[str, Any], described: Mapping[str, Part], rank: int
) -> tuple[dict[str, Part], list[Tensor]]:
    """Return the parts of a commit as they are for a rank whose objects are divided in another way.

    Args:
        parts: The objects by name.
        described: The commit's parts; their own tensors need no description.
        rank: This rank in the new group.

    Returns:
        The new parts, and the tensors that are divided anew, in the order of the commit's own tensors.

    Raises:
        StateError: an object can't get what the commit has.
    """
    made: dict[str, Part] = {}
    tensors: list[Tensor] = []
    for name, part in described.items():
        if part.is_own:
            made[name] = part
            continue
        replaced: dict[int, Tree] = {}
        own: dict[int, tuple[TensorInfo, Tensor]] = {}
        for place in _places_of(parts.get(name), part, name):
            node = place.node
            division = division_of(place.live) if hasattr(place.live, "placements") else None
            if node.division is None or division is None:
                raise StateError(f"{place.name} is divided in a way that is not known")
            if not division.is_like(node.division):
                node = node._replace(division=division, placements=tuple(_placements_of(place.live)))
            replaced[id(place.tree)] = node.as_tree()
            if node.which == "own":
                info = TensorInfo(node.dtype, local_shape(node.shape, division, rank), node.device)
                size = info.dtype_of_torch.itemsize
                own[node.number] = info, Tensor(node.shape, size, place.node.division or division, division)
        ordered = [own[index] for index in range(len(own))]
        made[name] = Part(_with(part.tree, replaced), part.common, tuple(info for info, _ in ordered), is_own=False)
        tensors += [tensor for _, tensor in ordered]
    return made, tensors


def _places_of(value: Any, part: Part, name: str) -> list[_Place]:  # noqa: ANN401  # anything
    """Return the sharded tensors of a part that depend on the division, each with the object that it is for.

    Raises:
        StateError: there is one in something else than a module, an optimizer of torch or a tensor.
    """
    found = [
        _Place(tree, _node_of(tree), live, place)
        for tree, live, place in _lives_of(bare(value), part.tree, name)
        if _is_sharded(tree)
    ]
    known = {id(place.tree) for place in found}
    if any(id(tree) not in known for tree in _sharded_in(part.tree)):
        raise StateError(f"state.{name} has a sharded tensor that is none of a module or of a parameter's state")
    if isinstance(bare(value), torch.optim.Optimizer):
        # What is the same on all ranks, as the row sums of Adafactor, fits the mesh of any parameter.
        return [place for place in found if place.node.which == "own"]
    return found


def _lives_of(value: Any, tree: Tree, name: str) -> Iterator[tuple[Tree, Any, str]]:  # noqa: ANN401  # anything
    """Yield the tree of each tensor of an object with what it is for, and its name."""
    if isinstance(value, torch.nn.Module):
        live = value.state_dict(keep_vars=True)
        for key, each in entries_of(tree):
            if not _is_sharded(each) and hasattr(live.get(key), "placements"):
                raise StateError(f"state.{name}[{key!r}] is sharded now, and was not when it was committed")
            yield each, live.get(key), f"state.{name}[{key!r}]"
    elif isinstance(value, torch.optim.Optimizer) and is_plain(value):
        parameters = parameters_of(value)
        for number, fields in entries_of(dict(entries_of(tree))["state"]):
            parameter = parameters[number] if type(number) is int and number < len(parameters) else None
            if type(fields) is list and fields[0] == "map":
                for field, each in entries_of(fields):
                    yield each, parameter, f"state.{name}'s {field} of parameter {number}"
    elif isinstance(value, torch.Tensor):
        yield tree, value, f"state.{name}"


def _is_sharded(tree: Tree) -> bool:
    return type(tree) is list and tree[0] == "sharded"


def _node_of(tree: Tree) -> _Node:
    _, which, index, shape, stride, placements, division, dtype, device = tree
    return _Node(which, index, tuple(shape), tuple(stride), tuple(placements), division_from(division), dtype, device)


def _sharded_in(tree: Tree) -> Iterator[Tree]:
    """Yield the sharded tensors of a tree."""
    match tree:
        case ["sharded", *_]:
            yield tree
        case ["map", _, entries]:
            for _, each in entries:
                yield from _sharded_in(each)
        case ["seq", _, values]:
            for each in values:
                yield from _sharded_in(each)


def _with(tree: Tree, replaced: Mapping[int, Tree]) -> Tree:
    """Return a tree with some of its branches, by their identity, replaced."""
    match tree:
        case ["sharded", *_]:
            return replaced.get(id(tree), tree)
        case ["map", kind, entries]:
            return ["map", kind, [[key, _with(each, replaced)] for key, each in entries]]
        case ["seq", kind, values]:
            return ["seq", kind, [_with(each, replaced) for each in values]]
    return tree
