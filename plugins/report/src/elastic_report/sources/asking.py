"""Requests the ledgers of running agents: over their sockets on this host, and by TCP from other hosts."""

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPException
from typing import Final

import msgspec

from elastic_core.api import ElasticError, Record, decode_json
from elastic_ops.control_plane.client import call
from elastic_ops.control_plane.handlers import HANDLER_PATH
from elastic_ops.control_plane.proved import Refused, post
from elastic_report.ledger.document import MOST_BYTES, Ledger
from elastic_report.ledger.reading import decode_ledger

HANDLER: Final = "ledger"
WITHIN_S: Final = 5.0
"""How long an agent may take."""
_LONGEST: Final = 8 * MOST_BYTES
_AT_ONCE: Final = 64
"""How many agents are asked at the same time."""
_ERRORS: Final = (OSError, HTTPException, ElasticError, Refused, msgspec.DecodeError, UnicodeDecodeError)


class _Answer(Record, frozen=True, kw_only=True):
    lines: str = ""


class Place(Record, frozen=True, kw_only=True):
    """A running agent. `control`: the path of its socket on this host; else it is reached by TCP."""

    node_id: str
    control: str = ""
    address: str = ""
    port: int = 0
    incarnation: str = ""


def ask(places: Sequence[Place], secret: str = "") -> list[Ledger | str]:
    """Return the ledger of each agent, or else why there is none.

    Args:
        places: The agents.
        secret: The run's secret, by which agents of other hosts are known.
    """

    def one(place: Place) -> Ledger | str:
        try:
            return _over_socket(place) if place.control else _by_tcp(place, secret)
        except _ERRORS as err:
            return _reason(err)

    if not places:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(places)), thread_name_prefix="elastic-report") as pool:
        return list(pool.map(one, places))


def _over_socket(place: Place) -> Ledger:
    reply = call(place.control, HANDLER, timeout_s=WITHIN_S, longest=_LONGEST)
    if not reply.ok:
        raise ConnectionError(" ".join(reply.text.split())[:200])
    return _ledger(reply.content, place)


def _by_tcp(place: Place, secret: str) -> Ledger:
    if not place.port:
        raise ConnectionError("its agent has no port for requests")
    connection = socket.create_connection((place.address, place.port), timeout=WITHIN_S)
    answer = post(
        connection,
        f"{HANDLER_PATH}{HANDLER}",
        b"{}",
        secret=secret,
        incarnation=place.incarnation,
        within_s=WITHIN_S,
        longest=_LONGEST,
    )
    with closing(answer):
        return _ledger(answer.next(silence_s=WITHIN_S), place)


def _ledger(content: bytes, place: Place) -> Ledger:
    return decode_ledger(decode_json(content, _Answer).lines.encode(), where=f"the ledger that {place.node_id} sent")


def _reason(err: Exception) -> str:
    return getattr(err, "strerror", None) or str(err) or type(err).__name__
