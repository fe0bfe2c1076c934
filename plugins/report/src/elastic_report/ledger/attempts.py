"""The highest step that earlier attempts of a run reported, from the ledgers of this machine."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from elastic_core.api import ElasticError
from elastic_core.api.records import RunRecord, run_records
from elastic_report.ledger.document import LEDGER_FILE, Ledger, Progress, RoundLine, WorkerLine
from elastic_report.ledger.reading import read_ledger

MOST_ATTEMPTS: Final = 32
_RECORDED_CHARS: Final = 1000
"""A record has this many characters of a run's id at most."""


def earlier_high_step(run_id: str, *, began_ns: int) -> int | None:
    """Return the highest step of the attempts since the last success. `None` means not known.

    Args:
        run_id: The run's id.
        began_ns: When this attempt began; agents that still run are its own nodes.
    """
    try:
        records = run_records(run_id=run_id)  # others would take the agent's memory
    except ElasticError:
        return None
    return high_step_of(attempts_before(records, run_id, began_ns=began_ns))


def attempts_before(records: Iterable[RunRecord], run_id: str, *, began_ns: int) -> list[RunRecord]:
    """Return the records of the run's earlier attempts since its last success, the newest first."""
    found: list[RunRecord] = []
    cut = run_id[:_RECORDED_CHARS]
    same = [each for each in records if each.run_id == cut]
    for record in sorted(same, key=lambda each: each.agent.started_ns, reverse=True):
        if record.outcome == "succeeded":
            break
        over = 0 < record.ended_ns <= began_ns
        killed = not record.ended_ns and record.agent.started_ns < began_ns and record.agent.running is not True
        if over or killed:
            found.append(record)
    return found[:MOST_ATTEMPTS]


def high_step_of(records: Iterable[RunRecord]) -> int | None:
    """Return the highest step in the ledgers of agents."""
    steps: list[int] = []
    for record in records:
        for folder in filter(None, (record.files, record.run_dir)):
            with suppress(OSError, ElasticError):
                steps += _steps(read_ledger(Path(folder) / LEDGER_FILE))
                break
    return max(steps, default=None)


def _steps(ledger: Ledger) -> list[int]:
    steps = [ledger.begin.high_step]
    for line in ledger.lines:
        match line:
            case Progress(step=step):
                steps.append(step)
            case WorkerLine(last_step=step):
                steps.append(step)
            case RoundLine(high_step=step):
                steps.append(step)
            case _:
                pass
    return [step for step in steps if step is not None]
