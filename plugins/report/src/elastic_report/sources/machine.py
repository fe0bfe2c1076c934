"""The runs of this user on this machine, from their records."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from elastic_core.api import ConfigError
from elastic_core.api.records import RunRecord, run_places, run_records
from elastic_ops.run_directories import run_at
from elastic_report.combining.attempts import Presence, attempts_of, since_last_success
from elastic_report.combining.evidence import AgentEvidence
from elastic_report.sources.agents import Missing, agent_in

_LISTED: Final = "elastic runs"
_UUID: Final = (36, "-", 8)
"""Length of a generated id, the sign after its first part, and that part's length."""
_SHORT: Final = 15
_MOST_TRIED: Final = 8
"""How many earlier runs are looked at for one with a ledger."""


def records(missing: Missing) -> list[RunRecord]:
    """Return this user's runs on this machine, the oldest first.

    Raises:
        ConfigError: there is no place for them, or another user has taken it.
    """
    return run_records(missing.note)


def last_run(found: Sequence[RunRecord]) -> RunRecord:
    """Return the run that was started last.

    Raises:
        ConfigError: there is none.
    """
    if not found:
        raise ConfigError(
            f"no run of this user on this machine (directories: {run_places()}); expected one",
            hint="elastic report DIR, with a run directory, or elastic report with --rdzv-backend and --rdzv-endpoint",
        )
    return found[-1]


def named(target: str, found: Sequence[RunRecord]) -> RunRecord | None:
    """Return the last run of a name: an id, a directory, a number of `elastic runs`, or an id as that list cuts it."""
    directory = str(Path(target).expanduser().absolute()) if target else ""
    for name, wanted in (
        ({run.run_id: run for run in found}, target),
        ({run.run_dir: run for run in found if run.run_dir}, directory),
        ({str(number): run for number, run in enumerate(found, start=1)}, target),
        ({short_id(run.run_id): run for run in found}, target),
    ):
        if wanted in name:
            return name[wanted]
    return None


def short_id(run_id: str) -> str:
    """Return an id as `elastic runs` cuts it."""
    length, dash, first = _UUID
    return run_id[:first] if len(run_id) == length and run_id[first] == dash else run_id[:_SHORT]


def no_such_run(target: str) -> ConfigError:
    """Return the error for a name that this machine does not know."""
    return ConfigError(
        f"no run {target!r} of this user on this machine (directories: {run_places()}), and no such directory; "
        "expected a run id, a number of elastic runs, or a run directory",
        hint=_LISTED,
    )


def records_of(run_id: str, found: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the records of a run's agents: those since its last success, or of that success if it is the last."""
    own = [run for run in found if run.run_id == run_id]
    presences = [_presence(run) for run in own]
    groups = since_last_success(attempts_of(presences), presences)
    return [own[number] for number in sorted(number for group in groups for number in group)]


def agents_of(chosen: Iterable[RunRecord], missing: Missing) -> list[AgentEvidence]:
    """Return what the agents of these records have left."""
    found = []
    for record in chosen:
        agent = agent_in(folders_of(record), missing, record=record)
        if agent is not None:
            found.append(agent)
    return found


def folders_of(record: RunRecord) -> list[Path]:
    """Return the existing folders of a record: the run directory, then the folder that stays after it."""
    folders = [Path(path) for path in (record.run_dir, record.files) if path]
    return [folder for folder in folders if folder.is_dir()]


def last_good(run_id: str, script: str, before_ns: int, found: Sequence[RunRecord]) -> list[AgentEvidence]:
    """Return the agents of the last run that succeeded before a moment: of the same id, or else of the same script."""
    ended_well = [run for run in found if run.outcome == "succeeded" and 0 < run.ended_ns <= before_ns]
    same_id = [run for run in ended_well if run.run_id == run_id]
    same_script = [run for run in ended_well if run.script == script and script and run.run_id != run_id]
    silent = Missing()  # what an earlier run lacks is no part of the report
    for run in [*reversed(same_id[-_MOST_TRIED:]), *reversed(same_script[-_MOST_TRIED:])]:
        together = [
            other
            for other in ended_well
            if other.run_id == run.run_id
            and other.agent.started_ns <= run.ended_ns
            and run.agent.started_ns <= other.ended_ns
        ]
        agents = agents_of(together, silent)
        if any(agent.ledger is not None for agent in agents):
            return agents
    return []


def _presence(run: RunRecord) -> Presence:
    begin_s = run.agent.started_ns / 1e9
    return Presence(begin_s=begin_s, end_s=max(begin_s, run.ended_ns / 1e9), outcome=run.outcome)


def controls_of(chosen: Iterable[RunRecord]) -> dict[str, str]:
    """Return the sockets of running agents, by their run directories."""
    found = {}
    for record in chosen:
        if record.run_dir and not record.outcome:
            try:
                run = run_at(Path(record.run_dir))
            except (OSError, ConfigError):
                continue
            if run.running and run.status is not None and run.status.control:
                found[record.run_dir] = run.status.control
    return found
