"""Objects that a caller of the library injects into a run, which no command line can.

Apart from `launcher.job`, which a library names long before it runs one.
"""

from collections.abc import Callable
from typing import Any

from elastic_core.rendezvous.coordinated import Backend
from elastic_core.types import Record, RendezvousSettings


class Injected(Record, frozen=True, kw_only=True, eq=False):
    """Each takes the place of what the settings name; None: what they name."""

    rendezvous: Callable[[RendezvousSettings], Backend] | None = None
    """Gives the backend."""
    logs_specs: Any = None
    """An object with torch's `reify`."""


NOTHING = Injected()
