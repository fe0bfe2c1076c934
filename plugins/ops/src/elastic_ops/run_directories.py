"""This user's runs on this machine, from their run directories and the status that each agent has written there."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from elastic_core.api import SYSTEM_CLOCK, ConfigError, Record, WaitBudget
from elastic_core.api.records import run_places, run_records
from elastic_core.api.tools import AgentIdentity
from elastic_ops.status.document import STATUS_FILE, UNREADABLE, AgentStatus, OtherVersionError, read_status

_LISTED: Final = "elastic status, which lists this machine's runs"
_STARTING_S: Final = 2.0
"""How long after the start of an agent a command waits for its first status."""
_LOOK_S: Final = 0.02


class FoundRun(Record, frozen=True, kw_only=True):
    """A run directory. `status` is `None` if the agent has written none yet.

    `running`: whether its agent is alive. `None` means that it can't be checked from here, or is not known.
    """

    path: str
    status: AgentStatus | None = None
    running: bool | None = None


def find_runs() -> list[FoundRun]:
    """Return the existing directories of this user's last runs on this machine, oldest first.

    Raises:
        ConfigError: there is no directory for runs, or it belongs to another user.
    """
    found = []
    for path in dict.fromkeys(reversed([record.run_dir for record in run_records()])):
        if Path(path).is_dir():
            with suppress(OSError, OtherVersionError):  # a run that has just ended takes its directory with it
                found.append(run_at(Path(path)))
    return found[::-1]


def removed_runs(run_id: str | None) -> list[FoundRun]:
    """Return the folders with the files of this user's last runs whose run directories are gone, oldest first.

    `run_id` selects the runs with that id; `None` means all.
    """
    return [
        FoundRun(path=record.files)
        for record in run_records()
        if record.files and run_id in (None, record.run_id) and not Path(record.run_dir).is_dir()
    ]


def run_at(path: Path) -> FoundRun:
    """Return the content of a run directory.

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
    """Return all runs with an id, or the run of a run directory. An id takes precedence over a folder.

    If an agent of that id has just started, its first status is waited for, until two seconds after its start.

    Raises:
        ConfigError: there is none, its agent writes no status, or its status was written by another version.
    """
    if not target:  # `Path("")` is the working directory, which may be one of a run
        raise ConfigError("RUN: ''; expected a run id or a run directory", hint=_LISTED)
    if os.sep not in target:  # an id first: the folder in which one works is often named as the run
        pause, until_s = WaitBudget(), SYSTEM_CLOCK.monotonic_s() + _STARTING_S
        while any(map(_is_young, _silent_agents(target))) and SYSTEM_CLOCK.monotonic_s() < until_s:
            pause.sleep(_LOOK_S)
        named = [run for run in find_runs() if run.status is not None and run.status.run_id == target]
        if named:
            return named
    path = Path(target).expanduser()
    if path.is_dir():
        return [_chosen_directory(path.absolute())]
    if silent := _silent_agents(target):
        raise ConfigError(
            f"run {target!r} runs here (agent process {silent[0].pid}), but its agent writes no status: its "
            "environment has no elastic-ops, or the hook is off",
            hint="pip install -r sets/ops.txt (in a checkout) where elastic run is installed, before the next run",
        )
    raise ConfigError(
        f"no run directory {target!r}, and no run of that id in {run_places()}",
        hint="elastic status, which lists this machine's runs; or --rdzv-backend and --rdzv-endpoint with RUN",
    )


def _silent_agents(run_id: str) -> list[AgentIdentity]:
    """Return the live agents of that run that have written their record, but no status."""
    return [
        record.agent
        for record in run_records()
        if record.run_id == run_id
        and not record.ended_ns
        and Path(record.run_dir).is_dir()
        and not (Path(record.run_dir) / STATUS_FILE).exists()
        and record.agent.running
    ]


def _is_young(agent: AgentIdentity) -> bool:
    return SYSTEM_CLOCK.wall_ns() - agent.started_ns < _STARTING_S * 1e9


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
