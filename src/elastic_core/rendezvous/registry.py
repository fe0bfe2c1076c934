"""Rendezvous backends registered in code, for a library user who has no entry point to declare."""

from collections.abc import Callable
from typing import Final

from elastic_core.errors import PluginError
from elastic_core.rendezvous.coordinated import Backend
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.types import RendezvousSettings

Made = Backend | CoordinationStore
Maker = type[RendezvousHandler] | type[CoordinationStore] | Callable[[RendezvousSettings], Made] | Callable[[], Made]
"""A class, or a callable that gives a handler or a store; it is handed the settings if it takes an argument."""

_makers: Final[dict[str, Maker]] = {}


def register(name: str, cls: Maker) -> None:
    """Make `cls` available as `--rdzv-backend NAME` in this process, before any installed backend of that name.

    The class may override only `next_rendezvous`, may return `(store, rank, world_size)` from it, and need not state an
    `api_version`: it lives with the code that it runs in. A `CoordinationStore` gets the core's rendezvous around it.
    Registering the same class again changes nothing.

    Raises:
        PluginError: the name is empty, `cls` can't be called, or the name is another class's.
    """
    if not name or not name.strip():
        raise PluginError(
            "a rendezvous backend was registered without a name", hint="register('custom', CustomRendezvous)"
        )
    if not callable(cls):
        raise PluginError(
            f"rendezvous backend {name!r} was registered with {cls!r}, which can't be called",
            hint="the class itself, or a function that takes the settings",
        )
    known = _makers.get(name)
    if known is not None and known != cls:
        what = f"rendezvous backend {name!r} is already registered as {describe(known)}, not {describe(cls)}"
        raise PluginError(what, hint="another name")
    _makers[name] = cls


def registered(name: str) -> Maker | None:
    """Return what was registered under `name`; None: nothing."""
    return _makers.get(name)


def registered_names() -> tuple[str, ...]:
    """Return the names registered in code, in order of registration."""
    return tuple(_makers)


def unregister(name: str) -> None:
    """Forget a name; unknown ones are ignored. For tests, and for notebooks that define a class again."""
    _makers.pop(name, None)


def describe(maker: Callable[..., object]) -> str:
    """Return where a class or function comes from: `module.Name`."""
    return f"{getattr(maker, '__module__', '?')}.{getattr(maker, '__qualname__', repr(maker))}"
