"""Finds and reads the incidents in a run directory."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from elastic_core.errors import ConfigError
from elastic_core.failure.incident import Incident, read_incident
from elastic_core.rundir.incident_files import INCIDENT_FILE, file_name, numbers
from elastic_core.types import Record


class FoundIncident(Record, frozen=True, kw_only=True):
    """An incident and its file."""

    incident: Incident
    """The incident."""
    path: str
    """The path of its file."""


def find_incidents(run_dir: Path) -> list[FoundIncident]:
    """Return the incidents in a run directory, oldest first and each once. Other files are ignored.

    Raises:
        ConfigError: All incidents have another schema version.
    """
    other: ConfigError | None = None
    found: dict[tuple[int, int, str], FoundIncident] = {}
    for path in _files(run_dir):
        try:
            incident = read_incident(path)
        except ConfigError as err:
            other = err
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            pass
        else:
            key = (incident.at_ns, incident.round_index, incident.summary)
            found.setdefault(key, FoundIncident(incident=incident, path=str(path)))
    if other is not None and not found:
        raise other
    return sorted(found.values(), key=lambda one: one.incident.at_ns)


def _files(run_dir: Path) -> Iterator[Path]:
    # Preferred names first.
    with suppress(OSError):  # a run that ends removes its directory
        yield from (run_dir / file_name(number) for number in sorted(numbers(run_dir)))
    yield run_dir / INCIDENT_FILE
    with suppress(OSError):
        yield from sorted((*run_dir.glob("incident-lost-*.json"), *run_dir.glob(f"attempt_*/{INCIDENT_FILE}")))
