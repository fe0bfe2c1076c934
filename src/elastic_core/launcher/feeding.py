"""The feed of hooks: all that the agent publishes, and the calls to its rendezvous store, measured from outside."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from elastic_core.agent.feed import Feed, Observation, StoreCall, described
from elastic_core.clock import SYSTEM_CLOCK, Clock
from elastic_core.hooks.feed import HookFeed
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.rendezvous.store import CoordinationStore

METERED: Final = ("connect", "enlist", "update", "renew", "withdraw", "members", "load", "swap")
"""Not `watch`: it waits for others."""


def feed_hooks(of_hooks: HookFeed, feed: Feed, handler: RendezvousHandler) -> Callable[[Observation], None]:
    """Hand on to hooks what there is, if any take it; return what publishes beside the loop, from any thread."""

    def publish(what: Observation) -> None:
        of_hooks.publish(*described(what))

    if of_hooks.wanted:
        feed.subscribe(lambda what: of_hooks.publish(*described(what)))
        if (store := _store(handler)) is not None:
            measure(store, publish)
    return publish


def store_place(handler: RendezvousHandler) -> str:
    """Return where the handler's store is, for people; empty: it has none, or that is not known yet."""
    store = _store(handler)
    return "" if store is None else store.where


def _store(handler: RendezvousHandler) -> CoordinationStore | None:
    store = getattr(handler, "store", None)
    return store if isinstance(store, CoordinationStore) else None


def measure(store: CoordinationStore, take: Callable[[StoreCall], None], clock: Clock = SYSTEM_CLOCK) -> None:
    """Measure the calls to a store from now on; `take` gets each, on the thread that has made it."""
    for name in METERED:
        setattr(store, name, _measured(name, getattr(store, name), take, clock))


def _measured(
    name: str, call: Callable[..., Any], take: Callable[[StoreCall], None], clock: Clock
) -> Callable[..., Any]:
    @wraps(call)
    def measured(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # as the method takes and gives
        began_s, failed = clock.monotonic_s(), True
        try:
            answer = call(*args, **kwargs)
            failed = False
        finally:
            take(StoreCall(call=name, took_s=clock.monotonic_s() - began_s, failed=failed))
        return answer

    return measured
