"""The observers of a run whose metrics or events somebody wants. Loaded only for those."""

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Final

from elastic_core.agent.feed import StepTaken
from elastic_core.clock import SYSTEM_CLOCK, Clock
from elastic_core.events import handlers as event_handlers
from elastic_core.launcher.agent_events import AgentEvents, Identity
from elastic_core.launcher.agent_metrics import AgentMetrics
from elastic_core.launcher.feeding import StoreMeter
from elastic_core.launcher.observations import Beat, Heartbeats, Observation, Observed
from elastic_core.launcher.observers import Observers
from elastic_core.launcher.observing_feed import Feed, Outlet
from elastic_core.launcher.outlets import EventOutlet, MetricOutlet, Relay
from elastic_core.metrics import api as metrics
from elastic_core.options.settings import RunSettings
from elastic_core.plugins import observing as plugins
from elastic_core.plugins.discovery import EVENTS_GROUP, METRICS_GROUP
from elastic_core.plugins.observing import NamedHandler
from elastic_core.reactor import Reactor
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.reports import WorkerBeats
from elastic_core.rundir.directory import RunDirectory
from elastic_core.types import HandlerSettings

LOOK_S: Final = 5.0
"""How often heartbeats and the store's latency are looked at: they change all the time."""
FIRST_LOOK_S: Final = 1.0


class Observing(Observers):
    """The observers: handlers of metrics and events get all of it on a thread of their own."""

    def __init__(self, settings: RunSettings, *, own_process: bool, clock: Clock = SYSTEM_CLOCK) -> None:
        """Find the handlers that were named, and import them.

        Raises:
            PluginError: one is not installed, or can't be imported.
        """
        self._settings = settings
        self._own_process = own_process
        self._clock = clock
        self._metrics = [plugins.choose(METRICS_GROUP, text) for text in settings.observing.metrics_handlers]
        in_code = [item for item in event_handlers.log_handlers.items() if item[0] not in event_handlers.BUILT_IN]
        in_code += [item for item in event_handlers.log_handlers.items() if _is_replaced(*item)]
        self._events = plugins.choose(EVENTS_GROUP, settings.observing.event_log_handler, in_code)
        self._cleanup = ExitStack()
        self._lines: deque[str] = deque()
        self._notice: Callable[[str], None] = self._lines.append
        self._post: Callable[[Callable[[], None]], None] | None = None
        self._feed: Feed | None = None
        self._reactor: Reactor | None = None
        self._beats: Callable[[], Mapping[int, WorkerBeats]] = dict
        self._meter: StoreMeter | None = None
        self._metric_outlet: MetricOutlet | None = None

    # --- life

    def open(self, run_dir: RunDirectory, node_id: str) -> None:
        """Build what was chosen."""
        settings = self._settings
        shared = HandlerSettings(
            name="", run_id=settings.nodes.run_id, node_id=node_id, role=settings.nodes.role, run_dir=str(run_dir.path)
        )
        built = []
        for choice in self._metrics:
            built.append(choice.build(shared, default_file=str(run_dir.path / "metrics.jsonl")))
            self._keep(choice, run_dir)
        if settings.observing.metrics_port is not None:
            built.append(self._served(settings.observing.metrics_port))
        event_handler = None
        if self._events.name != "null" or self._events.conf:
            event_handler = self._events.build(shared, default_file=str(run_dir.path / "events.jsonl"))
            self._keep(self._events, run_dir)
        self._wire(built, event_handler)

    def _keep(self, choice: plugins.HandlerChoice, run_dir: RunDirectory) -> None:
        if choice.name == "jsonl" and not choice.conf:
            what = "metrics" if choice.group == METRICS_GROUP else "events"
            run_dir.keep(f"{what} were asked for")
            self._lines.append(f"{what} are in {str(run_dir.path / f'{what}.jsonl')!r}")

    def _served(self, port: int) -> NamedHandler:
        from elastic_core.metrics.prometheus import PrometheusMetricHandler

        handler = PrometheusMetricHandler(port, self._settings.observing.metrics_host)
        self._lines.append(f"metrics are served at {handler.url}")
        self.exposition = handler.text
        return NamedHandler(label="metrics handler 'prometheus'", handler=handler)

    def _wire(self, built: list[NamedHandler], event_handler: NamedHandler | None) -> None:
        settings = self._settings
        metric_outlet = MetricOutlet(
            AgentMetrics(
                run_id=settings.nodes.run_id,
                role=settings.nodes.role,
                backend=settings.nodes.backend,
                max_restarts=settings.restarts.max_restarts,
            ),
            built,
            notice=self._later,
        )
        event_outlet = EventOutlet(lambda: AgentEvents(self._identity()), event_handler, notice=self._later)
        outlets: list[Outlet] = [metric_outlet, event_outlet]
        self._feed = Feed(outlets, notice=self._later)
        self._metric_outlet = metric_outlet if built else None

    def _identity(self) -> Identity:
        settings = self._settings
        return Identity(
            run_id=settings.nodes.run_id,
            role=settings.nodes.role,
            backend=settings.nodes.backend,
            entry_point=settings.entrypoint.name,
            hostname=socket.getfqdn(),
            pid=os.getpid(),
            endpoint=settings.nodes.endpoint.rpartition("@")[2].partition("?")[0],  # secrets may be in a URL
        )

    def begin(
        self, reactor: Reactor, *, notice: Callable[[str], None], beats: Callable[[], Mapping[int, WorkerBeats]]
    ) -> None:
        """Begin to watch."""
        feed = self._feed
        assert feed is not None
        self._reactor, self._notice, self._post, self._beats = reactor, notice, reactor.post, beats
        self._flush()
        feed.start()
        if self._own_process and self._metric_outlet is not None and not metrics.is_configured():
            before = metrics.getStream("").handler
            metrics.configure(Relay(feed, self._metric_outlet))
            self._cleanup.callback(metrics.configure, before)
        reactor.call_later(FIRST_LOOK_S, self._look)

    def close(self) -> None:
        """Hand on what is left, and end."""
        if self._meter is not None:
            self._see(self._meter.take())
        feed, self._feed = self._feed, None
        self._post = None
        if feed is not None and not feed.close():
            self._lines.append("a handler of metrics or events has not returned; the run ends without it")
        self._cleanup.close()
        self._flush()

    def _later(self, text: str) -> None:
        """Show people a line. Threading: any."""
        self._lines.append(text)
        post = self._post
        if post is not None:
            post(self._flush)

    def _flush(self) -> None:
        while self._lines:
            self._notice(self._lines.popleft())

    # --- what is seen

    def meter(self, handler: RendezvousHandler) -> None:
        """Measure the calls to its store."""
        store = getattr(handler, "store", None)
        if isinstance(store, CoordinationStore):
            self._meter = StoreMeter(self._clock)
            self._meter.watch(store)

    def observe(self, what: Observation) -> None:
        """Take it, unless it is a step that leaves the machine in a state of the same kind."""
        if not isinstance(what, StepTaken) or what.entered:
            self._see(what)

    def _see(self, what: Observation) -> None:
        feed = self._feed
        if feed is not None:
            feed.put(Observed(at_s=self._clock.monotonic_s(), at_ns=self._clock.wall_ns(), what=what))

    def _look(self) -> None:
        """Take what changes all the time. Called: every few seconds."""
        reactor = self._reactor
        if reactor is None or self._feed is None:
            return
        now_s = self._clock.monotonic_s()
        beats = {
            rank: Beat(age_s=max(0.0, now_s - told.beat_s), step=told.step)
            for rank, told in self._beats().items()
            if told.beat_s is not None
        }
        if beats:
            self._see(Heartbeats(beats=beats))
        if self._meter is not None:
            self._see(self._meter.take())
        reactor.call_later(LOOK_S, self._look)


def _is_replaced(name: str, handler: logging.Handler) -> bool:
    """Return whether code has put another handler in a built-in one's place."""
    kinds = {"console": logging.StreamHandler, "null": logging.NullHandler, "dynamic_rendezvous": logging.NullHandler}
    return name in kinds and type(handler) is not kinds[name]
