"""A run's incidents in its run directory: each one kept, the last one as `incident.json`."""

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
"""The first incident of a run and the last ones; a run that fails for days must not fill a disk with them."""
_NUMBERED: Final = re.compile(r"incident-(\d+)\.json")


class IncidentFiles:
    """Writes them. Threading: the supervisor's thread only."""

    def __init__(self, run_dir: Path) -> None:
        """Look at nothing yet."""
        self.run_dir = run_dir
        self._number: int | None = None

    @property
    def path(self) -> Path:
        """The file of the last incident."""
        return self.run_dir / INCIDENT_FILE

    def write(self, incident: "Incident", *, again: bool = False) -> str:
        """Write an incident and return its path, that of `incident.json`.

        `again`: it is the last one, of which more is known now.

        Raises:
            OSError: it can't be written.
        """
        from elastic_core.failure.incident import write_incident  # a start names the file, and needs no more

        path = self.path
        make_folder(str(self.run_dir))
        write_incident(path, incident)
        if incident.round_index >= 0:
            folder = self.run_dir / f"attempt_{incident.round_index}"
            make_folder(str(folder))
            _also(path, folder / INCIDENT_FILE, incident)
        if self._number is None:
            # A directory that the user chose may hold those of an earlier run.
            self._number = max(numbers(self.run_dir), default=-1) + 1
        elif not again:
            self._number += 1
        _also(path, self.run_dir / file_name(self._number), incident)
        if self._number >= MOST_KEPT:
            with suppress(OSError):
                (self.run_dir / file_name(self._number - MOST_KEPT + 1)).unlink()
        return str(path)


def file_name(number: int) -> str:
    """Return the name of the file that keeps one."""
    return f"incident-{number}.json"


def numbers(run_dir: Path) -> list[int]:
    """Return the numbers of those that are kept."""
    with os.scandir(run_dir) as entries:
        return [int(match[1]) for entry in entries if (match := _NUMBERED.fullmatch(entry.name))]


def _also(path: Path, other: Path, incident: "Incident") -> None:
    """Give what was just written another name: a file is never changed in place, so that a link is a copy."""
    temporary = other.with_name(f"{other.name}.{os.getpid()}.tmp")
    try:
        with suppress(FileNotFoundError):
            temporary.unlink()
        temporary.hardlink_to(path)
        temporary.replace(other)
        with suppress(FileNotFoundError):  # two names of one file are left as they are by a rename
            temporary.unlink()
    except OSError:  # no links here
        from elastic_core.failure.incident import write_incident

        write_incident(other, incident)
