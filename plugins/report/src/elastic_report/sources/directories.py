"""Run directories that were collected from several nodes."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from elastic_core.api import ConfigError
from elastic_report.combining.evidence import AgentEvidence
from elastic_report.ledger.document import LEDGER_FILE
from elastic_report.sources.agents import Missing, agent_in

_DEEPEST: Final = 5
"""How many levels of folders below a directory are searched."""
_MOST_FOLDERS: Final = 50_000
_SIGNS: Final = frozenset({LEDGER_FILE, "status.json", "incident.json"})
"""The files by which a run directory is known."""
_ROUND: Final = "attempt_"
"""Begins the names of the folders of rounds in a run directory, which have incidents, too."""


def agents_below(paths: Sequence[str], missing: Missing) -> list[AgentEvidence]:
    """Return what is found in directories: each is a run directory, or has run directories below it.

    Raises:
        ConfigError: a path is not a directory, or can't be read, or has nothing of a run.
    """
    found: list[AgentEvidence] = []
    for text in paths:
        path = Path(text).expanduser().absolute()
        if not _is_dir(path):
            raise ConfigError(
                f"no directory {text!r}; expected run directories", hint="elastic report DIR …, or elastic runs"
            )
        before = len(found)
        for folder in _run_dirs(path, missing):
            agent = agent_in([folder], missing)
            if agent is not None:
                found.append(agent)
        if len(found) == before:
            why = f": {missing.lines[-1]}" if missing.lines else ""
            raise ConfigError(
                f"{text!r} has no run directory with a ledger, a status or an incident in it{why}",
                hint="elastic runs, which lists this machine's runs",
            )
    return distinct(found)


def run_id_of(agents: Sequence[AgentEvidence]) -> str:
    """Return the run's id.

    Raises:
        ConfigError: the directories are of several runs.
    """
    ids = sorted({agent.run_id for agent in agents if agent.run_id})
    if len(ids) > 1:
        shown = ", ".join(map(repr, ids[:4])) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "")
        raise ConfigError(
            f"the directories are of {len(ids)} runs ({shown}); expected one",
            hint="elastic report with those of one run",
        )
    return ids[0] if ids else Path(agents[0].run_dir).name.rpartition("-")[0]


def distinct(agents: Sequence[AgentEvidence]) -> list[AgentEvidence]:
    """Return each agent once: its run directory and the folder beside its record may both have been collected."""
    found: dict[tuple[str, str, str], AgentEvidence] = {}
    others = []
    for agent in agents:
        if agent.ledger is None:
            others.append(agent)
            continue
        key = (agent.run_id, agent.node_id, agent.ledger.begin.incarnation)
        known = found.get(key)
        found[key] = agent if known is None else _joined(known, agent)
    return [*found.values(), *others]


def _joined(one: AgentEvidence, two: AgentEvidence) -> AgentEvidence:
    """Return what two folders have of one agent: the longer ledger, and all incidents."""
    assert one.ledger is not None
    assert two.ledger is not None
    best, rest = (one, two) if len(one.ledger.lines) >= len(two.ledger.lines) else (two, one)
    known = {(each.incident.at_ns, each.incident.round_index, each.incident.summary) for each in best.incidents}
    more = [
        each
        for each in rest.incidents
        if (each.incident.at_ns, each.incident.round_index, each.incident.summary) not in known
    ]
    with_end = best if best.outcome else rest
    return replace(
        best,
        incidents=(*best.incidents, *more),
        log_paths=best.log_paths or rest.log_paths,
        run_dir=best.run_dir if best.log_paths or not rest.log_paths else rest.run_dir,
        outcome=with_end.outcome,
        exit_code=with_end.exit_code,
        result=with_end.result,
        ended_ns=with_end.ended_ns,
        alive=one.alive or two.alive,
        boot_id=best.boot_id or rest.boot_id,
    )


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a parent is another user's
        return False


def _run_dirs(top: Path, missing: Missing) -> list[Path]:
    """Return the run directories at and below a directory, in order of their paths. Links are not followed."""
    found: list[Path] = []
    waiting = [(top, 0)]
    seen = 0
    while waiting:
        folder, depth = waiting.pop()
        seen += 1
        if seen > _MOST_FOLDERS:
            missing.note(f"{str(top)!r} has more than {_MOST_FOLDERS} folders: the others were not searched")
            break
        try:
            with os.scandir(folder) as entries:
                listed = list(entries)
        except OSError as err:
            missing.add(str(folder), err)
            continue
        names = {entry.name for entry in listed}
        is_run = bool(names & _SIGNS)
        if is_run:
            found.append(folder)
        if depth < _DEEPEST:
            waiting += [
                (Path(entry.path), depth + 1)
                for entry in listed
                if _is_folder(entry)
                and not entry.name.startswith(_ROUND)
                and (not is_run or entry.name.startswith("node_"))
            ]
    return sorted(found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
