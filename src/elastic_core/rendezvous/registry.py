"""Registry of rendezvous backends that Python code adds without declaring an entry point."""

from collections.abc import Callable
from typing import Final

from elastic_core.errors import PluginError
from elastic_core.rendezvous.coordinated import Backend
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.types import RendezvousSettings

BackendMaker = type[RendezvousHandler] | type[CoordinationStore] | Callable[[RendezvousSettings], Backend]
"""A class, or a function that makes a handler from the options as typed, for example an adapted creator of torch."""

_makers: Final[dict[str, BackendMaker]] = {}


def register(name: str, cls: BackendMaker) -> None:
    """Make `cls` available as `--rdzv-backend NAME` in this process; it overrides an installed backend of that name.

    A run checks the class when it loads it, like a class of an entry point. The class may override only
    `next_rendezvous`, which may return `(store, rank, world_size)`. A `CoordinationStore` gets the core's rendezvous.
    Registering the same class again changes nothing.

    Raises:
        PluginError: the name is empty, or another class has it.
    """
    if not name or not name.strip():
        raise PluginError(
            "a rendezvous backend was registered without a name", hint="register('custom', CustomRendezvous)"
        )
    known = _makers.get(name)
    if known is not None and known != cls:
        what = f"rendezvous backend {name!r} is already registered as {describe(known)}, not {describe(cls)}"
        raise PluginError(what, hint="another name")
    _makers[name] = cls


def registered(name: str) -> BackendMaker | None:
    """Return the class or function registered under `name`; `None` if there is none."""
    return _makers.get(name)


def registered_names() -> tuple[str, ...]:
    """Return the names registered in code, in order of registration."""
    return tuple(_makers)


def unregister(name: str) -> None:
    """Remove a name; unknown names are ignored. For tests, and for notebooks that define a class again."""
    _makers.pop(name, None)


def describe(maker: Callable[..., object]) -> str:
    """Return the origin of a class or function as `module:Name`."""
    return f"{getattr(maker, '__module__', '?')}:{getattr(maker, '__qualname__', repr(maker))}"
