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
    from elastic_plugin_kit.agents import Agent, Agents, Worker, run_agents
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
    "Agent",
    "AgentHookConformance",
    "Agents",
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
    "Worker",
    "WorkerStarterConformance",
    "rendezvous_settings",
    "run_agents",
    "sample_failure",
    "sample_feed",
    "sample_moments",
    "sample_round",
]


def __getattr__(name: str) -> object:
    """Import the kits, and pytest with them, and what starts agents, only where they are asked for."""
    if name in __all__:  # and was not imported above
        from importlib import import_module

        room = "agents" if name in {"Agent", "Agents", "Worker", "run_agents"} else "conformance"
        return getattr(import_module(f"{__name__}.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
