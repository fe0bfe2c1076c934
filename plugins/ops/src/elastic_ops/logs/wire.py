"""How logs are asked for over the network: the words, and how both sides prove that they know the run's secret.

One line of JSON each: the agent greets with a random text, whoever asks says what it wants, with another, and a proof
over both; the agent answers with a proof of its own, and lines of workers follow. The secret itself is never sent.
"""

import hashlib
import hmac
import os
import socket
from collections.abc import Collection, Iterator
from typing import Final, TypeVar

from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, Clock, Record, decode_json, encode_json, rank_ranges
from elastic_ops.logs.follow import LogLine
from elastic_ops.logs.tail import LONGEST_LINE

HANDSHAKE_S: Final = 5.0
"""How long each side waits for all that the other says before the first line."""
LONGEST_REQUEST: Final = 1 << 16
"""Bytes of each line of the handshake."""
LONGEST_SENT: Final = 8 * LONGEST_LINE
"""Bytes of a worker's line in JSON, with every byte of it escaped."""
MOST_RANKS: Final = 100_000
"""In one request."""
_PIECE: Final = 1 << 16
_ASKS, _ANSWERS = b"asks", b"answers"

_T = TypeVar("_T", bound=Record)


class Greeting(Record, frozen=True, kw_only=True):
    """The agent's first word."""

    v: int = 1
    nonce: str


class Wanted(Record, frozen=True, kw_only=True):
    """Which lines are wanted. `ranks` as `0-7,12`, empty: all; `last` of each file, None: all that there is."""

    nonce: str = ""
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
    """What an agent sends: a line, its last word, or (neither) that it is there."""

    line: LogLine | None = None
    over: Over | None = None


class Refused(Exception):
    """The other side has not proved that it knows the secret, or says what can't be understood."""


class Lines:
    """Lines of a connection, with bounds on length and time. Threading: one thread."""

    def __init__(self, connection: socket.socket, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Read nothing yet."""
        self._connection, self._clock = connection, clock
        self._come = bytearray()

    def read(self, longest: int, end_s: float) -> bytes:
        """Return the next line, without its end.

        Raises:
            Refused: it is too long.
            OSError: the other side has gone, or is late.
        """
        come, searched = self._come, 0
        while (end := come.find(b"\n", searched)) < 0:
            searched = len(come)
            if searched > longest:
                raise Refused(f"a line of more than {longest} bytes")
            left_s = end_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise TimeoutError("no answer in time")
            self._connection.settimeout(left_s)
            piece = self._connection.recv(_PIECE)
            if not piece:
                raise ConnectionError("the connection was closed")
            come += piece
        line = bytes(come[:end])
        del come[: end + 1]
        return line


def welcome(connection: socket.socket, secret: str, *, clock: Clock = SYSTEM_CLOCK) -> Wanted:
    """Return what whoever has connected wants, once both have proved who they are.

    Raises:
        Refused: it does not know the secret.
        OSError: it has gone, or is late.
    """
    greeting = encode_json(Greeting(nonce=os.urandom(16).hex()))
    connection.settimeout(HANDSHAKE_S)
    connection.sendall(greeting + b"\n")
    lines, end_s = Lines(connection, clock=clock), clock.monotonic_s() + HANDSHAKE_S
    asked, proof = lines.read(LONGEST_REQUEST, end_s), lines.read(LONGEST_REQUEST, end_s)
    _check(proof, secret, _ASKS, greeting, asked)
    wanted = _decoded(asked, Wanted)
    connection.sendall(_proof(secret, _ANSWERS, greeting, asked) + b"\n")
    return wanted


def ask(connection: socket.socket, secret: str, wanted: Wanted, *, clock: Clock = SYSTEM_CLOCK) -> Lines:
    """Say what is wanted, and return the lines that follow; whoever answers has proved that it is of the run.

    Raises:
        Refused: it is not, or does not take us for one who may ask.
        OSError: it has gone, or is late.
    """
    lines, end_s = Lines(connection, clock=clock), clock.monotonic_s() + HANDSHAKE_S
    greeting = lines.read(LONGEST_REQUEST, end_s)
    if _decoded(greeting, Greeting).v != Greeting(nonce="").v:
        raise Refused("it speaks another version")
    asked = encode_json(replace(wanted, nonce=os.urandom(16).hex()))
    connection.sendall(asked + b"\n" + _proof(secret, _ASKS, greeting, asked) + b"\n")
    _check(lines.read(LONGEST_REQUEST, end_s), secret, _ANSWERS, greeting, asked)
    return lines


def sent(lines: Lines, *, silence_s: float, clock: Clock = SYSTEM_CLOCK) -> Iterator[Sent]:
    """Yield what comes, up to the last word; so long a silence is an end, too.

    Raises:
        Refused: it can't be understood.
        OSError: the agent has gone, or is silent.
    """
    while True:
        one = _decoded(lines.read(LONGEST_SENT, clock.monotonic_s() + silence_s), Sent)
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
            raise ValueError(f"{part.strip()!r} is no rank: needed are some, as 3,17 or 0-7")
        low, high = int(first), int(last or first)
        if high < low or high - low >= MOST_RANKS:
            raise ValueError(f"{part.strip()!r} is no range of ranks")
        found |= set(range(low, high + 1))
        if len(found) > MOST_RANKS:
            raise ValueError(f"more than {MOST_RANKS} ranks")
    return frozenset(found)


def text_of(ranks: Collection[int]) -> str:
    """Return ranks as `ranks_of` reads them."""
    return rank_ranges(sorted(ranks)).replace(" ", "")


def _proof(secret: str, side: bytes, greeting: bytes, asked: bytes) -> bytes:
    return hmac.new(secret.encode(), b"\0".join((b"logs", side, greeting, asked)), hashlib.sha256).hexdigest().encode()


def _check(proof: bytes, secret: str, side: bytes, greeting: bytes, asked: bytes) -> None:
    if not secret or not hmac.compare_digest(proof, _proof(secret, side, greeting, asked)):
        raise Refused("it does not know the run's secret")


def _decoded(raw: bytes, kind: type[_T]) -> _T:
    try:
        return decode_json(raw, kind)
    except ValueError as err:  # of msgspec's, too
        raise Refused("it says what is not understood") from err
