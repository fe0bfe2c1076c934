"""Fakes and conformance kits for plugin authors. The kits need pytest: `elastic-core[testing]`."""

from elastic_core.testing.manual_clock import ManualClock
from elastic_core.testing.memory_server import Fault, MemoryServer
from elastic_core.testing.memory_store import MemoryStore
from elastic_core.testing.settings import rendezvous_settings
from elastic_core.testing.store_model import StoreModel

__all__ = [
    "Fault",
    "ManualClock",
    "MemoryServer",
    "MemoryStore",
    "StoreModel",
    "rendezvous_settings",
]
