"""The observers of a run that make metrics and events of it: none, unless somebody asked."""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from elastic_core.agent.feed import Observation
from elastic_core.options.settings import RunSettings
from elastic_core.reactor import Reactor
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.rundir.directory import RunDirectory

if TYPE_CHECKING:
    from elastic_core.reports import WorkerBeats


class Observers:
    """No observers: nothing is loaded, no thread is started.

    Threading: the supervisor's thread, unless said otherwise; nothing here blocks it.
    """

    exposition: "Callable[[], tuple[str, str]] | None" = None
    """Gives the metrics as Prometheus reads them, and their MIME type; None: nobody does. Threading: any."""

    def open(self, run_dir: RunDirectory, node_id: str) -> None:
        """Build what was chosen. Called: before any worker exists.

        Raises:
            ElasticError: it can't be built.
        """

    def begin(
        self, reactor: Reactor, *, notice: Callable[[str], None], beats: "Callable[[], Mapping[int, WorkerBeats]]"
    ) -> None:
        """Begin to watch; `beats` is asked for the heartbeats of this node's workers from time to time."""

    def meter(self, handler: RendezvousHandler) -> None:
        """Measure the calls to the handler's store, if it has one. Called: before it is used."""

    def observe(self, what: Observation) -> None:
        """Take what was published in the agent's feed, or looked at. Threading: any."""

    def close(self) -> None:
        """Hand on what is left, and end; idempotent."""


def choose_observers(settings: RunSettings, *, own_process: bool) -> Observers:
    """Return the observers that the settings, or code of this process, ask for.

    Raises:
        PluginError: a handler is not installed, or is broken.
    """
    asked = settings.observing
    wanted = asked.metrics_handlers or asked.metrics_port is not None or asked.event_log_handler != "null"
    if not wanted and not (_in_code("elastic_core.metrics.api") or _in_code("elastic_core.events.recording")):
        return Observers()
    from elastic_core.launcher.observing import Observing

    return Observing(settings, own_process=own_process)


def _in_code(module: str) -> bool:
    """Return whether code that runs in this process has configured a handler: what nobody loaded, nobody has."""
    loaded: Any = sys.modules.get(module)
    return loaded is not None and bool(loaded.is_configured())
