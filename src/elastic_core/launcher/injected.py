"""Objects that a library call injects into a run, and that no command line can give.

A module apart from `launcher.job`, because a library imports it long before a run.
"""

from collections.abc import Callable
from typing import Any

from elastic_core.rendezvous.coordinated import Backend
from elastic_core.types import Record, RendezvousSettings


class Injected(Record, frozen=True, kw_only=True, eq=False):
    """Replacements of what the settings name. `None` means no replacement."""

    rendezvous: Callable[[RendezvousSettings], Backend] | None = None
    """Returns the backend."""
    logs_specs: Any = None
    """An object with the method `reify` of torch."""


NOTHING = Injected()
