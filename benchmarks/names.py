"""Whether names of addresses are found at once on this machine: the server of torch's store looks each client's up."""

import socket
import time
from contextlib import suppress
from typing import Final

LOOKUPS: Final = 100
LONG_S: Final = 0.2
_CLIENT: Final = ("::ffff:127.0.0.1", 1, 0, 0)
"""A client of this machine, as the server sees it."""


def longest_lookup_s() -> float:
    """Return the time of the longest of some look-ups. The first one that is too long is the last."""
    longest_s = 0.0
    for _ in range(LOOKUPS):
        began_s = time.monotonic()
        with suppress(OSError):  # no answer at all, after the resolver's own limits, or no IPv6
            socket.getnameinfo(_CLIENT, socket.NI_NUMERICSERV)
        longest_s = max(longest_s, time.monotonic() - began_s)
        if longest_s > LONG_S:
            break
    return longest_s


def warning(longest_s: float) -> str:
    """Return a line about look-ups that are too long; empty if none is."""
    if longest_s <= LONG_S:
        return ""
    return (
        f"the name server took {longest_s:.1f} s for an address: starts and restarts of workers with torch take as "
        "much longer at times (docs/howto/troubleshooting.md, 'A start takes five seconds longer')"
    )
