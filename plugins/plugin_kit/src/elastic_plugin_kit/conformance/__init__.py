"""Conformance kits: subclass one and give its fixture, and pytest tests whether a plugin keeps its interface's rules.

The kits are versioned with the interfaces (`elastic_core.api.API_VERSION`). Tests of undeclared capabilities are
skipped and listed; an exception never skips. A subclass that overrides a kit's test must mark it `xfail` with a reason.
"""

import pkgutil

import pytest

# Before they are imported: so that a failed comparison shows both sides, as in a test's own file.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from elastic_plugin_kit.conformance.command import CommandConformance  # noqa: E402
from elastic_plugin_kit.conformance.environment import EnvironmentConformance  # noqa: E402
from elastic_plugin_kit.conformance.failure import FailureHandlerConformance  # noqa: E402
from elastic_plugin_kit.conformance.hook import AgentHookConformance  # noqa: E402
from elastic_plugin_kit.conformance.keeper import WorkerKeeperConformance  # noqa: E402
from elastic_plugin_kit.conformance.master_server import MasterServerConformance  # noqa: E402
from elastic_plugin_kit.conformance.rendezvous import RendezvousConformance  # noqa: E402
from elastic_plugin_kit.conformance.requirements import Requirements  # noqa: E402
from elastic_plugin_kit.conformance.starter import WorkerStarterConformance  # noqa: E402
from elastic_plugin_kit.conformance.store import CoordinationStoreConformance  # noqa: E402
from elastic_plugin_kit.conformance.torchrun import TorchrunConformance  # noqa: E402

__all__ = [
    "AgentHookConformance",
    "CommandConformance",
    "CoordinationStoreConformance",
    "EnvironmentConformance",
    "FailureHandlerConformance",
    "MasterServerConformance",
    "RendezvousConformance",
    "Requirements",
    "TorchrunConformance",
    "WorkerKeeperConformance",
    "WorkerStarterConformance",
]
