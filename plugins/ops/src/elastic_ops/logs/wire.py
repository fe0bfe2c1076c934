"""The protocol by which `elastic logs` reads the lines of another host's workers, and the proofs of both sides.

The agent sends a random text. The reader sends its request, with a random text of its own and its name, and a proof
over both lines. The agent returns its proof, then batches of lines, each with a code over its number and its content.

Every proof and code also covers the incarnation of the agent that the reader means, as the run's store has it: an agent
rejects a request for another one, so that no process in between can pass it on and put lines of its own in the place of
the agent's. Each purpose has a key of its own, derived from the run's secret, which is never sent.
"""

import hashlib
import hmac
import os
import socket
from collections.abc import Collection, Iterator
from typing import Final, TypeVar

from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, Clock, Record, decode_json, encode_json
from elastic_core.api.tools import rank_ranges
from elastic_ops.logs.follow import LogLine
from elastic_ops.logs.tail import LONGEST_LINE
from elastic_ops.proofs import purpose_key

HANDSHAKE_S: Final = 5.0
"""How long each side waits for all that the other says before the first line."""
LONGEST_REQUEST: Final = 1 << 16
"""Bytes of each line of the handshake."""
LONGEST_SENT: Final = 8 * LONGEST_LINE
"""Bytes of a worker's line in JSON, with every byte of it escaped."""
MOST_RANKS: Final = 100_000
"""In one request."""
BATCH: Final = 1 << 16
"""Bytes of lines after which a batch is sent; its last line may be longer."""
VERSION: Final = 2
_LONGEST_HEAD: Final = 128
_PIECE: Final = 1 << 16
_REQUEST, _ANSWER, _LINES = (b"elastic logs " + purpose for purpose in (b"request", b"answer", b"lines"))
"""The purposes of keys."""

_T = TypeVar("_T", bound=Record)


class Greeting(Record, frozen=True, kw_only=True):
    """The agent's first line."""

    v: int = VERSION
    nonce: str


class Wanted(Record, frozen=True, kw_only=True):
    """Which lines are wanted. `ranks` as `0-7,12`, empty: all; `last` of each file, None: all that there is.

    `reader`: who reads, for people.
    """

    nonce: str = ""
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
            self._receive(end_s - self._clock.monotonic_s())
        line = bytes(come[:end])
        del come[: end + 1]
        return line

    def take(self, count: int, silence_s: float) -> bytes:
        """Return so many bytes; each piece of them may take that long.

        Raises:
            OSError: the other side has gone, or is late.
        """
        while len(self._come) < count:
            self._receive(silence_s)
        taken = bytes(self._come[:count])
        del self._come[:count]
        return taken

    def _receive(self, left_s: float) -> None:
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        self._connection.settimeout(left_s)
        piece = self._connection.recv(_PIECE)
        if not piece:
            raise ConnectionError("the connection was closed")
        self._come += piece


class Session(Record, frozen=True, kw_only=True):
    """What the proofs of a connection cover, and the key that is derived for each purpose."""

    secret: str
    incarnation: str
    """The agent's that the reader means."""
    greeting: bytes
    request: bytes

    def proof(self, purpose: bytes) -> bytes:
        """Return the code of one side, in hexadecimal."""
        return hmac.new(self.key(purpose), self._covered(), hashlib.sha256).hexdigest().encode()

    def key(self, purpose: bytes) -> bytes:
        """Return the key of a purpose."""
        return purpose_key(self.secret, purpose)

    def check(self, proof: bytes, purpose: bytes) -> None:
        """Reject the other side's proof unless it knows the secret and means this agent.

        Raises:
            Refused: it does not.
        """
        known = bool(self.secret and self.incarnation)
        if not known or not hmac.compare_digest(proof, self.proof(purpose)):
            raise Refused("it does not know the run's secret, or is not the agent that is meant")

    def batches(self) -> "BatchCodes":
        """Return the codes of the batches that follow."""
        return BatchCodes(hmac.digest(self.key(_LINES), self._covered(), "sha256"))

    def _covered(self) -> bytes:
        """Return all that was agreed, in a form that only these parts have: a line has no line end in it."""
        return b"\n".join((self.greeting, self.request, self.incarnation.encode()))


class BatchCodes:
    """The codes of a connection's batches, in their order. Threading: one thread.

    Args:
        key: The connection's own.
    """

    def __init__(self, key: bytes) -> None:
        """Begin with the first batch."""
        self._key, self._number = key, 0

    def next(self, batch: bytes) -> bytes:
        """Return the code of the next batch, in hexadecimal."""
        self._number += 1
        numbered = self._number.to_bytes(8, "big") + batch
        return hmac.new(self._key, numbered, hashlib.sha256).hexdigest().encode()

    def sealed(self, batch: bytes) -> bytes:
        """Return a batch as it is sent: a line with its code and its length, then the batch."""
        return b"%s %d\n%s" % (self.next(batch), len(batch), batch)


class Answer:
    """What an agent sends to a reader after both have proved who they are. Threading: one thread."""

    def __init__(self, lines: Lines, codes: BatchCodes, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Read nothing yet."""
        self._lines, self._codes, self._clock = lines, codes, clock

    def sent(self, *, silence_s: float) -> Iterator[Sent]:
        """Yield what comes, up to the last word; so long a silence is an end, too.

        Raises:
            Refused: it can't be understood, or is not the agent's.
            OSError: the agent has gone, or is silent.
        """
        while True:
            for raw in self._batch(silence_s).removesuffix(b"\n").split(b"\n"):
                one = _decoded(raw, Sent)
                yield one
                if one.over is not None:
                    return

    def _batch(self, silence_s: float) -> bytes:
        head = self._lines.read(_LONGEST_HEAD, self._clock.monotonic_s() + silence_s)
        code, _, length = head.partition(b" ")
        if not length.isdigit() or int(length) > BATCH + LONGEST_SENT:
            raise Refused("it says what is not understood")
        batch = self._lines.take(int(length), silence_s)
        if not hmac.compare_digest(code, self._codes.next(batch)):
            raise Refused("lines came that are not the agent's")
        return batch


def welcome(
    connection: socket.socket, secret: str, incarnation: str, *, clock: Clock = SYSTEM_CLOCK
) -> tuple[Wanted, BatchCodes]:
    """Return what a reader wants, and the codes of the batches for it, once both have proved who they are.

    Args:
        connection: The reader's.
        secret: The run's.
        incarnation: This agent's, as the store has it.
        clock: By which the reader is late.

    Raises:
        Refused: it does not know the secret, or means another agent.
        OSError: it has gone, or is late.
    """
    greeting = encode_json(Greeting(nonce=os.urandom(16).hex()))
    connection.settimeout(HANDSHAKE_S)
    connection.sendall(greeting + b"\n")
    lines, end_s = Lines(connection, clock=clock), clock.monotonic_s() + HANDSHAKE_S
    request, proof = lines.read(LONGEST_REQUEST, end_s), lines.read(LONGEST_REQUEST, end_s)
    session = Session(secret=secret, incarnation=incarnation, greeting=greeting, request=request)
    session.check(proof, _REQUEST)
    wanted = _decoded(request, Wanted)
    connection.sendall(session.proof(_ANSWER) + b"\n")
    return wanted, session.batches()


def ask(
    connection: socket.socket, secret: str, incarnation: str, wanted: Wanted, *, clock: Clock = SYSTEM_CLOCK
) -> Answer:
    """Send a request, and return the answer that follows; the agent has proved that it is the one that is meant.

    Args:
        connection: The agent's.
        secret: The run's.
        incarnation: Of the agent that is meant, as the store has it.
        wanted: The request.
        clock: By which the agent is late.

    Raises:
        Refused: it is not, or rejects the request.
        OSError: it has gone, or is late.
    """
    lines, end_s = Lines(connection, clock=clock), clock.monotonic_s() + HANDSHAKE_S
    greeting = lines.read(LONGEST_REQUEST, end_s)
    if _decoded(greeting, Greeting).v != VERSION:
        raise Refused("it speaks another version")
    request = encode_json(replace(wanted, nonce=os.urandom(16).hex()))
    session = Session(secret=secret, incarnation=incarnation, greeting=greeting, request=request)
    connection.sendall(request + b"\n" + session.proof(_REQUEST) + b"\n")
    session.check(lines.read(LONGEST_REQUEST, end_s), _ANSWER)
    return Answer(lines, session.batches(), clock=clock)


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


def _decoded(raw: bytes, kind: type[_T]) -> _T:
    try:
        return decode_json(raw, kind)
    except ValueError as err:  # of msgspec's, too
        raise Refused("it says what is not understood") from err
