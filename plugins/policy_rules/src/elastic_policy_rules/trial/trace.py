"""Recorded failures, read for a simulation."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from elastic_core.api import ConfigError, Failure
from elastic_core.api.commands import Incident, decode_incident, to_failure

_NEEDED: Final = "a Failure record, or what an incident.json has"


def read_trace(raw: bytes, name: str) -> tuple[Failure, ...]:
    """Return the failures of a trace, oldest first.

    Args:
        raw: JSON: one object a line, an array of them, or a single one; each a `Failure`, or an incident.
        name: The trace's name in messages.

    Raises:
        ConfigError: an entry is neither.
    """
    entries = [_entry(text, where) for where, text in _texts(raw, name)]
    if not entries:
        raise ConfigError(f"trace {name!r} has no failures; expected {_NEEDED} in each line", hint="an incident.json")
    return tuple(_timed(entries))


def _texts(raw: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield each object's JSON with its place."""
    try:
        whole = msgspec.json.decode(raw, type=msgspec.Raw | list[msgspec.Raw]) if raw.strip()[:1] == b"[" else None
    except msgspec.DecodeError as err:
        raise ConfigError(f"trace {name!r} is no JSON: {err}", hint=f"{_NEEDED} in each line") from err
    if isinstance(whole, list):
        yield from ((f"{name!r}, entry {number}", bytes(text)) for number, text in enumerate(whole, 1))
        return
    if _is_one_object(raw):
        yield f"{name!r}", raw
        return
    for number, line in enumerate(raw.splitlines(), 1):
        if line.strip():
            yield f"{name!r}, line {number}", line


def _is_one_object(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _entry(text: bytes, where: str) -> Failure | Incident:
    try:
        keys = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if "schema_version" in keys or "run_id" in keys:
            return decode_incident(text, f"trace {where}")
        return msgspec.json.decode(text, type=Failure)
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise ConfigError(f"trace {where}: {err}; expected {_NEEDED}", hint="an incident.json on one line") from err


def _timed(entries: Sequence[Failure | Incident]) -> Iterator[Failure]:
    """Set the time of incidents since the first of them: they have only the date."""
    first_ns = min((entry.at_ns for entry in entries if isinstance(entry, Incident)), default=0)
    for entry in entries:
        if isinstance(entry, Failure):
            yield msgspec.structs.replace(entry, decision=None)
            continue
        uptime_s = entry.first.exit.runtime_s if entry.first is not None else 0.0
        failure = to_failure(entry, at_s=(entry.at_ns - first_ns) / 1e9, uptime_s=uptime_s)
        if entry.source == "worker":
            of_run = entry.report_count > 0
            stopped = entry.stopped_count if of_run else len(entry.stopped)
            kept = entry.kept_count if of_run else None  # one node's policy decides before workers are asked to leave
            failure = msgspec.structs.replace(failure, alive_count=stopped + entry.kept_count, kept_count=kept)
        yield failure
