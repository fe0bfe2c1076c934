"""The objects of a training state: their values taken for a commit, and a commit's values put back in place."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from elastic_warm.host_copy import Part, copy_all
from elastic_warm.state_errors import StateError
from elastic_warm.values import Flat, Values, flattened

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


def put_back(value: Any, part: Part, tensors: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]], name: str) -> Any:  # noqa: ANN401  # anything
    """Put a commit's values back into an object, in place where that is possible. Return the new value of the part.

    Args:
        value: The part as it is.
        part: The commit's description of it.
        tensors: The common and the own tensors of the commit, which are not kept.
        name: Name of the part, for errors.

    Raises:
        StateError: the object doesn't fit.
    """
    target = bare(value)
    if isinstance(target, torch.nn.Module):
        _put_into_module(target, part, tensors, name)
    elif isinstance(target, torch.optim.Optimizer):
        _put_into_optimizer(target, part, tensors, name)
    elif is_stateful(target):
        target.load_state_dict(_fresh(part, tensors).of(part.tree))
    elif isinstance(target, torch.Tensor) and _fits(target, part):
        with torch.no_grad():
            copy_all([_local(target)], [tensors[0][0] if part.common else tensors[1][0]])
    else:
        return _fresh(part, tensors).of(part.tree)
    return value


def _fits(tensor: Any, part: Part) -> bool:  # noqa: ANN401  # anything
    infos = [*part.common, *part.own]
    local = _local(tensor)
    return len(infos) == 1 and (infos[0].dtype_of_torch, infos[0].shape) == (local.dtype, tuple(local.shape))


def _local(tensor: Any) -> torch.Tensor:  # noqa: ANN401  # a DTensor or a tensor
    """Return the tensor itself, or the local part of a sharded one, in the same memory."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach()


def _fresh(part: Part, tensors: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]) -> Values:
    """Return a reader whose tensors are copies on the device type where they were."""

    def of(which: int, index: int) -> torch.Tensor:
        device = (part.common, part.own)[which][index].device
        there = device if device == "cpu" or torch.cuda.is_available() else "cpu"
        return tensors[which][index].to(there, copy=True)

    return Values(lambda index: of(0, index), lambda index: of(1, index))


# --- modules


def _put_into_module(
    module: torch.nn.Module, part: Part, tensors: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]], name: str
) -> None:
    """Copy into the parameters and buffers themselves. A module with state of another kind loads it in its own way."""
    for each in module.modules():
        if type(each).__name__.startswith("FSDP") and callable(getattr(each, "reshard", None)):
            each.reshard()  # it may have been left between its forward and backward pass
    live = module.state_dict(keep_vars=True)
    registered = {id(each) for each in (*module.parameters(), *module.buffers())}
    places = dict(_entries(part.tree))
    pairs = []
    for key, each in live.items():
        tree = places.get(key)
        stored = _tensor_at(tree, tensors)
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
        module.load_state_dict(_fresh(part, tensors).of(part.tree))
    for parameter in module.parameters():
        parameter.grad = None  # of a step that was interrupted


def _entries(tree: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401  # JSON
    """Return keys and trees of a dict's tree."""
    if type(tree) is not list or tree[0] != "map":
        raise StateError("a copy of the state is malformed: no dict where one was")
    for key, each in tree[2]:
        yield key, each


def _tensor_at(tree: Any, tensors: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]) -> torch.Tensor | None:  # noqa: ANN401  # JSON
    match tree:
        case ["tensor" | "sharded", which, index, *_]:
            return tensors[which == "own"][index]
    return None


# --- optimizers


def _put_into_optimizer(
    optimizer: torch.optim.Optimizer,
    part: Part,
    tensors: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
    name: str,
) -> None:
    """Set the state of each parameter: into the tensors that are there if they fit, else as new ones.

    `load_state_dict` of torch makes new tensors, and converts them to the parameter's dtype, which loses bits if an
    optimizer keeps another one. An optimizer that changes how it is saved or loaded does it in its own way.
    """
    parameters = _parameters_of(optimizer)
    if not _is_plain(optimizer):
        optimizer.load_state_dict(_fresh(part, tensors).of(part.tree))
    else:
        stored = dict(_entries(part.tree))
        groups = _fresh(part, tensors).of(stored["param_groups"])
        counts = [len(group["params"]) for group in optimizer.param_groups]
        if [len(group["params"]) for group in groups] != counts:
            raise StateError(
                f"state.{name} has {sum(counts)} parameters in {len(counts)} groups, and its commit others",
                hint="the optimizer that was committed",
            )
        _set_states(optimizer, parameters, dict(_entries(stored["state"])), part, tensors)
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


def _is_plain(optimizer: torch.optim.Optimizer) -> bool:
    kind, base = type(optimizer), torch.optim.Optimizer
    if kind.state_dict is not base.state_dict or kind.load_state_dict is not base.load_state_dict:
        return False
    return not any(getattr(optimizer, name, None) for name in _HOOKS)


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the parameters in the order of their numbers in `state_dict()`."""
    found: dict[int, Any] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found.setdefault(id(parameter), parameter)
    return list(found.values())


def _set_states(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[Any],
    states: Mapping[Any, Any],
    part: Part,
    tensors: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
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
            for field, each in _entries(tree):
                old = live.get(field) if isinstance(live, dict) else None
                stored = _tensor_at(each, tensors)
                if stored is not None and isinstance(old, torch.Tensor) and _same_form(_local(old), stored):
                    targets.append(_local(old))
                    sources.append(stored)
                    made[field] = old
                else:
                    made[field] = _value_for(key, each, part, tensors)
            new[key] = made
        else:
            new[key] = _value_for(key if is_parameter else None, tree, part, tensors)
    with torch.no_grad():
        copy_all(targets, sources)
    optimizer.state.clear()
    optimizer.state.update(new)


def _same_form(tensor: torch.Tensor, stored: torch.Tensor) -> bool:
    return (tensor.dtype, tensor.shape) == (stored.dtype, stored.shape)


def _value_for(
    parameter: Any,  # noqa: ANN401  # a parameter
    tree: Any,  # noqa: ANN401  # JSON
    part: Part,
    tensors: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
) -> Any:  # noqa: ANN401  # anything
    """Return a value of an optimizer's state, with new tensors on the parameter's device."""
    device = parameter.device if isinstance(parameter, torch.Tensor) else torch.device("cpu")

    def of(which: int, index: int) -> torch.Tensor:
        was = (part.common, part.own)[which][index].device
        return tensors[which][index].to("cpu" if was == "cpu" else device, copy=True)

    def sharded(
        local: torch.Tensor, shape: Sequence[int], stride: Sequence[int], placements: Sequence[str]
    ) -> torch.Tensor:
        if not hasattr(parameter, "device_mesh") or [str(each) for each in parameter.placements] != list(placements):
            raise StateError(
                "the state of an optimizer is sharded in another way than its parameter",
                hint="the same parallelism as when it was committed",
            )
        made: torch.Tensor = sys.modules["torch.distributed.tensor"].DTensor.from_local(
            local.to(device),
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=torch.Size(shape),
            stride=tuple(stride),
        )
        return made

    return Values(lambda index: of(0, index), lambda index: of(1, index), sharded).of(tree)
