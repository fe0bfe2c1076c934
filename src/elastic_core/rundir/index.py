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
        with suppress(FileNotFoundError), os.scandir(place) as entries:
            folders += [(entry.stat().st_ctime_ns, entry.path) for entry in entries if entry.is_dir()]
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
    """Return the runs that somebody means: a run directory, or all of a run id in their usual places.

    Raises:
        ConfigError: there is none.
    """
    path = Path(target).expanduser()
    if path.is_dir():
        return [_chosen_directory(path.absolute())]
    if os.sep not in target:
        named = [run for run in find_runs() if run.status is not None and run.status.run_id == target]
        if named:
            return named
    raise ConfigError(
        f"no run directory {target!r}, and no run of that id in {places()}",
        hint="elastic status, which lists this machine's runs; or --rdzv-backend, --rdzv-endpoint and --rdzv-id",
    )


def _chosen_directory(path: Path) -> FoundRun:
    try:
        run = look_at(path)
    except OSError as err:
        raise ConfigError(f"run directory {str(path)!r} can't be read ({err.strerror})") from err
    if run.status is None and not any(path.glob(f"**/{INCIDENT_FILE}")):
        raise ConfigError(
            f"{str(path)!r} is no run directory, or its agent has just begun: there is no {STATUS_FILE} in it",
            hint="elastic status, which lists this machine's runs",
        )
    return run
