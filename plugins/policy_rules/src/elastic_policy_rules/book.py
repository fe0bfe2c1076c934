"""The content of a rule file: frozen values, with names and line numbers but without its text."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from elastic_core.api import DeviceFault, FailureClass

Action = Literal["restart", "wait", "ignore", "fail", "done"]
Exhausted = Literal["fail", "done", "ignore", "next"]

Found = Callable[[str], bool]
"""Returns whether a pattern is found in a text."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern as written, and its function."""

    text: str
    found: Found = field(compare=False)


@dataclass(frozen=True, slots=True)
class Match:
    """Conditions on a failure. An empty tuple or `None` matches any."""

    classes: frozenset[FailureClass] = frozenset()
    exceptions: tuple[Pattern, ...] = ()
    messages: tuple[Pattern, ...] = ()
    logs: tuple[Pattern, ...] = ()
    exit_codes: tuple[tuple[int, int], ...] = ()
    signals: frozenset[int] = frozenset()
    devices: frozenset[DeviceFault] = frozenset()
    ranks: tuple[tuple[int, int], ...] = ()
    nodes: tuple[Pattern, ...] = ()
    under_s: float | None = None
    over_s: float | None = None
    repeats: int | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow: `base_s` times `factor` to the power of the restarts before, at most `cap_s`."""

    base_s: float
    factor: float = 2.0
    cap_s: float = 300.0
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `max_count` `None` means no limit, `backoff` `None` the built-in policy's, `blame` `None` by class."""

    name: str
    line: int
    action: Action
    match: Match = Match()
    max_count: int | None = None
    per_s: float | None = None
    backoff: Backoff | None = None
    reset_after_s: float | None = None
    delay_s: float = 0.0
    exhausted: Exhausted = "fail"
    exclude: bool = False
    blame: bool | None = None
    reason: str = ""

    @property
    def restarts(self) -> bool:
        """Return whether the rule restarts workers."""
        return self.action in ("restart", "wait")


@dataclass(frozen=True, slots=True)
class Blame:
    """When a node is left out, and for how long."""

    times: int = 2
    within_s: float = 3600.0
    exclude_for_s: float = 600.0
    factor: float = 2.0
    cap_s: float = 86_400.0
    classes: frozenset[FailureClass] = frozenset(
        {
            FailureClass.SIGNAL,
            FailureClass.HANG,
            FailureClass.NODE_LOST,
            FailureClass.HEALTH_CHECK,
            FailureClass.START_UP,
        }
    )


@dataclass(frozen=True, slots=True)
class RuleBook:
    """The content of a file. `blame` `None` means that no node is left out, except by rules."""

    rules: tuple[Rule, ...] = ()
    otherwise: Literal["intensity", "fail"] = "intensity"
    blame: Blame | None = Blame()


BUDGET: Final = "max-restarts"
"""The built-in policy's name of restarts within the budget."""
RESERVED: Final = frozenset({BUDGET, "not-retryable", "fatal-exit-codes", "preempted", "straggler"})
"""Names of the built-in policy's rules, whose counters must not be used by others."""
