"""Conformance kits and fakes for plugin authors.

Kits: subclass one, give its fixture, and pytest asks for each promise; `elastic plugins check NAME` needs no test
    CoordinationStoreConformance    a store; Requirements says what it can't have by its nature
    RendezvousConformance           a rendezvous handler
    FailureHandlerConformance       a policy
    AgentHookConformance            a hook
    WorkerStarterConformance        a starter of workers
    WorkerKeeperConformance         a starter that keeps workers between rounds
    MasterServerConformance         a server at MASTER_PORT
    TorchrunConformance             a backend under stock torchrun
    CommandConformance              a command of elastic
    EnvironmentConformance          an environment: what it proposes for a run
Real agents in a test
    run_agents                      starts them, and ends whatever is left: gives Agents, each an Agent with its Worker
Fakes and samples
    MemoryServer, MemoryStore, Fault    a store in this process, with faults on demand
    StoreModel                          the content of a store as a plain value
    ManualClock                         a clock that a test moves
    FakeRun, RealLoop                   what hooks and starters are handed
    rendezvous_settings                 settings as the core makes them
    sample_failure, sample_round, sample_moments, sample_feed

Each name is imported when it is used, pytest with the kits. `help(elastic_plugin_kit.run_agents)` shows one of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from elastic_plugin_kit.agents import Agent, Agents, Worker, run_agents
    from elastic_plugin_kit.conformance import (
        AgentHookConformance,
        CommandConformance,
        CoordinationStoreConformance,
        EnvironmentConformance,
        FailureHandlerConformance,
        MasterServerConformance,
        RendezvousConformance,
        Requirements,
        TorchrunConformance,
        WorkerKeeperConformance,
        WorkerStarterConformance,
    )
    from elastic_plugin_kit.fake_run import FakeRun
    from elastic_plugin_kit.manual_clock import ManualClock
    from elastic_plugin_kit.memory_server import Fault, MemoryServer
    from elastic_plugin_kit.memory_store import MemoryStore
    from elastic_plugin_kit.real_loop import RealLoop
    from elastic_plugin_kit.samples import sample_failure, sample_feed, sample_moments, sample_round
    from elastic_plugin_kit.settings import rendezvous_settings
    from elastic_plugin_kit.store_model import StoreModel

__all__ = [
    "Agent",
    "AgentHookConformance",
    "Agents",
    "CommandConformance",
    "CoordinationStoreConformance",
    "EnvironmentConformance",
    "FailureHandlerConformance",
    "FakeRun",
    "Fault",
    "ManualClock",
    "MasterServerConformance",
    "MemoryServer",
    "MemoryStore",
    "RealLoop",
    "RendezvousConformance",
    "Requirements",
    "StoreModel",
    "TorchrunConformance",
    "Worker",
    "WorkerKeeperConformance",
    "WorkerStarterConformance",
    "rendezvous_settings",
    "run_agents",
    "sample_failure",
    "sample_feed",
    "sample_moments",
    "sample_round",
]

_ROOMS: Final = {
    "agents": "Agent Agents Worker run_agents",
    "fake_run": "FakeRun",
    "manual_clock": "ManualClock",
    "memory_server": "Fault MemoryServer",
    "memory_store": "MemoryStore",
    "real_loop": "RealLoop",
    "samples": "sample_failure sample_feed sample_moments sample_round",
    "settings": "rendezvous_settings",
    "store_model": "StoreModel",
}
"""Where the names are; all others are kits."""
_PLACES: Final = {name: room for room, names in _ROOMS.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Return a public name. It is not kept here: `help` of this package would show all that was ever used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES.get(name, 'conformance')}"), name)
