"""The response of NCCL's RAS service in JSON (NCCL 2.28 and later). Pure.

A response is data of another program: all that does not fit is rejected.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from elastic_core.api import Record

_NO_COMMA: Final = re.compile(rb'(["}\]0-9]|true|false|null)([ \t]*\r?\n\s*["{])')
"""The end of a value that another one follows without a comma: NCCL 2.28.9 writes such JSON."""


class CommRank(Record, frozen=True, kw_only=True):
    """One rank of a communicator that has responded."""

    rank: int
    """Its number in the communicator, which is not the rank of the run."""
    host: str = ""
    """Its address."""
    pid: int = 0
    """Its process, as the process itself sees it."""
    collective_counts: Mapping[str, int] = {}
    """How many collectives it has entered, by NCCL's name of the operation, such as `AllReduce`."""

    @property
    def entered(self) -> int:
        """How many collectives it has entered in this communicator."""
        return sum(self.collective_counts.values())


class MissingStatus(Record, frozen=True, kw_only=True):
    """Why a rank is missing in the response."""

    unresponsive: bool = False
    considered_dead: bool = False


class MissingRank(Record, frozen=True, kw_only=True):
    """One rank of a communicator that has not responded."""

    rank: int
    host: str = ""
    pid: int = 0
    status: MissingStatus = MissingStatus()


class Communicator(Record, frozen=True, kw_only=True):
    """One communicator of NCCL."""

    hash: str
    size: int
    ranks: tuple[CommRank, ...] = ()
    missing_ranks: tuple[MissingRank, ...] = ()


class RasReport(Record, frozen=True, kw_only=True):
    """The communicators of the processes that NCCL's service can reach."""

    nccl_version: str = ""
    communicators: tuple[Communicator, ...] = ()


def parse(content: bytes) -> RasReport:
    """Return the content of a response.

    Raises:
        ValueError: it is no such JSON, not even after missing commas are added.
    """
    try:
        return msgspec.json.decode(content, type=RasReport)
    except msgspec.DecodeError:
        return msgspec.json.decode(_NO_COMMA.sub(rb"\1,\2", content), type=RasReport)
