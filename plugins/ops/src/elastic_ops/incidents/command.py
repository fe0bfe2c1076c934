"""List failures and lost nodes of runs, or show one incident in full."""

import shutil
import sys
from collections.abc import Sequence
from typing import Final

import click

from elastic_core.api import ConfigError
from elastic_core.api.commands import StoreChoice, echo, echo_json, render_incident, report_painter
from elastic_ops.incidents.listed import (
    IncidentDocument,
    ListedIncident,
    incidents_of_directories,
    incidents_of_store,
)
from elastic_ops.run_directories import find_runs, removed_runs, runs_named
from elastic_ops.run_target import NoSuchRunError, complete_run, is_here, run_of, run_params, store_asked, store_params
from elastic_ops.status.page import Table, aligned
from elastic_ops.status.store_view import RunInStore
from elastic_ops.status.view import decision_words
from elastic_ops.store import StoreReader

api_version = 1

_HEADS: Final = ("N", "TIME", "RUN", "CLASS", "RANK", "NODE", "RESTARTS", "DECISION", "SUMMARY")


def _incidents(words: tuple[str, ...], run: str | None, last: bool, as_json: bool, **options: str | None) -> int:
    target, number = _read_words(words, last=last)
    target = run_of(target, run, options)
    choice = store_asked(options, target)
    listed = None
    if choice is not None:
        try:
            listed = _stored(choice)
        except NoSuchRunError:
            if not is_here(options, target):
                raise
    if listed is None:
        listed = _on_this_machine(target)
    if number is not None or last:
        listed = [_picked(listed, number)]
    if as_json:
        echo_json(IncidentDocument(incidents=tuple(listed)))
    elif number is not None or last:
        incident = listed[0].incident
        painter = report_painter(incident.failure_class, incident.summary, incident.decision)
        echo(*_block(listed[0]).split("\n"), painter=painter)
    else:
        echo(*_table(listed).split("\n"))
    return 0


def _read_words(words: tuple[str, ...], *, last: bool) -> tuple[str | None, int | None]:
    """Return the run and the number of the incident. A last word of digits is a number; a run of that name is `./3`."""
    rest = list(words)
    number = int(rest.pop()) if rest and rest[-1].isdecimal() else None
    if len(rest) > 1:
        raise click.UsageError(f"N: {rest[1]!r}; expected the number of an incident", click.get_current_context())
    if last and number is not None:
        raise click.UsageError(
            f"--last: incident {number} is given too; expected one of both", click.get_current_context()
        )
    return (rest[0] if rest else None), number


def _on_this_machine(target: str | None) -> list[ListedIncident]:
    removed = removed_runs(target)
    try:
        runs = find_runs() if target is None else runs_named(target)
    except ConfigError:
        if not removed:
            raise
        runs = []
    return incidents_of_directories([*removed, *runs])


def _stored(choice: StoreChoice) -> list[ListedIncident]:
    reader = StoreReader(choice)
    try:
        run = RunInStore(reader.read(), choice, reader.where)
    finally:
        reader.close()
    return incidents_of_store(choice.run_id, run.history, run.evidence)


def _picked(listed: Sequence[ListedIncident], number: int | None) -> ListedIncident:
    if not listed:
        raise ConfigError("no incident to show: nothing has failed", hint="elastic incidents, to see the list")
    if number is None:
        return listed[-1]
    if not 1 <= number <= len(listed):
        raise ConfigError(
            f"incident {number}: not in the list; expected 1 to {len(listed)}", hint="elastic incidents --last"
        )
    return listed[number - 1]


def _block(listed: ListedIncident) -> str:
    width = max(80, min(120, shutil.get_terminal_size((100, 24)).columns))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return render_incident(listed.incident, width=width, encoding=encoding, incident_path=listed.path)


def _table(listed: Sequence[ListedIncident]) -> str:
    if not listed:
        return "no incidents"
    return aligned(Table(heads=_HEADS, rows=tuple(map(_row, listed))))


def _row(listed: ListedIncident) -> tuple[str, ...]:
    incident, decision = listed.incident, listed.incident.decision
    rank = incident.elsewhere_rank if incident.first is None else incident.first.exit.global_rank
    return (
        str(listed.number),
        incident.at.partition(".")[0] + "Z" if incident.at_ns else incident.at,
        incident.run_id,
        incident.failure_class.value,
        "-" if rank is None else str(rank),
        incident.host if incident.elsewhere_rank is not None else incident.node_id,
        str(incident.restart_count),
        "-" if decision is None else decision_words(decision),
        incident.summary,
    )


_HELP = """\
List the incidents of runs, the oldest first, or show one of them in full.

An incident is a failure, or a node that was lost. RUN is a run directory, or the id of a run on this machine; without
RUN, all last runs of this user on this machine are read. With the --rdzv options, the failures of RUN (or --rdzv-id)
are read from its store, which has no lost nodes. N is the number of an incident in the list.
"""
_EPILOG = """\b
Examples:
  elastic incidents                    # all on this machine
  elastic incidents --last             # the last one in full
  elastic incidents bert-7 3
  elastic incidents --rdzv-backend redis --rdzv-endpoint redis.example:6379 bert-7

Exit codes: 0; 2 usage, or no such run or incident; 3 plugin; 4 the store cannot be reached or read.
"""

command = click.Command(
    "incidents",
    callback=_incidents,
    params=[
        click.Argument(["words"], metavar="[RUN] [N]", nargs=-1, shell_complete=complete_run),
        *run_params(),
        *store_params(),
        click.Option(["--last"], is_flag=True, help="Show the last incident in full."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON; each incident as in its file."),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
