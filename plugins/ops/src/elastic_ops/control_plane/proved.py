"""Requests and responses with a proof that the sender knows the run's secret.

The server rejects a first request with status 401 and a random text, a nonce. On the same connection the client repeats
the request with its own nonce and a proof over both nonces, the request, and the incarnation of the intended agent, as
the run's store has it. The server returns its own proof of these, then batches, each with a code over its number and
content.

A server's nonce is valid for one request on one connection. An agent rejects a request for another agent, so that a
process in between can't forward it and replace the response. Each purpose has its own key, derived from the run's
secret, which is never sent.
"""

import hashlib
import hmac
import os
import socket
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Final

from elastic_core.api import SYSTEM_CLOCK, Clock, Record
from elastic_ops.control_plane.timed import TimedSocket
from elastic_ops.proofs import purpose_key

SCHEME: Final = "Elastic-Proof"
"""Scheme of the headers `WWW-Authenticate` (the server's nonce) and `Authorization` (the client's nonce and proof)."""
ANSWER_HEADER: Final = "Elastic-Proof"
"""The header with the server's proof."""
LONGEST_REQUEST: Final = 1 << 17
"""Limit in bytes of a client's data, and of a server's data before the first batch."""
_LONGEST_HEAD: Final = 128
REQUEST, ANSWER, BATCHES = (b"elastic http " + purpose for purpose in (b"request", b"answer", b"batches"))
"""The purposes of keys."""


class Refused(Exception):
    """The other side has not proved that it knows the secret, or its data are malformed."""


class Session(Record, frozen=True, kw_only=True):
    """The data that the proofs of a connection cover, and the keys for each purpose."""

    secret: str
    incarnation: str
    """The incarnation of the intended agent."""
    nonce: str
    """The server's nonce."""
    client_nonce: str
    path: str
    body: bytes

    def proof(self, purpose: bytes) -> str:
        """Return the code of one side, in hexadecimal."""
        return hmac.new(self.key(purpose), self._covered(), hashlib.sha256).hexdigest()

    def header(self) -> str:
        """Return the request's `Authorization` header."""
        return f"{SCHEME} {self.client_nonce} {self.proof(REQUEST)}"

    def key(self, purpose: bytes) -> bytes:
        """Return the key of a purpose."""
        return purpose_key(self.secret, purpose)

    def check(self, proof: str, purpose: bytes) -> None:
        """Check the other side's proof that it knows the secret and means this agent.

        Raises:
            Refused: the proof is wrong.
        """
        known = bool(self.secret and self.incarnation and self.nonce)
        if not known or not hmac.compare_digest(proof.encode(), self.proof(purpose).encode()):
            raise Refused("it does not know the run's secret, or is not the agent that is meant")

    def batches(self) -> "BatchCodes":
        """Return the codes of the batches that follow."""
        return BatchCodes(hmac.digest(self.key(BATCHES), self._covered(), "sha256"))

    def _covered(self) -> bytes:
        """Return all agreed values in an unambiguous form: only the body may have line ends."""
        return "\n".join((self.nonce, self.client_nonce, self.path, self.incarnation, "")).encode() + self.body


class BatchCodes:
    """The codes of a connection's batches, in their order. Threading: one thread.

    Args:
        key: The connection's own key.
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
        """Return a batch in the form for sending: a line with its code and its length, then the batch."""
        return b"%s %d\n%s" % (self.next(batch), len(batch), batch)


def new_nonce() -> str:
    """Return a nonce."""
    return os.urandom(16).hex()


def words_of(header: str | None) -> tuple[str, str]:
    """Return a header's nonce and proof after `SCHEME`; empty texts if they are missing."""
    scheme, nonce, proof, *_ = (*(header or "").split(), "", "", "")
    return (nonce, proof) if scheme == SCHEME else ("", "")


class Batches:
    """The server's batches after both sides have proved that they know the secret. Threading: one thread."""

    def __init__(self, connection: TimedSocket, answer: HTTPResponse, codes: BatchCodes, *, longest: int) -> None:
        """Read nothing yet."""
        self._connection, self._answer, self._codes, self._longest = connection, answer, codes, longest

    def next(self, *, silence_s: float) -> bytes:
        """Return the next batch. `silence_s` limits the time for each piece of it.

        Raises:
            Refused: it is malformed, or not from the agent.
            OSError: the agent has ended, or does not respond.
        """
        self._allow(silence_s)
        head = self._answer.readline(_LONGEST_HEAD)
        if not head:
            raise ConnectionError("the connection was closed")
        code, _, length = head.removesuffix(b"\n").partition(b" ")
        if not length.isdigit() or int(length) > self._longest:
            raise Refused("it says what is not understood")
        batch = bytearray()
        while len(batch) < int(length):
            self._allow(silence_s)
            piece = self._answer.read1(int(length) - len(batch))
            if not piece:
                raise ConnectionError("the connection was closed")
            batch += piece
        if not hmac.compare_digest(code, self._codes.next(bytes(batch))):
            raise Refused("a batch came that is not the agent's")
        return bytes(batch)

    def _allow(self, silence_s: float) -> None:
        self._connection.end_s = self._connection.clock.monotonic_s() + silence_s

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._answer.close()
        self._connection.close()


def post(
    connection: socket.socket,
    path: str,
    body: bytes,
    *,
    secret: str,
    incarnation: str,
    within_s: float,
    longest: int,
    clock: Clock = SYSTEM_CLOCK,
) -> Batches:
    """Send a request, and return the batches that follow, after the server has proved that it is the intended agent.

    Args:
        connection: A connection to the agent, which this function then owns.
        path: Path of the handler.
        body: The request's.
        secret: The run's.
        incarnation: Of the intended agent, as in the store.
        within_s: Time limit until the server's proof has arrived.
        longest: Limit of a batch in bytes.
        clock: Clock for the time limit.

    Raises:
        Refused: it is another agent, or rejects the request.
        OSError: it has ended, or does not respond in time.
    """
    timed = TimedSocket.of(connection)
    timed.clock, timed.send_s, timed.bytes_left = clock, within_s, LONGEST_REQUEST
    timed.end_s = clock.monotonic_s() + within_s
    client = HTTPConnection("agent")
    client.sock, client.auto_open = timed, 0
    try:
        client.request("POST", path)
        with client.getresponse() as challenge:
            nonce, _ = words_of(challenge.headers.get("WWW-Authenticate"))
            if challenge.status != HTTPStatus.UNAUTHORIZED or not nonce:
                raise Refused("it is no agent")
            challenge.read()
        session = Session(
            secret=secret, incarnation=incarnation, nonce=nonce, client_nonce=new_nonce(), path=path, body=body
        )
        client.request("POST", path, body, {"Authorization": session.header()})
        answer = client.getresponse()
        session.check(answer.headers.get(ANSWER_HEADER, ""), ANSWER)
    except BaseException as err:
        client.close()
        timed.close()
        if isinstance(err, HTTPException) and not isinstance(err, OSError):
            raise Refused("it says what is not understood") from err
        raise
    timed.bytes_left = float("inf")
    return Batches(timed, answer, session.batches(), longest=longest)
