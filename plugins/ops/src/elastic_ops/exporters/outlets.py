"""What becomes of what is observed: metrics for their handlers, events for theirs."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from elastic_core.api.feed import RunEvent
from elastic_ops.events import recording
from elastic_ops.events.api import Event, RdzvEvent
from elastic_ops.events.handlers import get_logging_handler
from elastic_ops.exporters.agent_events import AgentEvents
from elastic_ops.exporters.agent_metrics import AgentMetrics, Metric, heartbeats
from elastic_ops.exporters.choosing import NamedHandler
from elastic_ops.exporters.delivery import Delivery, Guard, Published
from elastic_ops.exporters.looks import Beat, CallCount
from elastic_ops.metrics import api as metrics

Notice = Callable[[str], None]
_LOGGER: Final = "torchelastic-events-{}"


class MetricOutlet:
    """Publishes the agent's metrics. Threading: that of the delivery."""

    def __init__(self, agent: AgentMetrics, chosen: Sequence[NamedHandler], *, notice: Notice) -> None:
        """Publish to the handlers of this run, and to what code of this process has configured for the group."""
        self._agent = agent
        self._chosen = [(Guard(named.label, notice), named.handler) for named in chosen]
        self._in_code: dict[int, Guard] = {}
        self._notice = notice

    def observe(self, seen: RunEvent) -> None:
        """Take it."""
        for metric in self._agent.observe(seen):
            self._publish(metric, seen.at_ns / 1e9)

    def look(self, calls: Mapping[str, CallCount], beats: Mapping[int, Beat], at_ns: int) -> None:
        """Take what was looked at."""
        for metric in (*heartbeats(beats), *self._agent.calls(calls)):
            self._publish(metric, at_ns / 1e9)

    def _publish(self, metric: Metric, at_s: float) -> None:
        data = metrics.MetricData(at_s, metric.group, metric.name, metric.value)
        self.emit(data)
        configured = metrics.getStream(metric.group).handler
        if isinstance(configured, (metrics.NullMetricHandler, Relay)):
            return
        guard = self._in_code.get(id(configured))
        if guard is None:
            label = f"metrics handler {type(configured).__name__}"
            guard = self._in_code[id(configured)] = Guard(label, self._notice)
        guard.call(lambda: configured.emit(data))

    def emit(self, data: metrics.MetricData) -> None:
        """Hand a value to the handlers of this run."""
        for guard, handler in self._chosen:
            guard.call(lambda handler=handler: handler.emit(data))  # type: ignore[misc]  # a default binds it now

    def close(self) -> None:
        """Give back what handlers hold."""
        for guard, handler in self._chosen:
            close = getattr(handler, "close", None)
            if callable(close):
                guard.call(close)


class Relay(metrics.MetricHandler):
    """Takes what hooks and plugins publish in this process to the handlers of the run. Threading: any."""

    def __init__(self, delivery: Delivery, outlet: MetricOutlet) -> None:
        """Bind them."""
        self._delivery = delivery
        self._outlet = outlet

    def emit(self, metric_data: metrics.MetricData) -> None:
        """Take one value."""
        self._delivery.put(Published(publish=lambda: self._outlet.emit(metric_data)))


class EventOutlet:
    """Records the agent's events. Threading: that of the delivery."""

    def __init__(self, make_agent: Callable[[], AgentEvents], chosen: NamedHandler | None, *, notice: Notice) -> None:
        """Record with the handler of this run, and with what code of this process has configured.

        `make_agent` is called on the delivery's thread: the host's full name may have to be asked for.
        """
        self._make_agent = make_agent
        self._agent: AgentEvents | None = None
        self._chosen = chosen
        self._guard = None if chosen is None else Guard(chosen.label, notice)
        self._name = "null" if chosen is None else chosen.label
        self._in_code = Guard("event handler of events.configure", notice)
        self._rendezvous = Guard("event handler 'dynamic_rendezvous'", notice)
        self._wanted = recording.level() <= logging.INFO
        if chosen is not None and chosen.ours:
            chosen.handler.handleError = _raise_again  # or `logging` would print a traceback for each event

    def observe(self, seen: RunEvent) -> None:
        """Take it."""
        if self._agent is None:
            self._agent = self._make_agent()
        for event in self._agent.observe(seen):
            self._record(event)

    def _record(self, event: Event | RdzvEvent) -> None:
        if self._chosen is not None and self._guard is not None and self._wanted:
            handler, record = self._chosen.handler, self._log_record(event)
            self._guard.call(lambda: handler.handle(record))
        if isinstance(event, Event):
            configured = recording.configured_handler()
            if configured is not None:
                self._in_code.call(lambda: configured.record(event))
        elif recording.rendezvous_wanted() and (self._chosen is None or not self._is_rendezvous_handler()):
            self._rendezvous.call(lambda: recording.record_rdzv_event(event))

    def _is_rendezvous_handler(self) -> bool:
        chosen: Any = None if self._chosen is None else self._chosen.handler
        return chosen is get_logging_handler(recording.RENDEZVOUS_DESTINATION)

    def _log_record(self, event: Event | RdzvEvent) -> logging.LogRecord:
        name = _LOGGER.format(self._name)
        return logging.LogRecord(name, logging.INFO, __file__, 0, event.serialize(), None, None)

    def close(self) -> None:
        """Give back what the handler holds."""
        if self._chosen is not None and self._guard is not None and self._chosen.ours:
            self._guard.call(self._chosen.handler.close)


def _raise_again(record: logging.LogRecord) -> None:
    """Let the exception that is being handled out, in place of `logging`'s own words about it."""
    raise  # `logging` calls this where it has caught one
