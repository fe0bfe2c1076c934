"""`elastic runs`: this user's last runs on this machine, or one run with its last incident."""

import shutil
import sys
import time
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click

from elastic_core.cli.output import echo
from elastic_core.errors import ConfigError
from elastic_core.failure.classify import shortened
from elastic_core.rundir.found_incidents import find_incidents
from elastic_core.rundir.run_records import RunRecord, run_places, run_records
from elastic_core.system.clock import SYSTEM_CLOCK, duration_text
from elastic_core.system.colours import line_painter, report_painter
from elastic_core.types import Restart

if TYPE_CHECKING:
    from elastic_core.failure.incident import Incident

_HEADS = ("#", "STARTED", "TOOK", "SCRIPT", "RUN", "RESULT")
_NAME_WIDTH = 15
# Length of a generated id, the separator after its first part, and that part's length.
_UUID = (36, "-", 8)
# With it, a run of over 100 days with a number of three digits fits 80 columns.
_LEAST_RESULT = 10


def _runs(target: str | None) -> int:
    found = run_records(partial(echo, err=True))
    if target is not None:
        run = _named(target, found)
        state = line_painter(r".+?  (?:(?P<green>succeeded)|(?P<red>failed \(exit code \d+\)))  ")
        echo(f"{run.run_id}  {_state(run)}  {run.run_dir}", painter=state)
        _report(run)
    elif not found:
        echo(f"no run of this user on this machine (directories: {run_places()})")
    else:
        lines = _table([_HEADS, *(_row(number, run) for number, run in enumerate(found, start=1))])
        failed = "|".join(str(number) for number, run in enumerate(found, start=1) if run.outcome == "failed")
        before = f".{{{lines[0].index(_HEADS[-1])}}}"
        echo(*lines, painter=line_painter(rf"(?=(?:{failed}) ){before}(?P<red>.*)|{before}(?P<green>succeeded)"))
    return 0


def _named(target: str, found: list[RunRecord]) -> RunRecord:
    # Search order: run id, directory, number in the list, id as the list shortens it.
    directory = str(Path(target).expanduser().absolute())
    names = (
        {run.run_id: run for run in found},
        {run.run_dir: run for run in found if run.run_dir == directory and target},
        {str(number): run for number, run in enumerate(found, start=1)},
        {_short_id(run): run for run in found},
    )
    for name, runs in zip((target, directory, target, target), names, strict=True):
        if name in runs:
            return runs[name]
    raise ConfigError(
        f"no run {target!r} of this user on this machine (directories: {run_places()})",
        hint="elastic runs, which lists this machine's runs",
    )


def _row(number: int, run: RunRecord) -> tuple[str, ...]:
    started_ns = run.agent.started_ns
    until_ns = run.ended_ns or (SYSTEM_CLOCK.wall_ns() if run.agent.running else 0)
    return (
        str(number),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(started_ns // 10**9)),
        duration_text((until_ns - started_ns) / 1e9) if until_ns >= started_ns else "-",
        shortened(PurePath(run.script).name or "-", _NAME_WIDTH),
        _short_id(run),
        _result(run),
    )


def _result(run: RunRecord) -> str:
    return _state(run) if run.outcome in ("", "succeeded") else run.result or run.outcome


def _state(run: RunRecord) -> str:
    if run.outcome:
        return run.outcome if run.outcome == "succeeded" else f"{run.outcome} (exit code {run.exit_code})"
    running = run.agent.running
    if running is None:
        return "no end recorded (its agent can't be seen from here)"
    return "running" if running else "agent dead, no end recorded"


def _short_id(run: RunRecord) -> str:
    length, dash, first = _UUID
    return run.run_id[:first] if len(run.run_id) == length and run.run_id[first] == dash else run.run_id[:_NAME_WIDTH]


def _report(run: RunRecord) -> None:
    incidents = find_incidents(Path(run.run_dir)) or (find_incidents(Path(run.files)) if run.files else [])
    if incidents:
        incident = incidents[-1].incident
        if isinstance(incident.decision, Restart):
            ended = f"{run.result}; " if run.outcome == "failed" else ""
            echo(f"{ended}incidents: {len(incidents)}; the run continued after the last one:")
        painter = report_painter(incident.failure_class, incident.summary, incident.decision)
        echo(*_block(incident, incidents[-1].path).split("\n"), painter=painter)
    elif run.outcome == "failed":
        echo(f"{run.result} (its run directory holds no incident)")
    else:
        echo("no incident: nothing has failed" if run.agent.running and not run.outcome else "no incident is kept")


def _block(incident: "Incident", path: str) -> str:
    from elastic_core.failure.report import render_incident

    width = max(80, min(120, shutil.get_terminal_size((100, 24)).columns))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return render_incident(incident, width=width, encoding=encoding, incident_path=path)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    # The last column is cut to the terminal's width.
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
    help="List the last runs of this user on this machine: start, duration, script, and the result or the failure. RUN "
    "(a number of the list, an id or a directory): show the directory of that run and the report of its last incident.",
)
