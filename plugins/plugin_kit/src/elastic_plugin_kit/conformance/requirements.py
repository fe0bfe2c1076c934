"""What a store can't do of what some tests of the kit need, each with the reason."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Why tests of the store kit can't be run against a store: what has a reason here skips them, with that reason.

    Empty: the store can. Declare no more than what is so by the store's nature; what it should do and does not is an
    `xfail` with a reason.
    """

    pause: str = ""
    """Its server can't be made to stand still: there is no `pause_server`."""
    paused_reads_wait: str = ""
    """Reads are served while the server stands still, from a snapshot or a replica; its writes wait."""
    empty: str = ""
    """Its content can't be lost: there is no `empty_server`."""
    nowhere: str = ""
    """There is no endpoint at which nobody listens: there is no `connect_nowhere`."""
