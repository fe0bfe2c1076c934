"""Measures the calls to a rendezvous store, from outside."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from elastic_core.clock import Clock
from elastic_core.launcher.observations import CallCount, StoreCalls
from elastic_core.rendezvous.store import CoordinationStore

METERED: Final = ("connect", "enlist", "update", "renew", "withdraw", "members", "load", "swap")
"""Not `watch`: it waits for others."""


class StoreMeter:
    """Counts calls. Threading: any."""

    def __init__(self, clock: Clock) -> None:
        """Begin with none."""
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[str, CallCount] = {}

    def watch(self, store: CoordinationStore) -> None:
        """Measure the calls to a store from now on."""
        for name in METERED:
            setattr(store, name, self._metered(name, getattr(store, name)))

    def take(self) -> StoreCalls:
        """Return what was counted since the last time."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return StoreCalls(calls=counts)

    def _metered(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def metered(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # as the method takes and gives
            began_s = self._clock.monotonic_s()
            try:
                answer = call(*args, **kwargs)
            except BaseException:
                self._count(name, CallCount(failed=1))
                raise
            self._count(name, CallCount(answered=1, took_s=self._clock.monotonic_s() - began_s))
            return answer

        return metered

    def _count(self, name: str, more: CallCount) -> None:
        with self._lock:
            before = self._counts.get(name, CallCount())
            self._counts[name] = CallCount(
                answered=before.answered + more.answered,
                took_s=before.took_s + more.took_s,
                failed=before.failed + more.failed,
            )
