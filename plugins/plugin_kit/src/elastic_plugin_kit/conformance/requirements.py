"""Capabilities that some tests of the store kit need, and why a store lacks them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Why tests of the store kit can't run against a store: a reason here skips them.

    An empty text means that the store can. Declare only limits by the store's nature; a defect of the store is an
    `xfail` with a reason.
    """

    pause: str = ""
    """Its server can't be paused: there is no `pause_server`."""
    paused_reads_wait: str = ""
    """Reads succeed while the server is paused, from a snapshot or a replica; only writes wait."""
    empty: str = ""
    """Its content can't be lost: there is no `empty_server`."""
    nowhere: str = ""
    """There is no endpoint without a server: there is no `connect_nowhere`."""
