"""Finds the runs of this user on this machine by their run directories."""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from elastic_core.errors import ConfigError
from elastic_core.rundir.directory import runs_folders
from elastic_core.rundir.incident_files import INCIDENT_FILE
from elastic_core.rundir.status_file import STATUS_FILE, is_running, read_status
from elastic_core.status import AgentStatus
from elastic_core.types import Record


class FoundRun(Record, frozen=True, kw_only=True):
    """A run directory. `status` None: the agent has left none (yet).

    `running`: whether its agent lives; None: it can't be seen from here, or is unknown.
    """

    path: str
    """The run directory."""
    status: AgentStatus | None = None
    """What the agent has left; None: nothing yet."""
    running: bool | None = None
    """Whether the agent lives; None: it can't be told from here."""


def find_runs() -> list[FoundRun]:
    """Return all run directories in their usual places, the oldest first."""
    folders: list[tuple[int, str]] = []
    for place in runs_folders():
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                with suppress(OSError):  # one that has just gone hides no other
                    if entry.is_dir():
                        folders.append((entry.stat().st_ctime_ns, entry.path))
    found = []
    for _, path in sorted(folders):
        with suppress(OSError):  # a run that has just ended takes its directory with it
            found.append(look_at(Path(path)))
    return sorted(found, key=lambda run: 0 if run.status is None else run.status.agent.started_ns)


def places() -> str:
    """Return where run directories are looked for, for people."""
    return " or ".join(repr(str(folder)) for folder in runs_folders())


def look_at(path: Path) -> FoundRun:
    """Return what a run directory tells of its run.

    Raises:
        OSError: it can't be read.
    """
    try:
        status = read_status(path / STATUS_FILE)
    except FileNotFoundError:
        return FoundRun(path=str(path))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return FoundRun(path=str(path))
    return FoundRun(path=str(path), status=status, running=is_running(status.agent))


def runs_named(target: str) -> list[FoundRun]:
    """Return all runs of an id in their usual places, or the one of a run directory; an id counts before a folder.

    Raises:
        ConfigError: there is none.
    """
    if os.sep not in target:  # an id first: the folder in which one works is often named as the run
        named = [run for run in find_runs() if run.status is not None and run.status.run_id == target]
        if named:
            return named
    path = Path(target).expanduser()
    if path.is_dir():
        return [_chosen_directory(path.absolute())]
    raise ConfigError(
        f"no run directory {target!r}, and no run of that id in {places()}",
        hint="elastic status, which lists this machine's runs; or --rdzv-backend, --rdzv-endpoint and --rdzv-id",
    )


def _chosen_directory(path: Path) -> FoundRun:
    try:
        run = look_at(path)
    except OSError as err:
        raise ConfigError(f"run directory {str(path)!r} can't be read ({err.strerror})") from err
    if run.status is None and not _has_incident(path):
        raise ConfigError(
            f"{str(path)!r} is no run directory, or its agent has just begun: there is no {STATUS_FILE} in it",
            hint="elastic status, which lists this machine's runs",
        )
    return run


def _has_incident(path: Path) -> bool:
    # `os.walk`, since a folder that goes while `Path.glob` looks ends its search with an error.
    return any(INCIDENT_FILE in names for _, _, names in os.walk(path))
