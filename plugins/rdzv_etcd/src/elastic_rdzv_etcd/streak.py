"""Who may say that a member is gone, on a server that does not tell the time."""

from typing import Final

_GAP: Final = 2 / 3
"""The share of a lease that nobody may be silent for: longer, and the silence was the server's."""


class Streak:
    """How long this client has been answered without a gap, by its own clock.

    A lease that ran out on the server is no proof that its holder is gone: the server may have stood still, and then
    everybody's ran out. A client that was answered all the time knows better: the server was there, so the holder was
    not. One that had a gap can't tell; it waits for one lease, in which the living make themselves heard again.

    Times are seconds of this host's monotonic clock. Threading: one thread at a time.
    """

    def __init__(self) -> None:
        """Begin as a client that was never answered."""
        self._since_s: float | None = None
        self._sent_s = 0.0

    def answered(self, *, sent_s: float, now_s: float, ttl_s: float) -> None:
        """Take note of an answer.

        Args:
            sent_s: When the request was sent.
            now_s: When its answer came.
            ttl_s: The run's lease.
        """
        # From the last request's sending on: when the server answered that one is not known more exactly.
        gap_s = now_s - self._sent_s
        if self._since_s is None or not 0 <= gap_s <= _GAP * ttl_s:
            self._since_s = now_s
        self._sent_s = sent_s

    def may_judge(self, *, now_s: float, ttl_s: float) -> bool:
        """Return whether a member whose lease is over is gone, and no victim of a pause."""
        if self._since_s is None or not 0 <= now_s - self._sent_s <= _GAP * ttl_s:
            return False
        return now_s - self._since_s >= ttl_s
