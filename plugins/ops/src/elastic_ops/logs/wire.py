"""The protocol between `elastic logs` and an agent on another host: a request for lines, and the lines."""

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
"""How long a reader waits for the agent's data before the first line."""
HANDLER: Final = "logs"
LONGEST_SENT: Final = 8 * LONGEST_LINE
"""The most bytes of a worker's line in JSON, if every byte is escaped."""
MOST_RANKS: Final = 100_000
"""The limit of bytes in one request."""
BATCH: Final = 1 << 16
"""The number of bytes of lines after which a batch is sent; its last line may be longer."""


class Wanted(Record, frozen=True, kw_only=True):
    """The requested lines. `ranks` as `0-7,12`, empty means all; `last` of each file, `None` means all.

    `reader`: the requesting user, for people.
    """

    reader: str = ""
    ranks: str = ""
    streams: tuple[str, ...] = ()
    last: int | None = None
    round_index: int | None = None
    follow: bool = False


class Over(Record, frozen=True, kw_only=True):
    """The end message: the ranks that were on the node, and those with output on their agent's console."""

    found: str = ""
    without_file: str = ""


class Sent(Record, frozen=True, kw_only=True, omit_defaults=True):
    """An agent's message: a line, ranks without a file, the end, or (none of them) a sign of life."""

    line: LogLine | None = None
    without_file: str = ""
    over: Over | None = None


def ask(
    connection: socket.socket, secret: str, incarnation: str, wanted: Wanted, *, clock: Clock = SYSTEM_CLOCK
) -> Batches:
    """Send a request. Return the batches of lines that follow, after the agent has proved that it is the intended one.

    Args:
        connection: A connection to the agent, which this function then owns.
        secret: The run's.
        incarnation: Of the intended agent, as in the store.
        wanted: The request.
        clock: Clock for the time limit.

    Raises:
        Refused: it is another agent, or rejects the request.
        OSError: it has ended, or does not respond in time.
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
    """Yield the messages, up to the end message. A silence of `silence_s` is an error.

    Raises:
        Refused: a message is malformed, or not from the agent.
        OSError: the agent has ended, or does not respond.
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
    """Return the ranks in a text such as `3,17` or `0-7,12`; none for an empty text.

    Raises:
        ValueError: it has another form.
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
    """Return ranks in the form of `ranks_of`."""
    return rank_ranges(sorted(ranks)).replace(" ", "")
