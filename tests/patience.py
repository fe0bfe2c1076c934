"""Time limits of tests, on a machine that may have other work to do.

Two kinds. Most limits catch a hang: they are generous, nobody minds how long a good test takes, and `patience` makes
them longer where the machine is slow. Some stand for a promise of the product, as "told to stop, every wait ends within
1 s": a constant that names the promise, checked by `kept` or `promised`. The product keeps it where the kernel gives it
a turn, so that limit, too, is exact on an idle machine. It grows with what the start of a bare process takes here, and
with how many processes want each core: the kernel favours what is short, so a start alone says too little of the rest.
In CI only what would be a hang is too late: its machines have neighbours that come and go.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

BARE_START_S = 0.02
"""What the start and the end of a bare interpreter take on an idle core of an ordinary machine, at most."""

MOST = 10.0
"""However slow the machine: who waits longer than this many times a limit waits for something that never comes."""

CI_FACTOR, CI_LEAST_S = 10.0, 20.0
"""What is added to promises in CI: so late is only what hangs, or waits for the wrong thing."""

_NOTE = "TESTS_SLOWNESS"
"""The variable by which processes that run tests inherit what the first of them has measured."""


def slowness(*, now: bool = False) -> float:
    """Return how many times slower than an idle one this machine is, at least 1: the worst that was measured so far.

    Args:
        now: Measure again, which takes five starts of an interpreter. Else that is done once.
    """
    known = os.environ.get(_NOTE)
    if now or known is None:
        starts = statistics.median(_start_s() for _ in range(5)) / BARE_START_S
        load = os.getloadavg()[0] / (os.cpu_count() or 1)  # of the last minute: of the test itself, too
        known = f"{min(MOST, max(1.0, starts, load, float(known or 1))):.2f}"
        os.environ[_NOTE] = known
    return float(known)


def expect(side_by_side: int) -> None:
    """Count on so many tests that run at once, before they do: the first of them measure an idle machine."""
    most = min(MOST, max(slowness(), side_by_side / (os.cpu_count() or 1)))
    os.environ[_NOTE] = f"{most:.2f}"


def patience(limit_s: float) -> float:
    """Return how long to wait on this machine for what takes less than `limit_s` on an idle one."""
    return limit_s * slowness()


class Deadline:
    """When to give up waiting for what takes less than `limit_s` on an idle machine."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self._began_s = limit_s, time.monotonic()
        self._end_s = self._began_s + patience(limit_s)

    def passed(self) -> bool:
        """Return whether it is over; before it is, the machine is measured again."""
        if time.monotonic() > self._end_s:
            self._end_s = self._began_s + self._limit_s * slowness(now=True)
        return time.monotonic() > self._end_s


def kept(took_s: float, limit_s: float) -> None:
    """Check that something took no longer than the product promises, as far as this machine lets it."""
    if took_s <= limit_s:
        return
    most_s = limit_s * slowness(now=True)
    if os.environ.get("CI"):
        most_s = max(most_s, limit_s * CI_FACTOR, CI_LEAST_S)
    times = f"{slowness():.1f} times as slow as an idle one"
    assert took_s <= most_s, f"took {took_s:.2f} s; promised are {limit_s:g} s, here {most_s:.2f} s ({times})"


@contextmanager
def promised(limit_s: float) -> Iterator[None]:
    """Check that the block takes no longer than the product promises, as far as this machine lets it."""
    began_s = time.monotonic()
    yield
    kept(time.monotonic() - began_s, limit_s)


def _start_s() -> float:
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True, stdin=subprocess.DEVNULL)
    return time.monotonic() - began_s
