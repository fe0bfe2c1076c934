"""The hook behind `--metrics-handler`, `--metrics-port` and `--event-log-handler`."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

from elastic_core.api import SYSTEM_CLOCK, AgentHook, AgentStarted, Clock, HookSettings, OptionSpec, Power
from elastic_core.api.feed import Answer, RunEvent
from elastic_ops.exporters import choosing
from elastic_ops.exporters.agent_events import AgentEvents, Identity
from elastic_ops.exporters.agent_metrics import AgentMetrics
from elastic_ops.exporters.choosing import EVENTS_GROUP, METRICS_GROUP, HandlerChoice, HandlerSettings, NamedHandler
from elastic_ops.exporters.delivery import Delivery
from elastic_ops.exporters.looks import StoreMeter, last_beats
from elastic_ops.exporters.options import EVENT_LOG_HANDLER, METRICS_HANDLER, METRICS_PORT, address
from elastic_ops.exporters.outlets import EventOutlet, MetricOutlet

LOOK_S: Final = 5.0
"""The interval in which heartbeats and the store's latency are read."""
FIRST_LOOK_S: Final = 1.0


class Exporters(AgentHook):
    """Makes metrics and events from the run's feed, and passes them to handlers on a thread of its own."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.FEED, Power.RUN})
    options: ClassVar[Sequence[OptionSpec]] = (METRICS_HANDLER, METRICS_PORT, EVENT_LOG_HANDLER)
    clock: Clock = SYSTEM_CLOCK

    def __init__(self, settings: HookSettings) -> None:
        """Find the chosen handlers, and build them.

        Raises:
            PluginError: one is not installed, or is broken.
            ConfigError: one can't be built with its settings.
        """
        super().__init__(settings)
        self._lines: list[str] = []
        self._kept = ""
        self._exposition: Callable[[], tuple[str, str]] | None = None
        self._meter = StoreMeter()
        named = [choosing.choose(METRICS_GROUP, text) for text in map(str, settings.lists.get("metrics_handler", ()))]
        events = choosing.choose(EVENTS_GROUP, str(settings.options.get("event_log_handler") or "null"))
        chosen = [] if settings.dry_run else [self._built(choice) for choice in named]
        port = str(settings.options.get("metrics_port") or "").strip()
        if port and not settings.dry_run:
            chosen.append(self._served(port))
        self._metrics = MetricOutlet(self._agent_metrics(), chosen, notice=self._notice)
        self._outlets: list[MetricOutlet | EventOutlet] = [self._metrics]
        if not settings.dry_run and (events.name != "null" or events.conf):
            handler = self._built(events)
            self._outlets.append(EventOutlet(lambda: AgentEvents(self._identity()), handler, notice=self._notice))
        self._delivery = Delivery(self._close_outlets, notice=self._notice)

    # --- what was chosen

    def _built(self, choice: HandlerChoice) -> NamedHandler:
        settings = self.settings
        what = "metrics" if choice.group == METRICS_GROUP else "events"
        default_file = os.path.join(settings.run_dir, f"{what}.jsonl")  # noqa: PTH118  # a text, as handlers take it
        shared = HandlerSettings(
            name="", run_id=settings.run_id, node_id=settings.node_id, role=settings.role, run_dir=settings.run_dir
        )
        handler = choice.build(shared, default_file=default_file)
        if choice.name == "jsonl" and not choice.conf:
            self._kept = self._kept or f"{what} were asked for"
            self._lines.append(f"{what} are in {default_file!r}")
        return handler

    def _served(self, text: str) -> NamedHandler:
        from elastic_ops.metrics.prometheus import PrometheusMetricHandler

        host, port = address(text) or ("", 0)  # it was checked
        handler = PrometheusMetricHandler(port, host)
        self._lines.append(f"metrics are served at {handler.url}")
        self._exposition = handler.text
        return NamedHandler(label="metrics handler 'prometheus'", handler=handler)

    def _agent_metrics(self) -> AgentMetrics:
        own = self.settings
        return AgentMetrics(run_id=own.run_id, role=own.role, backend=own.backend, max_restarts=own.max_restarts)

    def _identity(self) -> Identity:
        own = self.settings
        return Identity(
            run_id=own.run_id,
            role=own.role,
            backend=own.backend,
            entry_point=own.entry_point,
            hostname=socket.getfqdn(),
            pid=os.getpid(),
            endpoint=own.endpoint,
        )

    # --- the run

    def on_agent_started(self, event: AgentStarted) -> None:
        """Log the addresses and files, and begin to read."""
        for line in self._lines:
            self._notice(line)
        if self._kept:
            self.run.keep_run_dir(self._kept)
        if self._exposition is not None:
            self.run.offer("metrics", self._answer)
        self.run.call_later(FIRST_LOOK_S, self._look)

    def _answer(self, parameters: Mapping[str, str]) -> Answer:
        """Return the metrics in Prometheus format. Threading: any."""
        text, content_type = ("", "") if self._exposition is None else self._exposition()
        return Answer(content=text, content_type=content_type)

    def on_run_event(self, event: RunEvent) -> None:
        """Pass an event to the delivery's thread."""
        self._delivery.start()
        match event.name, event.values:
            case "store_call", {"call": str(call), "took_s": float(took_s), "failed": bool(failed)}:
                self._meter.add(call, took_s, failed=failed)
            case "step", {"entered": False}:
                pass  # it leaves the agent in a state of the same kind
            case "feed_closed", _:
                self._put_looks()
                self._end()
            case _:
                self._delivery.put(lambda: self._observe(event))

    def _observe(self, event: RunEvent) -> None:
        for outlet in self._outlets:
            outlet.observe(event)

    def _close_outlets(self) -> None:
        for outlet in self._outlets:
            outlet.close()

    def _look(self) -> None:
        self._put_looks()
        self.run.call_later(LOOK_S, self._look)

    def _put_looks(self) -> None:
        calls, beats = self._meter.take(), last_beats(self.run.offers())
        at_ns = self.clock.wall_ns()
        self._delivery.put(lambda: self._metrics.look(calls, beats, at_ns))

    def _end(self) -> None:
        if not self._delivery.close():
            self._notice("a handler of metrics or events has not returned; the run ends without it")

    def close(self) -> None:
        """Release the objects that were built for a run that never began."""
        self._delivery.close()

    def _notice(self, text: str) -> None:
        """Show a line to people, if there is a run. Threading: any."""
        run = getattr(self, "run", None)
        if run is not None:
            run.notice(text, named=False)
