"""Recording of events: `record` passes an event to the `logging` handler of its destination."""

import inspect
import json
import logging
import os
import socket
import traceback
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from elastic_core.api import SYSTEM_CLOCK
from elastic_torchrun.events.api import Event, NodeState, RdzvEvent
from elastic_torchrun.events.handlers import get_logging_handler, is_own

LEVEL_VARIABLE = "LOGLEVEL"
RENDEZVOUS_DESTINATION = "dynamic_rendezvous"

_attached: dict[str, logging.Handler] = {}


class EventHandler(ABC):
    """Receives every event that this process records, after `configure`."""

    @abstractmethod
    def record(self, event: Event) -> None:
        """Handle one event. Threading: the recording thread; for events of an agent, a thread of its own."""


class NullEventHandler(EventHandler):
    """Drops all events; the default."""

    def record(self, event: Event) -> None:
        """Drop it."""


_configured: list[EventHandler] = [NullEventHandler()]


def configure(handler: EventHandler) -> None:
    """Set a handler for all events of this process, in addition to their destinations."""
    _configured[0] = handler


def configured_handler() -> EventHandler | None:
    """Return the handler that `configure` set. `None` means that none handles events."""
    return None if isinstance(_configured[0], NullEventHandler) else _configured[0]


def wants_events(destination: str) -> bool:
    """Return whether code of this process handles events: all, those of a rendezvous, or those of this destination."""
    return configured_handler() is not None or is_own(RENDEZVOUS_DESTINATION) or is_own(destination)


def level() -> int:
    """Return the lowest level of recorded events, from `LOGLEVEL` (a name or a number). Events have level INFO."""
    word = os.environ.get(LEVEL_VARIABLE, "").strip().upper()
    found = int(word) if word.isdigit() else logging.getLevelNamesMapping().get(word)
    return logging.INFO if found is None else found


def record(event: Event, destination: str = "null") -> None:
    """Record an event. If it has no time, the current time is set.

    Raises:
        KeyError: there is no such destination.
    """
    if not event.timestamp:
        event = replace(event, timestamp=SYSTEM_CLOCK.wall_ns() // 1_000_000)
    handler = configured_handler()
    if handler is not None:
        handler.record(event)
    _logger(destination).info(event.serialize())


def record_rdzv_event(event: RdzvEvent) -> None:
    """Record an event of a rendezvous; its destination is `dynamic_rendezvous`."""
    _logger(RENDEZVOUS_DESTINATION).info(event.serialize())


def construct_and_record_rdzv_event(
    run_id: str,
    message: str,
    node_state: NodeState,
    name: str = "",
    hostname: str = "",
    pid: int | None = None,
    master_endpoint: str = "",
    local_id: int | None = None,
    rank: int | None = None,
) -> None:
    """Record an event of a rendezvous, if there is a handler for it.

    Args:
        run_id: The run's id.
        message: Text for people.
        node_state: The node's progress. FAILED adds the traceback of the exception that is being handled.
        name: Name of the operation; default the calling function's name. The calling file's name is its prefix.
        hostname: Default: this host's full name.
        pid: Default: this process's.
        master_endpoint: Endpoint of the rendezvous store, if known.
        local_id: The node's number on its host, if it has one.
        rank: The node's rank, if known.
    """
    if not is_own(RENDEZVOUS_DESTINATION):
        return
    frame = inspect.currentframe()
    caller = None if frame is None else frame.f_back
    file = "no_file" if caller is None else Path(caller.f_code.co_filename).name
    function = "" if caller is None else caller.f_code.co_name
    record_rdzv_event(
        RdzvEvent(
            name=f"{file}:{name or function}",
            run_id=run_id,
            message=message,
            hostname=hostname or socket.getfqdn(),
            pid=pid or os.getpid(),
            node_state=node_state,
            master_endpoint=master_endpoint,
            rank=rank,
            local_id=local_id,
            error_trace=traceback.format_exc() if node_state is NodeState.FAILED else "",
        )
    )


def _logger(destination: str) -> logging.Logger:
    handler = get_logging_handler(destination)
    logger = logging.getLogger(f"torchelastic-events-{destination}")
    before = _attached.get(destination)
    if before is not handler:  # the first time, and after a change of `log_handlers`
        if before is not None:
            logger.removeHandler(before)
        logger.setLevel(level())
        logger.propagate = False  # each event once, whatever handlers the root has
        logger.addHandler(handler)
        _attached[destination] = handler
    return logger


class _Settings(Protocol):
    @property
    def conf(self) -> str: ...


class ConfiguredEvents(logging.Handler):
    """The handler `configured:DESTINATION` of elastic-ops: passes events to the handlers that this process configured.

    Raises:
        KeyError: there is no such destination.
    """

    def __init__(self, settings: _Settings) -> None:
        super().__init__()
        self._destination = settings.conf or "null"
        get_logging_handler(self._destination)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one event on. Threading: one thread of the agent."""
        text = record.getMessage()
        destinations = {self._destination}
        if "source" not in json.loads(text):
            destinations.add(RENDEZVOUS_DESTINATION)
        elif (handler := configured_handler()) is not None:
            handler.record(Event.deserialize(text))
        for destination in destinations:
            _logger(destination).info(text)
