"""Conformance kits and fakes for plugin authors."""

from typing import TYPE_CHECKING

from elastic_plugin_kit.fake_run import FakeRun
from elastic_plugin_kit.manual_clock import ManualClock
from elastic_plugin_kit.memory_server import Fault, MemoryServer
from elastic_plugin_kit.memory_store import MemoryStore
from elastic_plugin_kit.real_loop import RealLoop
from elastic_plugin_kit.samples import sample_failure, sample_feed, sample_moments, sample_round
from elastic_plugin_kit.settings import rendezvous_settings
from elastic_plugin_kit.store_model import StoreModel

if TYPE_CHECKING:
    from elastic_plugin_kit.conformance import (
        AgentHookConformance,
        CommandConformance,
        CoordinationStoreConformance,
        FailureHandlerConformance,
        RendezvousConformance,
        Requirements,
        WorkerStarterConformance,
    )

__all__ = [
    "AgentHookConformance",
    "CommandConformance",
    "CoordinationStoreConformance",
    "FailureHandlerConformance",
    "FakeRun",
    "Fault",
    "ManualClock",
    "MemoryServer",
    "MemoryStore",
    "RealLoop",
    "RendezvousConformance",
    "Requirements",
    "StoreModel",
    "WorkerStarterConformance",
    "rendezvous_settings",
    "sample_failure",
    "sample_feed",
    "sample_moments",
    "sample_round",
]


def __getattr__(name: str) -> object:
    """Import the kits, and pytest with them, only where they are asked for."""
    if name in __all__:  # and was not imported above
        from elastic_plugin_kit import conformance

        return getattr(conformance, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
