"""Writes a run's incidents to its run directory: each is kept, and the last one is `incident.json` too."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from elastic_core.system.private_file import make_folder

if TYPE_CHECKING:
    from elastic_core.failure.incident import Incident

INCIDENT_FILE: Final = "incident.json"
MOST_KEPT: Final = 64
"""How many incidents of a run are kept: the first and the last ones. This bounds the disk space of a failing run."""
_NUMBERED: Final = r"incident-(\d+)\.json"


class IncidentFiles:
    """Writes incidents. Threading: the supervisor's thread only."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._number: int | None = None

    @property
    def path(self) -> Path:
        """The file of the last incident."""
        return self.run_dir / INCIDENT_FILE

    def write(self, incident: "Incident", *, again: bool = False) -> str:
        """Write an incident and return the path of `incident.json`.

        With `again`, it replaces the last one, with more details.

        Raises:
            OSError: The file cannot be written.
        """
        from elastic_core.failure.incident import write_incident  # slow, and not needed at the start

        path = self.path
        make_folder(str(self.run_dir))
        write_incident(path, incident)
        if incident.round_index >= 0:
            folder = self.run_dir / f"attempt_{incident.round_index}"
            make_folder(str(folder))
            _also(path, folder / INCIDENT_FILE, incident)
        if self._number is None:
            # A chosen directory may contain incidents of an earlier run.
            self._number = max(numbers(self.run_dir), default=-1) + 1
        elif not again:
            self._number += 1
        _also(path, self.run_dir / file_name(self._number), incident)
        if self._number >= MOST_KEPT:
            with suppress(OSError):
                (self.run_dir / file_name(self._number - MOST_KEPT + 1)).unlink()
        return str(path)


def file_name(number: int) -> str:
    """Return the name of the file that keeps an incident."""
    return f"incident-{number}.json"


def numbers(run_dir: Path) -> list[int]:
    """Return the numbers of the incidents that are kept."""
    with os.scandir(run_dir) as entries:
        return [int(match[1]) for entry in entries if (match := re.fullmatch(_NUMBERED, entry.name))]


def _also(path: Path, other: Path, incident: "Incident") -> None:
    # Files are never changed in place, so a link is a copy.
    temporary = other.with_name(f"{other.name}.{os.getpid()}.tmp")
    try:
        with suppress(FileNotFoundError):
            temporary.unlink()
        temporary.hardlink_to(path)
        temporary.replace(other)
        with suppress(FileNotFoundError):  # a rename keeps both names of one file
            temporary.unlink()
    except OSError:  # the file system has no links
        from elastic_core.failure.incident import write_incident

        write_incident(other, incident)
