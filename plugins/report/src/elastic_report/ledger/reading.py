"""Reads the ledger of one agent from its file."""

from pathlib import Path
from typing import Final

import msgspec

from elastic_core.api import ConfigError, Record
from elastic_core.api.tools import read_file
from elastic_report.ledger.document import LINE, MOST_BYTES, SCHEMA_VERSION, Begin, Ledger, Line

MOST_READ_BYTES: Final = 4 * MOST_BYTES
"""The most bytes that are read, since any user may have written a file of that name."""
_OTHER_KIND: Final = "Invalid value"
"""Begins msgspec's error about a line of a kind that this version does not know."""


class LedgerError(ConfigError):
    """The file is not a ledger, or its version is not known."""


class _Head(Record, frozen=True, kw_only=True):
    kind: str
    schema_version: int = SCHEMA_VERSION


def read_ledger(path: str | Path) -> Ledger:
    """Return the ledger in a file. Unreadable lines are counted; lines of kinds of later versions are left out.

    Raises:
        OSError: The file can't be read, or is too long.
        LedgerError: The file is not a ledger, or has another schema version.
    """
    return decode_ledger(read_file(path, most_bytes=MOST_READ_BYTES), where=str(path))


def decode_ledger(content: bytes, *, where: str) -> Ledger:
    """Return the ledger in a text; `where` is its place, for errors.

    Raises:
        LedgerError: The text is not a ledger, or has another schema version.
    """
    first, _, rest = content.partition(b"\n")
    try:
        head = msgspec.json.decode(first, type=_Head)
        if head.kind == "begin" and head.schema_version != SCHEMA_VERSION:
            what = f"{where!r} has schema version {head.schema_version}; expected {SCHEMA_VERSION}"
            raise LedgerError(what, hint="the elastic-report that the agent has")
        begin = LINE.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        begin = None
    if not isinstance(begin, Begin):
        raise LedgerError(f"{where!r} is not a ledger: its first line is no 'begin'", hint="a file ledger.jsonl")
    lines: list[Line] = []
    torn = 0
    for raw in rest.split(b"\n"):
        if not raw.strip():
            continue
        try:
            line = LINE.decode(raw)
        except msgspec.ValidationError as err:
            torn += 0 if str(err).startswith(_OTHER_KIND) and "`$.kind`" in str(err) else 1
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            torn += 1
        else:
            lines.append(line)
    return Ledger(begin=begin, lines=tuple(line for line in lines if not isinstance(line, Begin)), torn=torn)
