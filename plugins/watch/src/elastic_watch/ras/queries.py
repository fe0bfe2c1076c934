"""Queries of NCCL's RAS service in a hang, on a thread: a search for the cause does not wait for them."""

import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress

from elastic_core.api import RunHandle
from elastic_watch.collectives.evidence import Snapshot
from elastic_watch.ras.client import ENABLED, VARIABLE, RasUnavailableError, free_address, look
from elastic_watch.ras.findings import findings


class RasQueries:
    """The address of the service on this node, and its last response.

    The workers of a node share one address, which differs from those of other runs on the host. An address that the
    user has set counts.

    Args:
        run: The run's handle.
        user: The agent's environment variables.
    """

    def __init__(self, run: RunHandle, user: Mapping[str, str] = os.environ) -> None:
        self._run = run
        self._address = "" if user.get(ENABLED) == "0" else user.get(VARIABLE, "")
        self._own = False
        if not self._address and user.get(ENABLED) != "0":
            with suppress(OSError):
                self._address, self._own = free_address(), True
        self._querying = False
        self.said: tuple[str, ...] | None = None
        """Sentences about ranks of communicators. `None` without a response since the workers made progress."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables of workers: none if the user has set the address or switched the service off."""
        return {VARIABLE: self._address} if self._own else {}

    def begin(self, snapshots: Iterable[Snapshot]) -> None:
        """Query the service if workers use NCCL, and no query is in progress. Threading: the hooks' thread."""
        uses_nccl = any("nccl" in group.backend for snapshot in snapshots for group in snapshot.groups)
        if self._querying or not self._address or not uses_nccl:
            return
        self._querying = True
        try:
            threading.Thread(target=self._query, name="elastic-ras", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._querying = False

    def forget(self) -> None:
        """Forget the last response: the workers make progress, or are others."""
        self.said = None

    def _query(self) -> None:
        said = None
        with suppress(RasUnavailableError):  # NCCL before 2.28, or no communicator yet: other evidence has to suffice
            said = findings(look(self._address))
        self._run.call_later(0.0, lambda: self._have(said))

    def _have(self, said: tuple[str, ...] | None) -> None:
        self._querying = False
        self.said = said
