"""What `elastic logs` and an agent on another host send each other: a request for lines, and the lines."""

import socket
from collections.abc import Collection, Iterator
from typing import Final

from elastic_core.api import SYSTEM_CLOCK, Clock, Record, decode_json, encode_json
from elastic_core.api.tools import rank_ranges
from elastic_ops.control_plane.handlers import HANDLER_PATH
from elastic_ops.control_plane.proved import Batches, Refused, post
from elastic_ops.logs.follow import LogLine
from elastic_ops.logs.tail import LONGEST_LINE

HANDSHAKE_S: Final = 5.0
"""How long a reader waits for all that the agent sends before the first line."""
HANDLER: Final = "logs"
LONGEST_SENT: Final = 8 * LONGEST_LINE
"""Bytes of a worker's line in JSON, with every byte of it escaped."""
MOST_RANKS: Final = 100_000
"""In one request."""
BATCH: Final = 1 << 16
"""Bytes of lines after which a batch is sent; its last line may be longer."""


class Wanted(Record, frozen=True, kw_only=True):
    """Which lines are wanted. `ranks` as `0-7,12`, empty: all; `last` of each file, None: all that there is.

    `reader`: who reads, for people.
    """

    reader: str = ""
    ranks: str = ""
    streams: tuple[str, ...] = ()
    last: int | None = None
    round_index: int | None = None
    follow: bool = False


class Over(Record, frozen=True, kw_only=True):
    """There is no more; the ranks that were on the node, and those whose output goes to its agent's console."""

    found: str = ""
    without_file: str = ""


class Sent(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent sends: a line, ranks without a file, its last word, or (none of them) that it is there."""

    line: LogLine | None = None
    without_file: str = ""
    over: Over | None = None


def ask(
    connection: socket.socket, secret: str, incarnation: str, wanted: Wanted, *, clock: Clock = SYSTEM_CLOCK
) -> Batches:
    """Send a request, and return the batches of lines that follow: the agent has proved that it is the one meant.

    Args:
        connection: To the agent; it is used up.
        secret: The run's.
        incarnation: Of the agent that is meant, as the store has it.
        wanted: The request.
        clock: By which the agent is late.

    Raises:
        Refused: it is not, or rejects the request.
        OSError: it has gone, or is late.
    """
    return post(
        connection,
        f"{HANDLER_PATH}{HANDLER}",
        encode_json(wanted),
        secret=secret,
        incarnation=incarnation,
        within_s=HANDSHAKE_S,
        longest=BATCH + LONGEST_SENT,
        clock=clock,
    )


def sent(batches: Batches, *, silence_s: float) -> Iterator[Sent]:
    """Yield what comes, up to the last word; so long a silence is an end, too.

    Raises:
        Refused: it can't be understood, or is not the agent's.
        OSError: the agent has gone, or is silent.
    """
    while True:
        for raw in batches.next(silence_s=silence_s).removesuffix(b"\n").split(b"\n"):
            try:
                one = decode_json(raw, Sent)
            except ValueError as err:  # of msgspec's, too
                raise Refused("it says what is not understood") from err
            yield one
            if one.over is not None:
                return


def ranks_of(text: str) -> frozenset[int]:
    """Return the ranks of a text such as `3,17` or `0-7,12`; none of an empty one.

    Raises:
        ValueError: it is no such text.
    """
    found: set[int] = set()
    for part in text.split(",") if text else ():
        first, dash, last = (each.strip() for each in part.partition("-"))
        if not (first.isdecimal() and (last.isdecimal() if dash else not last)):
            raise ValueError(f"{part.strip()!r}; expected ranks such as 3,17 or 0-7")
        low, high = int(first), int(last or first)
        if high < low or high - low >= MOST_RANKS:
            raise ValueError(f"{part.strip()!r}; expected a range of ranks such as 0-7")
        found |= set(range(low, high + 1))
        if len(found) > MOST_RANKS:
            raise ValueError(f"more than {MOST_RANKS} ranks")
    return frozenset(found)


def text_of(ranks: Collection[int]) -> str:
    """Return ranks as `ranks_of` reads them."""
    return rank_ranges(sorted(ranks)).replace(" ", "")
