"""The outlets of the feed: metrics to their handlers, events to theirs."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from elastic_core.api.feed import RunEvent
from elastic_ops.exporters.agent_events import AgentEvents, Event, RdzvEvent
from elastic_ops.exporters.agent_metrics import AgentMetrics, Metric, heartbeats
from elastic_ops.exporters.choosing import NamedHandler
from elastic_ops.exporters.delivery import Guard
from elastic_ops.exporters.looks import Beat, CallCount
from elastic_ops.metrics.handler import MetricData

Notice = Callable[[str], None]
_LOGGER: Final = "torchelastic-events-{}"


class MetricOutlet:
    """Publishes the agent's metrics. Threading: that of the delivery."""

    def __init__(self, agent: AgentMetrics, chosen: Sequence[NamedHandler], *, notice: Notice) -> None:
        """Publish to these handlers."""
        self._agent = agent
        self._chosen = [(Guard(named.label, notice), named.handler) for named in chosen]

    def observe(self, seen: RunEvent) -> None:
        """Handle one event."""
        for metric in self._agent.observe(seen):
            self._publish(metric, seen.at_ns / 1e9)

    def look(self, calls: Mapping[str, CallCount], beats: Mapping[int, Beat], at_ns: int) -> None:
        """Publish the values of one read."""
        for metric in (*heartbeats(beats), *self._agent.calls(calls)):
            self._publish(metric, at_ns / 1e9)

    def _publish(self, metric: Metric, at_s: float) -> None:
        data = MetricData(at_s, metric.group, metric.name, metric.value)
        for guard, handler in self._chosen:
            guard.call(lambda handler=handler: handler.emit(data))  # type: ignore[misc]  # a default binds it now

    def close(self) -> None:
        """Release the handlers' resources."""
        for guard, handler in self._chosen:
            close = getattr(handler, "close", None)
            if callable(close):
                guard.call(close)


class EventOutlet:
    """Records the agent's events. Threading: that of the delivery."""

    def __init__(self, make_agent: Callable[[], AgentEvents], chosen: NamedHandler, *, notice: Notice) -> None:
        """Record with this handler.

        `make_agent` is called on the delivery's thread, since it may resolve the host's full name.
        """
        self._make_agent = make_agent
        self._agent: AgentEvents | None = None
        self._handler = chosen.handler
        self._guard = Guard(chosen.label, notice)
        self._name = _LOGGER.format(chosen.label)
        self._wanted = _level() <= logging.INFO
        self._handler.handleError = _raise_again  # or `logging` would print a traceback for each event

    def observe(self, seen: RunEvent) -> None:
        """Handle one event."""
        if self._agent is None:
            self._agent = self._make_agent()
        for event in self._agent.observe(seen):
            if self._wanted:
                record = self._log_record(event)
                self._guard.call(lambda record=record: self._handler.handle(record))  # type: ignore[misc]  # as above

    def _log_record(self, event: Event | RdzvEvent) -> logging.LogRecord:
        return logging.LogRecord(self._name, logging.INFO, __file__, 0, event.serialize(), None, None)

    def close(self) -> None:
        """Release the handler's resources."""
        self._guard.call(self._handler.close)


def _level() -> int:
    """Return the lowest level of recorded events, from LOGLEVEL (a name or a number). Events have level INFO."""
    word = os.environ.get("LOGLEVEL", "").strip().upper()
    found = int(word) if word.isdigit() else logging.getLevelNamesMapping().get(word)
    return logging.INFO if found is None else found


def _raise_again(record: logging.LogRecord) -> None:
    """Raise the exception that is being handled, in place of `logging`'s own report."""
    raise  # `logging` calls this where it has caught one
