"""`elastic runs`: this user's runs on this machine by their run directories, or one of them with its last incident."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elastic_core.cli.output import echo
from elastic_core.errors import ConfigError
from elastic_core.rundir.found_incidents import find_incidents
from elastic_core.rundir.index import FoundRun, find_runs, places, runs_named

if TYPE_CHECKING:
    from elastic_core.failure.incident import Incident

_HEADS = ("RUN", "STATE", "RUN DIRECTORY")


def _runs(target: str | None) -> int:
    if target is not None:
        run = _named(target)
        echo(*_line_by_line([(_run_id(run), _state(run), run.path)]))
        _report(run)
        return 0
    found = find_runs()
    if not found:
        echo(f"no run of this user on this machine (looked in {places()})")
        return 0
    echo(*_line_by_line([_HEADS, *((_run_id(run), _state(run), run.path) for run in found)]))
    return 0


def _named(target: str) -> FoundRun:
    try:
        return runs_named(target)[-1]
    except ConfigError as err:
        raise ConfigError(err.what, hint="elastic runs, which lists this machine's runs") from err


def _run_id(run: FoundRun) -> str:
    return "-" if run.status is None else run.status.run_id


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


def _line_by_line(rows: list[tuple[str, str, str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"{first.ljust(widths[0])}  {second.ljust(widths[1])}  {last}" for first, second, last in rows]


command = click.Command(
    "runs",
    callback=_runs,
    params=[click.Argument(["target"], metavar="[RUN]", required=False)],
    help="List this user's runs on this machine: id, state, run directory. With RUN, an id or a directory, that one "
    "and the report of its last incident.",
)
