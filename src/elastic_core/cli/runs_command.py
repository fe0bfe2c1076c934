"""`elastic runs`: this user's runs on this machine by their run directories, or one of them with its last incident."""

import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click
import msgspec

from elastic_core.cli.output import echo
from elastic_core.clock import SYSTEM_CLOCK, duration_text
from elastic_core.errors import ConfigError
from elastic_core.failure.classify import shortened
from elastic_core.rundir.found_incidents import find_incidents
from elastic_core.rundir.incident_files import INCIDENT_FILE
from elastic_core.rundir.index import FoundRun, find_runs, places, runs_named

if TYPE_CHECKING:
    from elastic_core.failure.incident import Incident

_HEADS = ("#", "STARTED", "TOOK", "SCRIPT", "RUN", "RESULT")
_NAME_WIDTH = 15
_UUID = (36, "-", 8)
"""Length of an id that was made up, what its first part ends with, and how long that is."""
_LEAST_RESULT = 10
"""So that a row of a run of over 100 days, whose number has three digits, fits 80 columns."""


def _runs(target: str | None) -> int:
    found = find_runs()
    if target is not None:
        run = _named(target, found)
        echo(f"{_run_id(run)}  {_state(run)}  {run.path}")
        _report(run)
        return 0
    if not found:
        echo(f"no run of this user on this machine (looked in {places()})")
        return 0
    echo(*_table([_HEADS, *(_row(number, run) for number, run in enumerate(found, start=1))]))
    return 0


def _named(target: str, found: list[FoundRun]) -> FoundRun:
    """Return the run of an id, of a directory, of a number in the list, or of an id as the list shortens it."""
    try:
        return runs_named(target)[-1]
    except ConfigError as err:
        numbered = {str(number): run for number, run in enumerate(found, start=1)}
        run = numbered.get(target) or {_short_id(run): run for run in found}.get(target)  # the last one of several
        if run is None:
            raise ConfigError(err.what, hint="elastic runs, which lists this machine's runs") from err
        return run


def _row(number: int, run: FoundRun) -> tuple[str, ...]:
    status = run.status
    if status is None:
        return (str(number), "-", "-", "-", PurePath(run.path).name[:_NAME_WIDTH], _result(run))
    started_ns = status.agent.started_ns
    until_ns = SYSTEM_CLOCK.wall_ns() if status.end is None and run.running else status.written_ns
    return (
        str(number),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(started_ns // 10**9)),
        duration_text((until_ns - started_ns) / 1e9),
        shortened(PurePath(status.script).name or "-", _NAME_WIDTH),
        _short_id(run),
        _result(run),
    )


def _result(run: FoundRun) -> str:
    """Return what became of a run, a failure by its first cause."""
    end = None if run.status is None else run.status.end
    if end is None or end.outcome != "failed":
        return _state(run) if end is None else end.reason or end.outcome
    from elastic_core.failure.incident import read_incident
    from elastic_core.failure.report import headline

    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        return headline(read_incident(Path(run.path) / INCIDENT_FILE))
    return end.reason


def _run_id(run: FoundRun) -> str:
    return "-" if run.status is None else run.status.run_id


def _short_id(run: FoundRun) -> str:
    run_id = _run_id(run)
    length, dash, first = _UUID
    return run_id[:first] if len(run_id) == length and run_id[first] == dash else run_id[:_NAME_WIDTH]


def _state(run: FoundRun) -> str:
    status = run.status
    if status is None:
        return "unknown"
    if status.end is not None:
        return f"{status.end.outcome} (exit code {status.end.exit_code})"
    return "agent dead" if run.running is False else status.state


def _report(run: FoundRun) -> None:
    incidents = find_incidents(Path(run.path))
    if not incidents:
        echo("no incident: nothing has failed")
        return
    echo(*_block(incidents[-1].incident, incidents[-1].path).split("\n"))


def _block(incident: "Incident", path: str) -> str:
    from elastic_core.failure.report import render

    width = max(80, min(120, shutil.get_terminal_size((100, 24)).columns))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return render(incident, width=width, encoding=encoding, incident_path=path)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table, whose last column is cut so that it fits the terminal."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS) - 1)]
    room = max(_LEAST_RESULT, shutil.get_terminal_size((120, 24)).columns - sum(widths) - 2 * len(widths))
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), shortened(row[-1], room)])
        for row in rows
    ]


command = click.Command(
    "runs",
    callback=_runs,
    params=[click.Argument(["target"], metavar="[RUN]", required=False)],
    help="List this user's runs on this machine: when, how long, what, and the result or why it failed. With RUN, a "
    "number of the list, an id or a directory, that one's directory and the report of its last incident.",
)
