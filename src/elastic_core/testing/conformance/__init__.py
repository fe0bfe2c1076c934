"""Conformance kits: subclass one, give its fixture, and pytest tells whether a plugin keeps its interface's promises.

The kits are versioned with the interfaces (`elastic_core.api.API_VERSION`). What a plugin does not declare is skipped
and listed; an exception never skips. A subclass that overrides a kit's test must mark it `xfail` with a reason.
"""

from elastic_core.testing.conformance.store import CoordinationStoreConformance

__all__ = ["CoordinationStoreConformance"]
