"""Conformance kits: subclass one, give its fixture, and pytest tells whether a plugin keeps its interface's promises.

The kits are versioned with the interfaces (`elastic_core.api.API_VERSION`). What a plugin does not declare is skipped
and listed; an exception never skips. A subclass that overrides a kit's test must mark it `xfail` with a reason.
"""

from typing import Final

import pytest

_WITH_ASSERTS: Final = (
    "failure",
    "hook",
    "kit",
    "kit_process",
    "rendezvous",
    "store_calls",
    "store_documents",
    "store_leases",
    "store_run",
    "store_seats",
    "store_watch",
)
# Before they are imported: so that a failed comparison shows both sides, as in a test's own file.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _WITH_ASSERTS))

from elastic_core.testing.conformance.failure import FailureHandlerConformance  # noqa: E402
from elastic_core.testing.conformance.hook import AgentHookConformance  # noqa: E402
from elastic_core.testing.conformance.rendezvous import RendezvousConformance  # noqa: E402
from elastic_core.testing.conformance.store import CoordinationStoreConformance  # noqa: E402

__all__ = [
    "AgentHookConformance",
    "CoordinationStoreConformance",
    "FailureHandlerConformance",
    "RendezvousConformance",
]
