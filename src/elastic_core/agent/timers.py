"""The timers that the agent's machine sets, by name."""

from collections.abc import Callable

from elastic_core.reactor import Reactor, Timer


class Timers:
    """At most one timer of each name. Threading: the reactor's."""

    def __init__(self, reactor: Reactor, fired: Callable[[str], None]) -> None:
        """Set none yet; `fired` hears the name of one that has run down."""
        self._reactor = reactor
        self._fired = fired
        self._pending: dict[str, Timer] = {}

    def set(self, name: str, delay_s: float) -> None:
        """Begin, or begin anew."""
        self.cancel(name)
        self._pending[name] = self._reactor.call_later(delay_s, lambda: self._fire(name))

    def cancel(self, name: str) -> None:
        """Forget it, if it is set."""
        timer = self._pending.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _fire(self, name: str) -> None:
        self._pending.pop(name, None)
        self._fired(name)
