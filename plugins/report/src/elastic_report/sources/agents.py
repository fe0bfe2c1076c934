"""Reads what one agent has left: its ledger, incidents, status and log files."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from elastic_core.api import ConfigError
from elastic_core.api.commands import FoundIncident, find_incidents
from elastic_core.api.records import RunRecord
from elastic_ops.logs.index import INDEX_FILE, read_index
from elastic_ops.run_directories import FoundRun, run_at
from elastic_ops.status.document import STATUS_FILE, AgentStatus
from elastic_report.combining.evidence import AgentEvidence
from elastic_report.ledger.document import LEDGER_FILE, Ledger
from elastic_report.ledger.reading import read_ledger

MOST_LOGS: Final = 64
_MOST_INDEX_BYTES: Final = 16 << 20


class Missing:
    """Lines about what could not be read, each once."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    def add(self, what: str, err: Exception | str) -> None:
        """Add the reason why something could not be read."""
        if isinstance(err, ConfigError):
            self._lines[str(err)] = None
            return
        why = getattr(err, "strerror", None) or str(err)
        self._lines[f"{what!r} can't be read ({why})"] = None

    def note(self, line: str) -> None:
        """Add a line."""
        self._lines[line] = None

    @property
    def lines(self) -> tuple[str, ...]:
        """All lines."""
        return tuple(self._lines)


def agent_in(folders: Sequence[Path], missing: Missing, *, record: RunRecord | None = None) -> AgentEvidence | None:
    """Return what an agent has left in its run directory, and in the folder beside its record.

    Args:
        folders: Its run directory, if it exists, and then that folder, if there is one.
        missing: Gets a line for each file that can't be read.
        record: Its record.

    Returns:
        The evidence. `None` if the folders have nothing of an agent, and there is no record.
    """
    ledger = _ledger(folders, missing)
    incidents = _incidents(folders, missing)
    found = _status(folders, missing)
    status = None if found is None else found.status
    run_dir = next((str(folder) for folder in folders if record is None or str(folder) == record.run_dir), "")
    if record is None and ledger is None and status is None and not incidents:
        return None
    agent = _named(ledger, status, incidents, record)
    agent = replace(agent, ledger=ledger, incidents=tuple(incidents), run_dir=run_dir)
    if status is not None:
        agent = _with_status(agent, status, alive=found is not None and found.running is True)
    if record is not None:
        agent = _with_record(agent, record)
    if run_dir:
        agent = replace(agent, log_paths=_logs(Path(run_dir), status))
    return agent


def _ledger(folders: Sequence[Path], missing: Missing) -> Ledger | None:
    for folder in folders:
        path = folder / LEDGER_FILE
        try:
            return read_ledger(path)
        except FileNotFoundError:
            continue
        except (OSError, ConfigError) as err:
            missing.add(str(path), err)
    return None


def _incidents(folders: Sequence[Path], missing: Missing) -> list[FoundIncident]:
    found: dict[tuple[int, int, str], FoundIncident] = {}
    for folder in folders:
        try:
            for each in find_incidents(folder):
                incident = each.incident
                found.setdefault((incident.at_ns, incident.round_index, incident.summary), each)
        except (OSError, ConfigError) as err:
            missing.add(str(folder), err)
    return list(found.values())


def _status(folders: Sequence[Path], missing: Missing) -> FoundRun | None:
    for folder in folders:
        try:
            found = run_at(folder)
        except (OSError, ConfigError) as err:
            missing.add(str(folder / STATUS_FILE), err)
        else:
            if found.status is not None:
                return found
    return None


def _named(
    ledger: Ledger | None, status: AgentStatus | None, incidents: Sequence[FoundIncident], record: RunRecord | None
) -> AgentEvidence:
    if ledger is not None:
        begin = ledger.begin
        return AgentEvidence(
            node_id=begin.node_id,
            run_id=begin.run_id,
            host=begin.host,
            started_ns=begin.started_ns,
            script=begin.script,
            backend=begin.backend,
        )
    if status is not None:
        return AgentEvidence(
            node_id=status.node_id,
            run_id=status.run_id,
            host=status.agent.host,
            started_ns=status.agent.started_ns,
            script=status.script,
            backend=status.backend,
        )
    if record is not None:
        return AgentEvidence(
            node_id=record.node_id,
            run_id=record.run_id,
            host=record.agent.host,
            started_ns=record.agent.started_ns,
            script=record.script,
        )
    first = incidents[0].incident
    return AgentEvidence(
        node_id=first.node_id,
        run_id=first.run_id,
        host=first.host,
        started_ns=first.at_ns,
        ended_ns=incidents[-1].incident.at_ns,
    )


def _with_status(agent: AgentEvidence, status: AgentStatus, *, alive: bool) -> AgentEvidence:
    agent = replace(agent, alive=alive, boot_id=status.agent.boot_id)
    if status.end is None:
        return agent
    end = status.end
    return replace(
        agent, alive=False, outcome=end.outcome, exit_code=end.exit_code, result=end.reason, ended_ns=status.written_ns
    )


def _with_record(agent: AgentEvidence, record: RunRecord) -> AgentEvidence:
    agent = replace(agent, boot_id=record.agent.boot_id, script=agent.script or record.script)
    if not record.outcome:
        return replace(agent, alive=record.agent.running is True)
    return replace(
        agent,
        alive=False,
        outcome=record.outcome,
        exit_code=record.exit_code,
        result=record.result,
        ended_ns=record.ended_ns,
    )


def _logs(run_dir: Path, status: AgentStatus | None) -> tuple[str, ...]:
    """Return the log files that exist, those of the last rounds first."""
    with suppress(OSError):
        if (run_dir / INDEX_FILE).stat().st_size > _MOST_INDEX_BYTES:
            return ()
    found: dict[str, None] = {}
    for index in reversed(read_index(run_dir, status).rounds):
        for worker in index.workers:
            for path in filter(None, (worker.stdout, worker.stderr)):
                here = Path(path)
                if not here.exists():  # the directory was moved or collected
                    here = run_dir.joinpath(*here.parts[-3:])
                if here.is_file():
                    found[str(here)] = None
                if len(found) >= MOST_LOGS:
                    return tuple(found)
    return tuple(found)
