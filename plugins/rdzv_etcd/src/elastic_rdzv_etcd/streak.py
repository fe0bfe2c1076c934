"""The judgement that a member is gone, with a server that does not publish its clock."""

from typing import Final

_GAP: Final = 2 / 3
"""The part of a lease above which a common silence is the server's."""


class Streak:
    """For how long this client has got responses without a gap, by its own clock.

    An expired lease does not prove that its holder is gone: the server may have paused, and then all leases expired. A
    client with responses all the time knows that the server ran, so the holder was silent. A client with a gap can't
    know; it waits for one lease, in which live members renew theirs.

    Times are seconds of this host's monotonic clock. Threading: one thread at a time.
    """

    def __init__(self) -> None:
        """Begin without any response."""
        self._since_s: float | None = None
        self._sent_s = 0.0

    def answered(self, *, sent_s: float, now_s: float, ttl_s: float) -> None:
        """Note a response.

        Args:
            sent_s: When the request was sent.
            now_s: When its response arrived.
            ttl_s: The run's lease.
        """
        # From the last request's sending on: when the server answered that one is not known more exactly.
        gap_s = now_s - self._sent_s
        if self._since_s is None or not 0 <= gap_s <= _GAP * ttl_s:
            self._since_s = now_s
        self._sent_s = sent_s

    def may_judge(self, *, now_s: float, ttl_s: float) -> bool:
        """Return whether a member with an expired lease is gone, and not a victim of a pause."""
        if self._since_s is None or not 0 <= now_s - self._sent_s <= _GAP * ttl_s:
            return False
        return now_s - self._since_s >= ttl_s
