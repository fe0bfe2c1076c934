"""This user's runs on this machine by their run directories, with the status that each agent has left there."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from elastic_core.api import ConfigError, Record
from elastic_core.api.commands import run_places, run_records
from elastic_ops.status.document import STATUS_FILE, UNREADABLE, AgentStatus, OtherVersionError, read_status

_LISTED: Final = "elastic status, which lists this machine's runs"


class FoundRun(Record, frozen=True, kw_only=True):
    """A run directory. `status` None: the agent has left none (yet).

    `running`: whether its agent lives; None: it can't be seen from here, or is unknown.
    """

    path: str
    status: AgentStatus | None = None
    running: bool | None = None


def find_runs() -> list[FoundRun]:
    """Return the directories of this user's last runs on this machine, as far as they are still there, oldest first.

    Raises:
        ConfigError: there is no place for runs, or another user has taken it.
    """
    found = []
    for path in dict.fromkeys(reversed([record.run_dir for record in run_records()])):
        if Path(path).is_dir():
            with suppress(OSError, OtherVersionError):  # a run that has just ended takes its directory with it
                found.append(run_at(Path(path)))
    return found[::-1]


def run_at(path: Path) -> FoundRun:
    """Return what a run directory has of its run.

    Raises:
        OSError: it can't be read.
        OtherVersionError: its status was written by another version.
    """
    try:
        status = read_status(path / STATUS_FILE)
    except (FileNotFoundError, *UNREADABLE):
        return FoundRun(path=str(path))
    return FoundRun(path=str(path), status=status, running=status.agent.running)


def runs_named(target: str) -> list[FoundRun]:
    """Return all runs of an id in their directories, or the one of a run directory; an id counts before a folder.

    Raises:
        ConfigError: there is none, or its status was written by another version.
    """
    if os.sep not in target:  # an id first: the folder in which one works is often named as the run
        named = [run for run in find_runs() if run.status is not None and run.status.run_id == target]
        if named:
            return named
    path = Path(target).expanduser()
    if path.is_dir():
        return [_chosen_directory(path.absolute())]
    raise ConfigError(
        f"no run directory {target!r}, and no run of that id in {run_places()}",
        hint="elastic status, which lists this machine's runs; or --rdzv-backend and --rdzv-endpoint with RUN",
    )


def _chosen_directory(path: Path) -> FoundRun:
    try:
        run = run_at(path)
    except OSError as err:
        raise ConfigError(f"run directory {str(path)!r} can't be read ({err.strerror})") from err
    if run.status is None and not _has_incident(path):
        raise ConfigError(
            f"{str(path)!r} is not a run directory, or its agent has just started: it has no {STATUS_FILE} in it",
            hint=_LISTED,
        )
    return run


def _has_incident(path: Path) -> bool:
    # One that can't be read counts, too. `os.walk`, since a folder that goes while `Path.glob` looks ends its search.
    return any("incident.json" in names for _, _, names in os.walk(path))
