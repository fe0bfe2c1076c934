"""Shared parts of all kits: the rule for overriding, declarations, and calls that must end in time."""

import math
import os
import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Final, Generic, TypeVar

from elastic_core.api import API_VERSION, SYSTEM_CLOCK, OptionSpec, WaitBudget

T = TypeVar("T")

_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "duration": (int, float),
}
_OPTION_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


class Kit:
    """Base of all kits."""

    page: ClassVar[str] = "conformance.md"
    """The page with the rules of the interface, in `docs/plugin_authors`; the report of a failed test names it."""

    def __init_subclass__(cls) -> None:
        """Refuse to let a test of a kit be overridden in silence."""
        super().__init_subclass__()
        for name, value in vars(cls).items():
            if name.startswith("test_") and any(name in vars(base) for base in cls.__mro__[1:]):
                marks = getattr(value, "pytestmark", [])
                if not any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks):
                    raise TypeError(
                        f"{cls.__name__}.{name} overrides a test of the kit: mark it with "
                        "pytest.mark.xfail(reason=...), or give it another name"
                    )


def check_api_version(cls: type) -> None:
    """Fail unless a plugin class states, itself, the version of the interfaces that it was written for."""
    stated = vars(cls).get("api_version")
    assert stated is not None, (
        f"{cls.__name__} has no `api_version` of its own; expected {API_VERSION} (an inherited one does not count)"
    )
    served = type(stated) is int and stated == API_VERSION
    assert served, f"{cls.__name__} has api_version {stated!r}; expected {API_VERSION}"


def check_options(owner: str, options: Sequence[OptionSpec]) -> None:
    """Fail unless options are declared so that the core can report wrong values."""
    names = [spec.name for spec in options]
    assert len(names) == len(set(names)), f"{owner} declares an option twice; expected different names: {sorted(names)}"
    for spec in options:
        what = f"option {spec.name!r} of {owner}"
        assert _OPTION_NAME.fullmatch(spec.name), (
            f"{what}: expected a name of lower-case letters, digits and underscores"
        )
        assert spec.type in _TYPES, f"{what} has type {spec.type!r}; expected one of {sorted(_TYPES)}"
        assert spec.help, f"{what} has no `help`; expected a short text"
        if spec.default is not None:
            assert not spec.required, f"{what} is required and has a default; expected one of both"
            kind = str if spec.many else _TYPES[spec.type]  # a list's is as users type it
            fits = isinstance(spec.default, kind) and isinstance(spec.default, bool) == (
                spec.type == "bool" and not spec.many
            )
            assert fits, f"{what} has the default {spec.default!r}; expected a value of type {spec.type}"
            assert not isinstance(spec.default, float) or not math.isnan(spec.default), (
                f"{what} has the default NaN; expected a number"
            )


class Ended(Generic[T]):
    """How a call ended: its result or what it raised, and how long it took."""

    def __init__(self) -> None:
        self.result: T | None = None
        self.error: BaseException | None = None
        self.took_s = 0.0

    def value(self) -> T:
        """Return the result, or raise what was raised."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # set, since nothing was raised; may be None by right


MOST_CROWDED: Final = 3.0
"""So many times longer is waited at the most: what takes longer on the busiest machine does not end soon."""
CANCEL_S: Final = 0.2
"""Within this long a cancelled call ends, on a machine that has nothing else to do."""


def crowding() -> float:
    """Return how many want each processor of this machine, at least 1, within reason: what is soon is later then."""
    return min(MOST_CROWDED, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def late_s(seconds: float) -> float:
    """Return how much later than promised a call may end here, where that is so long on an idle machine."""
    return seconds * crowding()


def cancel_s() -> float:
    """Return within how long a cancelled call ends here: 100 ms are promised, the rest is the machine's."""
    return late_s(CANCEL_S)


class Started(Generic[T]):
    """A call on a thread of its own, so that one which never ends fails a test instead of hanging it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._ended: Ended[T] = Ended()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begun_s = SYSTEM_CLOCK.monotonic_s()
        try:
            self._ended.result = self._work()
        except Exception as err:  # noqa: BLE001  # any error of the plugin's is for the test's own thread
            self._ended.error = err
        self._ended.took_s = SYSTEM_CLOCK.monotonic_s() - begun_s

    @property
    def running(self) -> bool:
        """Whether the call has not ended yet."""
        return self._thread.is_alive()

    def ended(self, *, within_s: float, what: str) -> Ended[T]:
        """Wait for the call's end; fail where it does not come in time."""
        self._thread.join(within_s)
        assert not self._thread.is_alive(), f"{what}: still running after {within_s:g} s; expected it to end"
        return self._ended


_HUNG: Final[dict[tuple[type, str], str]] = {}
"""Calls of plugins that have not come back, by class and method: no other test waits for the same one again."""


def in_time(plugin: object, method: str, work: Callable[[], T], *, within_s: float, what: str = "") -> T:
    """Return what a call of a plugin's method returns; fail where it has not returned in time, now or before.

    Args:
        plugin: The object with the method.
        method: Its name.
        work: Makes the call.
        within_s: How long an agent waits for it.
        what: What the call was about.
    """
    cls = type(plugin)
    called = f"{method} of {cls.__name__}" + (f", {what}," if what else "")
    before = _HUNG.get((cls, method))
    assert before is None, f"{before} (in an earlier test)"
    call = Started(work)
    try:
        return call.ended(within_s=within_s, what=called).value()
    except AssertionError:
        if call.running:
            _HUNG[cls, method] = f"{called} has not returned within {within_s:g} s; expected it to return"
            raise AssertionError(_HUNG[cls, method]) from None
        raise


def settle(seconds: float = 0.1) -> None:
    """Let a thread come to where it blocks. Never needed for a test to be right, only for it to be sharp."""
    WaitBudget().sleep(seconds)


def all_at_once(works: Sequence[Callable[[], T]], *, within_s: float, what: str) -> list[T]:
    """Run calls on threads that begin together; return their results in order."""
    gate = threading.Barrier(len(works))

    def behind_the_gate(work: Callable[[], T]) -> T:
        gate.wait(within_s)
        return work()

    started = [Started(partial(behind_the_gate, work)) for work in works]
    return [call.ended(within_s=within_s, what=what).value() for call in started]
