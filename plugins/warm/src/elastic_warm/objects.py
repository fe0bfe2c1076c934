"""The objects of a training state: their values taken for a commit, and a commit's values put back in place."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from elastic_warm.host_copy import Part, Tensors, copy_all
from elastic_warm.state_errors import StateError
from elastic_warm.values import Flat, TensorInfo, Values, flattened

_HOOKS: Final = (
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def is_stateful(value: object) -> bool:
    """Return whether a value keeps its state behind `state_dict()` and `load_state_dict()`."""
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


def bare(value: Any) -> Any:  # noqa: ANN401  # anything
    """Return a module without the wrappers of DistributedDataParallel and torch.compile; other values as they are."""
    while isinstance(value, torch.nn.Module):
        if type(value).__name__ == "DistributedDataParallel":
            value = value.module
        elif type(value).__name__ == "OptimizedModule":
            value = value._orig_mod
        else:
            return value
    return value


def is_sharded(value: Any) -> bool:  # noqa: ANN401  # anything
    """Return whether a part has sharded tensors: parameters of a module or optimizer, or itself."""
    value = bare(value)
    if isinstance(value, torch.nn.Module):
        tensors = list(value.parameters())
    elif isinstance(value, torch.optim.Optimizer):
        tensors = [each for group in value.param_groups for each in group["params"]]
    else:
        tensors = [value]
    return any(
        hasattr(each, "to_local") and any(not placement.is_replicate() for placement in each.placements)
        for each in tensors
    )


def taken(value: Any, name: str, *, all_own: bool = False) -> Flat:  # noqa: ANN401  # anything
    """Return the values of a part, whose tensors are not copied yet.

    Args:
        value: The part.
        name: Its name, for errors.
        all_own: Whether all its tensors are the rank's own.

    Raises:
        StateError: the part contains something that can't be kept.
    """
    value = bare(value)
    if isinstance(value, torch.nn.Module):
        # With the parameters themselves, so that it is seen which of them are frozen.
        return flattened(dict(value.state_dict(keep_vars=True)), name, all_own=all_own)
    return flattened(value.state_dict() if is_stateful(value) else value, name, all_own=all_own)


def outline(value: Any, name: str) -> list[Any]:  # noqa: ANN401  # anything
    """Return what must agree between ranks before they exchange a part: its kind, and a module's or tensor's shapes."""
    value = bare(value)
    if isinstance(value, torch.nn.Module):
        entries = value.state_dict(keep_vars=True).items()
        return [name, "module", [[key, *_shape(each)] for key, each in entries]]
    if isinstance(value, torch.optim.Optimizer):
        return [name, "optimizer", [[_shape(each) for each in group["params"]] for group in value.param_groups]]
    if isinstance(value, torch.Tensor):
        return [name, "tensor", _shape(value)]
    return [name, "object" if is_stateful(value) else "value", []]


def _shape(value: Any) -> list[Any]:  # noqa: ANN401  # anything
    if not isinstance(value, torch.Tensor):
        return [type(value).__name__]
    return [str(value.dtype).removeprefix("torch."), list(value.shape)]


def targets_of(value: Any, part: Part) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:  # noqa: ANN401  # anything
    """Return the tensors of an object into which those of a commit can be written, common and own.

    `None` where the object has none of that shape and dtype.
    """
    value = bare(value)
    found: tuple[list[torch.Tensor | None], list[torch.Tensor | None]]
    found = [None] * len(part.common), [None] * len(part.own)
    for tree, live in _places_of(value, part):
        match tree:
            case ["tensor" | "sharded", which, index, *_] if isinstance(live, torch.Tensor):
                info = (part.own if which == "own" else part.common)[index]
                local = _local(live)
                fits = (local.dtype, tuple(local.shape)) == (info.dtype_of_torch, info.shape)
                if fits and local.is_contiguous():
                    found[which == "own"][index] = local
    return found


def _places_of(value: Any, part: Part) -> list[tuple[Any, Any]]:  # noqa: ANN401  # anything
    """Return trees of a part, each with what the object has in its place."""
    if isinstance(value, torch.nn.Module):
        live = value.state_dict(keep_vars=True)
        registered = {id(each) for each in (*value.parameters(), *value.buffers())}
        return [(tree, live[key]) for key, tree in entries_of(part.tree) if id(live.get(key)) in registered]
    if isinstance(value, torch.optim.Optimizer) and is_plain(value):
        parameters = parameters_of(value)
        return [
            (tree, value.state[parameters[number]].get(field))
            for number, fields in entries_of(dict(entries_of(part.tree))["state"])
            if type(number) is int and number < len(parameters) and parameters[number] in value.state
            for field, tree in entries_of(fields)
        ]
    return [] if is_stateful(value) else [(part.tree, value)]


def put_back(
    value: Any,  # noqa: ANN401  # anything
    part: Part,
    tensors: Tensors,
    name: str,
    *,
    keep: bool,
) -> Any:  # noqa: ANN401  # anything
    """Put a commit's values back into an object, in place where that is possible. Return the new value of the part.

    Args:
        value: The part as it is.
        part: The commit's description of it.
        tensors: The common and the own tensors of the commit. Some may be those of the object already.
        name: Name of the part, for errors.
        keep: Whether the tensors may become those of the object; else they are copied.

    Raises:
        StateError: the object doesn't fit.
    """
    target = bare(value)
    source = _Source(part, tensors, keep)
    if isinstance(target, torch.nn.Module):
        _put_into_module(target, source, name)
    elif isinstance(target, torch.optim.Optimizer):
        _put_into_optimizer(target, source, name)
    elif is_stateful(target):
        target.load_state_dict(source.value())
    elif isinstance(target, torch.Tensor) and _fits(target, part):
        with torch.no_grad():
            copy_all([_local(target)], [*tensors.common, *tensors.own])
    else:
        return source.value()
    return value


def _fits(tensor: Any, part: Part) -> bool:  # noqa: ANN401  # anything
    infos = [*part.common, *part.own]
    local = _local(tensor)
    return len(infos) == 1 and (infos[0].dtype_of_torch, infos[0].shape) == (local.dtype, tuple(local.shape))


def _local(tensor: Any) -> torch.Tensor:  # noqa: ANN401  # a DTensor or a tensor
    """Return the tensor itself, or the local part of a sharded one, in the same memory."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach()


class _Source:
    """The values of one part of a commit."""

    def __init__(self, part: Part, tensors: Tensors, keep: bool) -> None:
        self.tree = part.tree
        self._part = part
        self._tensors = tensors
        self._keep = keep

    def tensor_at(self, tree: Any) -> torch.Tensor | None:  # noqa: ANN401  # JSON
        """Return the tensor of a tree that is a tensor, which is not to be kept; else `None`."""
        match tree:
            case ["tensor" | "sharded", which, index, *_]:
                return (self._tensors.own if which == "own" else self._tensors.common)[index]
        return None

    def value(self, tree: Any = ..., parameter: Any = None) -> Any:  # noqa: ANN401  # JSON, a parameter, anything
        """Return the value of a tree, with tensors on the type of device where they were.

        Args:
            tree: The tree. Not given means the whole part.
            parameter: The parameter of an optimizer whose state it is, for its device and mesh.
        """
        there = torch.device("cpu")
        if isinstance(parameter, torch.Tensor):
            there = parameter.device
        elif torch.cuda.is_available():
            there = torch.device("cuda", torch.cuda.current_device())

        def of(tensors: Sequence[torch.Tensor], infos: Sequence[TensorInfo], index: int) -> torch.Tensor:
            device = torch.device("cpu") if infos[index].device == "cpu" else there
            return tensors[index].to(device, copy=not self._keep)

        def sharded(
            local: torch.Tensor, shape: Sequence[int], stride: Sequence[int], placements: Sequence[str]
        ) -> torch.Tensor:
            return _sharded_like(parameter, local, shape, stride, placements)

        part, tensors = self._part, self._tensors
        values = Values(
            lambda index: of(tensors.common, part.common, index),
            lambda index: of(tensors.own, part.own, index),
            sharded,
        )
        return values.of(self.tree if tree is ... else tree)


def _sharded_like(
    parameter: Any,  # noqa: ANN401  # a DTensor
    local: torch.Tensor,
    shape: Sequence[int],
    stride: Sequence[int],
    placements: Sequence[str],
) -> torch.Tensor:
    """Return a sharded tensor on the mesh of a parameter, of its local part."""
    places = getattr(parameter, "placements", None)
    tensors = sys.modules.get("torch.distributed.tensor")
    if places is not None and tensors is not None and all(each == "R" for each in placements):
        places = [tensors.Replicate()] * len(places)  # as the row sums of Adafactor, whatever the parameter's are
    if places is None or tensors is None or [str(each) for each in places] != list(placements):
        raise StateError(
            "a sharded tensor is kept that belongs to no parameter with the same placements",
            hint="the same parallelism as when it was committed, and sharded tensors in modules and optimizers only",
        )
    made: torch.Tensor = tensors.DTensor.from_local(
        local,
        parameter.device_mesh,
        places,
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(stride),
    )
    return made


# --- modules


def _put_into_module(module: torch.nn.Module, source: _Source, name: str) -> None:
    """Copy into the parameters and buffers themselves. A module with state of another kind loads it in its own way."""
    for each in module.modules():
        if type(each).__name__.startswith("FSDP") and callable(getattr(each, "reshard", None)):
            each.reshard()  # it may have been left between its forward and backward pass
    live = module.state_dict(keep_vars=True)
    registered = {id(each) for each in (*module.parameters(), *module.buffers())}
    places = dict(entries_of(source.tree))
    pairs = []
    for key, each in live.items():
        tree = places.get(key)
        stored = source.tensor_at(tree)
        if stored is None or id(each) not in registered:
            break
        local = _local(each)
        if (local.dtype, local.shape) != (stored.dtype, stored.shape):
            raise StateError(
                f"state.{name}[{key!r}] is {local.dtype} {tuple(local.shape)}, and the commit has {stored.dtype} "
                f"{tuple(stored.shape)}",
                hint="the model that was committed",
            )
        pairs.append((local, stored))
    if len(pairs) == len(live) == len(places):
        with torch.no_grad():
            copy_all([target for target, _ in pairs], [source for _, source in pairs])
    elif len(places) != len(live) or set(places) != set(live):
        more = sorted(map(str, set(places) ^ set(live)))
        raise StateError(
            f"state.{name} and its commit differ in {more[0]!r} and {len(more) - 1} more", hint="the same model"
        )
    else:
        module.load_state_dict(source.value())
    for parameter in module.parameters():
        parameter.grad = None  # of a step that was interrupted


def entries_of(tree: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401  # JSON
    """Return keys and trees of a dict's tree."""
    if type(tree) is not list or tree[0] != "map":
        raise StateError("a copy of the state is malformed: no dict where one was")
    yield from tree[2]


# --- optimizers


def _put_into_optimizer(optimizer: torch.optim.Optimizer, source: _Source, name: str) -> None:
    """Set the state of each parameter: into the tensors that are there if they fit, else as new ones.

    `load_state_dict` of torch makes new tensors, and converts them to the parameter's dtype, which loses bits if an
    optimizer keeps another one. An optimizer that changes how it is saved or loaded does it in its own way.
    """
    parameters = parameters_of(optimizer)
    if not is_plain(optimizer):
        optimizer.load_state_dict(source.value())
    else:
        stored = dict(entries_of(source.tree))
        groups = source.value(stored["param_groups"])
        counts = [len(group["params"]) for group in optimizer.param_groups]
        if [len(group["params"]) for group in groups] != counts:
            raise StateError(
                f"state.{name} has {sum(counts)} parameters in {len(counts)} groups, and its commit others",
                hint="the optimizer that was committed",
            )
        _set_states(optimizer, parameters, dict(entries_of(stored["state"])), source)
        for group, new in zip(optimizer.param_groups, groups, strict=True):
            for key in [key for key in group if key not in new and key != "params"]:
                del group[key]
            group.update((key, _kept(group.get(key), value)) for key, value in new.items() if key != "params")
    for parameter in parameters:
        parameter.grad = None


def _kept(old: Any, new: Any) -> Any:  # noqa: ANN401  # anything
    """Return the new value, in the old tensor if both are tensors of one form, such as a learning rate on a device."""
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and _same_form(old, new):
        with torch.no_grad():
            return old.copy_(new)
    return new


def is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer saves and loads its state as those of torch do, without hooks."""
    kind, base = type(optimizer), torch.optim.Optimizer
    if kind.state_dict is not base.state_dict or kind.load_state_dict is not base.load_state_dict:
        return False
    return not any(getattr(optimizer, name, None) for name in _HOOKS)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the parameters in the order of their numbers in `state_dict()`."""
    found: dict[int, Any] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found.setdefault(id(parameter), parameter)
    return list(found.values())


def _set_states(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Any], states: Mapping[Any, Any], source: _Source
) -> None:
    """Set `optimizer.state`; its other keys, which are no numbers of parameters, are set as they are."""
    targets: list[torch.Tensor] = []
    sources: list[torch.Tensor] = []
    new: dict[Any, Any] = {}
    for number, tree in states.items():
        is_parameter = type(number) is int and 0 <= number < len(parameters)
        key = parameters[number] if is_parameter else number
        live = optimizer.state.get(key)
        if is_parameter and type(tree) is list and tree[0] == "map":
            made: dict[Any, Any] = {}
            for field, each in entries_of(tree):
                old = live.get(field) if isinstance(live, dict) else None
                stored = source.tensor_at(each)
                if stored is not None and isinstance(old, torch.Tensor) and _same_form(_local(old), stored):
                    targets.append(_local(old))
                    sources.append(stored)
                    made[field] = old
                else:
                    made[field] = source.value(each, key)
            new[key] = made
        else:
            new[key] = source.value(tree, key if is_parameter else None)
    with torch.no_grad():
        copy_all(targets, sources)
    optimizer.state.clear()
    optimizer.state.update(new)


def _same_form(tensor: torch.Tensor, stored: torch.Tensor) -> bool:
    return (tensor.dtype, tensor.shape) == (stored.dtype, stored.shape)
