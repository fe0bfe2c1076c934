"""Values that are read at intervals: calls to the rendezvous store, and workers' heartbeats."""

import threading
from collections.abc import Mapping

from elastic_core.api import Record, decode_json
from elastic_core.api.feed import Offer


class CallCount(Record, frozen=True, kw_only=True):
    """Calls of one kind since the last read: number of successes, their total seconds, and number of failures."""

    answered: int = 0
    took_s: float = 0.0
    failed: int = 0


class StoreMeter:
    """Counts the calls to the store. Threading: any."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._counts: dict[str, CallCount] = {}

    def add(self, call: str, took_s: float, *, failed: bool) -> None:
        """Count a completed call."""
        with self._lock:
            before = self._counts.get(call, CallCount())
            self._counts[call] = CallCount(
                answered=before.answered + (not failed),
                took_s=before.took_s + (0.0 if failed else took_s),
                failed=before.failed + failed,
            )

    def take(self) -> dict[str, CallCount]:
        """Return the counts since the last call, by the calls' names."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts


class Beat(Record, frozen=True, kw_only=True):
    """A worker's last heartbeat: its age in seconds (`None` before the first), and its step."""

    age_s: float | None
    step: int | None


class _Beats(Record, frozen=True, kw_only=True):
    workers: Mapping[int, Beat] = {}


def last_beats(offers: Mapping[str, Offer]) -> dict[int, Beat]:
    """Return the last heartbeats of the workers, by local rank.

    Args:
        offers: The offers of hooks; `heartbeats` is elastic-watch's.
    """
    offer = offers.get("heartbeats")
    if offer is None:
        return {}
    try:
        return dict(decode_json(offer({}).content, _Beats).workers)
    except ValueError:  # another version's
        return {}
