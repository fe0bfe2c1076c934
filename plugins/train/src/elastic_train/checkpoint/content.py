"""Conversion of a script's state to a checkpoint's content (plain values, with shards apart) and back."""

import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from elastic_train.checkpoint.errors import CheckpointError
from elastic_train.variables import error

_PLAIN: Final = (str, int, float, bool, complex, bytes, type(None))
_DICTS: Final = (dict, OrderedDict, Counter)  # the last: MultiStepLR has one
_MARK: Final = "elastic_train.shard"
_SHARDED: Final = (
    ("torch.distributed.tensor", "DTensor"),
    ("torch.distributed._shard.sharded_tensor", "ShardedTensor"),
)
"""Modules with classes of sharded tensors. If a module is not imported, no tensor of its class exists."""


class Content(NamedTuple):
    """A state in the form in which it is written."""

    values: dict[str, Any]
    """The values without shards; each shard has a mark in its place."""
    shards: dict[str, Any]
    """Sharded tensors by their places in the state."""


def content_of(state: Mapping[str, Any]) -> Content:
    """Return the content of a state. Of an object with `state_dict()`, that method's result is used.

    Raises:
        ConfigError: it contains a value that could not be read again without running foreign code.
    """
    shards: dict[str, Any] = {}
    values = _split(plain(state), "", shards)
    return Content(values, shards)


def plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with each of its objects replaced by its `state_dict()`."""
    if not isinstance(state, Mapping):
        raise error(
            f"a state is a dict by name, not {type(state).__name__}", "{'model': model, 'optimizer': optimizer}"
        )
    return {name: value.state_dict() if is_stateful(value) else value for name, value in state.items()}


def is_stateful(value: object) -> bool:
    """Return whether a value has `state_dict` and `load_state_dict`, as modules, optimizers and samplers have."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _split(value: Any, place: str, shards: dict[str, Any]) -> Any:  # noqa: ANN401  # anything
    kind = type(value)
    if kind in _DICTS:
        if _MARK in value:
            raise error(f"state{place}: the key {_MARK!r} is taken", "another key")
        for key in value:
            if type(key) not in _PLAIN:
                raise _foreign(f"a key of state{place}", key)
        return _alike(value, {key: _split(each, f"{place}[{key!r}]", shards) for key, each in value.items()})
    if kind in (list, tuple, set):
        return kind(_split(each, f"{place}[{index}]", shards) for index, each in enumerate(value))
    if kind in _PLAIN:
        return value
    if is_sharded(value):
        shards[place] = value
        return {_MARK: place}
    if not _is_readable(value):
        raise _foreign(f"state{place}", value)
    return value


def _alike(value: dict[Any, Any], content: dict[Any, Any]) -> dict[Any, Any]:
    """Return a dict of the same kind as another, with the attributes that modules add to theirs (layer versions)."""
    made = type(value)(content)
    if type(value) is OrderedDict:
        vars(made).update(vars(value))
    return made


def _foreign(where: str, value: object) -> Exception:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    hint = "torch.as_tensor(…)" if type(value).__module__ == "numpy" else "its state_dict(), or plain values"
    return error(
        f"{where} is a {kind}; expected tensors, numbers, text, and dicts, lists and tuples of these, which can be "
        "read again without running code",
        hint,
    )


def is_sharded(value: object) -> bool:
    """Return whether a value is a sharded tensor, of which this rank has a part."""
    return any(
        isinstance(value, getattr(sys.modules[module], name)) for module, name in _SHARDED if module in sys.modules
    )


def _is_readable(value: object) -> bool:
    """Return whether `torch.load(weights_only=True)` accepts it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if type(value) in (torch.Tensor, torch.nn.Parameter, torch.Size, torch.dtype, torch.device):
        return True
    return type(value) in {
        each[0] if isinstance(each, tuple) else each for each in torch.serialization.get_safe_globals()
    }


def snapshot(content: Content) -> Content:
    """Return a copy in memory that training no longer changes."""
    shards = content.shards
    if shards:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        stager = DefaultStager(StagingOptions(False, False, False, False))
        try:
            shards = stager.stage(shards)
        finally:
            stager.close()
    return Content(_copied(content.values), shards)


def _copied(value: Any) -> Any:  # noqa: ANN401  # anything
    kind = type(value)
    if kind in _DICTS:
        return _alike(value, {key: _copied(each) for key, each in value.items()})
    if kind in (list, tuple, set):
        return kind(_copied(each) for each in value)
    return value.detach().to("cpu", copy=True) if hasattr(value, "detach") else value


# --- back


def places_of(values: object) -> list[str]:
    """Return the places of shards in values that were read from a file.

    Raises:
        CheckpointError: the values are not a state.
        RecursionError: the values contain themselves.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"it has a {type(values).__name__} in place of a state")
    places = [each[_MARK] for each in _marks(values)]
    if any(type(place) is not str for place in places):
        raise CheckpointError("it has a shard without a place")
    return places


def targets(values: Mapping[str, Any], into: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """Return the sharded tensors of `into` that receive a checkpoint's shards, by their places.

    Raises:
        CheckpointError: `into` has no tensor for one of the shards.
    """
    places = places_of(values)
    if not places:
        return {}
    there: dict[str, Any] = {}
    _split({} if into is None else plain(into), "", there)
    missing = [place for place in places if place not in there]
    if missing:
        raise CheckpointError(
            f"checkpoint {name!r} is sharded, and there is no sharded tensor to read state{missing[0]} into",
            hint="load(state), with the state as it was saved, on the device mesh of now",
        )
    return {place: there[place] for place in places}


def joined(value: Any, shards: Mapping[str, Any]) -> Any:  # noqa: ANN401  # anything
    """Return values with shards in place of their marks."""
    kind = type(value)
    if kind in _DICTS:
        if _MARK in value:
            return shards[value[_MARK]]
        return _alike(value, {key: joined(each, shards) for key, each in value.items()})
    if kind in (list, tuple, set):
        return kind(joined(each, shards) for each in value)
    return value


def _marks(value: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401  # anything
    if isinstance(value, dict):
        if _MARK in value:
            yield value
            return
        for each in value.values():
            yield from _marks(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _marks(each)


def fill(into: Mapping[str, Any], state: Mapping[str, Any], name: str) -> None:
    """Load each object of `into` with its state.

    Raises:
        CheckpointError: the state of one of them is missing; then none is loaded.
    """
    loaded = {key: value for key, value in into.items() if is_stateful(value)}
    missing = [key for key in loaded if key not in state]
    if missing:
        there = ", ".join(map(repr, state)) or "nothing"
        raise CheckpointError(
            f"checkpoint {name!r} has nothing for {missing[0]!r}; it has {there}",
            hint="load() without it, or the checkpoints of a script that saves it",
        )
    for key, value in loaded.items():
        value.load_state_dict(state[key])
