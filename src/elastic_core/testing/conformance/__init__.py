"""Conformance kits: subclass one, give its fixture, and pytest tells whether a plugin keeps its interface's promises.

The kits are versioned with the interfaces (`elastic_core.api.API_VERSION`). What a plugin does not declare is skipped
and listed; an exception never skips. A subclass that overrides a kit's test must mark it `xfail` with a reason.
"""

import pytest

# Before the imports below: so that a failed comparison shows both sides, as in a test's own file.
_KITS = ("failure", "hook", "kit", "rendezvous", *(f"store_{part}" for part in ("calls", "documents", "leases")))
pytest.register_assert_rewrite(*(f"{__name__}.{kit}" for kit in (*_KITS, "store_seats", "store_watch", "store_run")))

from elastic_core.testing.conformance.store import CoordinationStoreConformance  # noqa: E402

__all__ = ["CoordinationStoreConformance"]
