"""Which powers a hook has: those that its class states, and before version 2 of the interfaces those that all had."""

from collections.abc import Mapping
from typing import Final

from elastic_core.hooks.handler import AgentHook
from elastic_core.types import Power

DECLARED_FROM: Final = 2
"""The version of the interfaces from which on a hook has the powers that it states, and no others."""
_OF_ALL: Final = frozenset({Power.LAUNCHES, Power.REFUSAL})
_METHODS: Final[Mapping[Power, tuple[str, ...]]] = {
    Power.LAUNCHES: ("on_workers_starting",),
    Power.REFUSAL: ("on_joining", "on_workers_starting"),
    Power.RUN: (),
}
"""Where each power is used: one of these methods; empty: anywhere."""


def powers_of(cls: type[AgentHook]) -> frozenset[Power]:
    """Return the powers of a hook's class."""
    version = getattr(cls, "api_version", 1)
    return frozenset(cls.powers) if type(version) is int and version >= DECLARED_FROM else _OF_ALL


def fault_of_powers(version: object, declared: object, moments: frozenset[str]) -> str:
    """Return what is wrong with the powers that a plugin states; empty: nothing.

    Args:
        version: Its `api_version`.
        declared: Its `powers`.
        moments: The moments that it takes, by the names of their methods.
    """
    if not isinstance(declared, (set, frozenset)) or not all(isinstance(power, Power) for power in declared):
        return f"states powers {declared!r}; a set of elastic_core.api.Power is needed"
    if declared and (type(version) is not int or version < DECLARED_FROM):
        return f"states powers with api_version {version!r}; {DECLARED_FROM} is needed"
    for power in sorted(declared):
        if _METHODS[power] and not moments & frozenset(_METHODS[power]):
            return f"states the power {power.value!r} and has no {' or '.join(_METHODS[power])}"
    return ""
