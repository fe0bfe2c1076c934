"""Show the log files of workers, on this host or on all hosts of a run; -f follows them."""

import os
import sys
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing
from itertools import chain
from typing import TYPE_CHECKING, Final

import click

from elastic_core.api import ConfigError, WaitBudget
from elastic_core.api.commands import StoreChoice, echo
from elastic_core.api.records import run_places
from elastic_core.api.tools import user_name
from elastic_ops.logs.follow import STREAMS, HostLogs, LogLine
from elastic_ops.logs.wire import Wanted, ranks_of, text_of
from elastic_ops.run_directories import FoundRun, find_runs, runs_named
from elastic_ops.run_target import complete_run, run_of, run_params, store_asked, store_params

if TYPE_CHECKING:
    from elastic_ops.logs.over_nodes import NodesLogs

api_version = 1

_LOOK_EVERY_S: Final = 0.2
_FOLLOWED_LINES: Final = 10


def _ranks(value: str) -> frozenset[int]:
    if not value.strip():
        raise click.BadParameter("no rank; expected ranks such as 3,17 or 0-7")
    try:
        return ranks_of(value)
    except ValueError as err:
        raise click.BadParameter(str(err)) from err


def _logs(
    target: str | None,
    run: str | None,
    rank: frozenset[int] | None,
    follow: bool,
    stream: str,
    tail: int | None,
    round_index: int | None,
    **options: str | None,
) -> int:
    target = run_of(target, run, options)
    if follow and round_index is not None:
        raise click.UsageError(
            "--round: -f is given too; expected one of both, as -f shows new rounds", click.get_current_context()
        )
    choice = store_asked(options, target)
    runs = _runs(target, choice)
    streams = STREAMS if stream == "both" else (stream,)
    last = _FOLLOWED_LINES if follow and tail is None else tail
    here = HostLogs([run.path for run in runs], ranks=rank, streams=streams, last=last)
    reader = f"{user_name()}@{os.uname().nodename}"
    wanted = Wanted(reader=reader, streams=streams, last=last, round_index=round_index, follow=follow)
    show = _Shown(alone=rank is not None and len(rank) == 1 and len(streams) == 1)
    with ExitStack() as held:
        others = None if choice is None else _others(choice, runs, rank, wanted, held)
        if follow:
            _follow(here, others, show, lambda: _notes_while_following(here, others, rank, choice))
        else:
            for line in chain(here.once(round_index), () if others is None else others.once()):
                show.line(line)
    for note in _notes(here, others, rank, choice):
        show.note(note)
    if choice is not None and not (show.count or show.noted or runs):
        show.note(f"run {choice.run_id!r}: no node has workers")
    return 0 if show.count or not show.noted else 2


def _others(
    choice: StoreChoice, runs: list[FoundRun], ranks: Collection[int] | None, wanted: Wanted, held: ExitStack
) -> "NodesLogs | None":
    """Return the logs of the run's other nodes. `None` if the store no longer has the run: only this host has logs."""
    from elastic_ops.logs.over_nodes import NodesLogs, RunPlaces

    places = held.enter_context(closing(RunPlaces(choice)))
    try:
        places.look()
    except ConfigError:
        if not runs:
            raise
        return None
    here = {run.status.node_id for run in runs if run.status is not None}
    return NodesLogs(places, ranks=ranks, here=here, wanted=wanted)


def _follow(here: HostLogs, others: "NodesLogs | None", show: "_Shown", notes: Callable[[], Collection[str]]) -> None:
    """Print new lines, and each note as soon as it is known, since the next line may come hours later."""
    pause, live = WaitBudget(), [here.follow(), *([] if others is None else [others.follow()])]
    try:
        while live:
            for source in tuple(live):
                for line in source:
                    if line is None:
                        break
                    show.line(line)
                else:
                    live.remove(source)
            sys.stdout.flush()
            while others is not None and others.notes:
                show.note(others.notes.pop(0))
            if live:
                for note in notes():
                    show.note(note, final=False)
                pause.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:  # how one stops to follow
        return


class _Shown:
    """Lines for people. `alone`: all are from one stream of one worker."""

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self.count = 0
        self.noted = False
        """Something that was asked for could not be shown, and that was said."""
        self._notes: set[str] = set()

    def line(self, line: LogLine) -> None:
        self.count += 1
        mark = "" if line.stream == "stdout" else " err"
        echo(line.text if self._alone else f"[{line.global_rank}{mark}]: {line.text}")

    def note(self, text: str, *, final: bool = True) -> None:
        """Print a note once. If it is not `final`, the missing lines may still come."""
        self.noted = self.noted or final
        if text not in self._notes:
            self._notes.add(text)
            echo(text, err=True)


# --- which run


def _runs(target: str | None, choice: StoreChoice | None) -> list[FoundRun]:
    """Return the run's directories on this host.

    Raises:
        ConfigError: there is none, or several runs match.
    """
    if choice is not None:
        found = [run for run in find_runs() if run.status is not None and run.status.run_id == choice.run_id]
        return _latest(found)
    if target is not None:
        return _latest(runs_named(target))
    alive = [run for run in find_runs() if run.running and run.status is not None]
    ids = sorted({run.status.run_id for run in alive if run.status is not None})
    if len(ids) == 1:
        return alive
    if ids:
        raise ConfigError(
            f"RUN: {len(ids)} runs are on this host ({', '.join(map(repr, ids))}); expected one",
            hint="elastic logs RUN",
        )
    raise ConfigError(
        f"no agent of this user runs on this host (directories: {run_places()})",
        hint="elastic runs, then elastic logs RUN",
    )


def _latest(found: list[FoundRun]) -> list[FoundRun]:
    """Return the live agents, or those of the run that ended last."""
    alive = [run for run in found if run.running]
    if alive or not found:
        return alive
    meeting = _meeting(found[-1])
    return [run for run in found[:-1] if meeting is not None and _meeting(run) == meeting] + found[-1:]


def _meeting(run: FoundRun) -> tuple[int, str, int] | None:
    """Return the values that nodes of one run on this host have in common."""
    if run.status is None or run.status.round is None:
        return None
    return (run.status.round.token, run.status.round.master_addr, run.status.round.master_port)


# --- what is not here


def _notes_while_following(
    here: HostLogs, others: "NodesLogs | None", ranks: Collection[int] | None, choice: StoreChoice | None
) -> list[str]:
    """Return notes about ranks that are waited for."""
    if not here.found_ranks and not (others is not None and others.ranks):
        return ["no worker has been started yet: waiting for the first"]
    return _notes(here, others, ranks, choice)


def _notes(
    here: HostLogs, others: "NodesLogs | None", ranks: Collection[int] | None, choice: StoreChoice | None
) -> list[str]:
    """Return notes about requested ranks that were not shown."""
    notes = []
    if without := here.without_file | (set() if others is None else others.without_file):
        hint = "Try: elastic run with --tee 3 or --redirects 3"
        notes.append(f"rank {text_of(without)}: its output goes to its agent's console. {hint}")
    if others is not None:
        notes += others.notes
    if missing := set(ranks or ()) - here.found_ranks - (set() if others is None else others.ranks):
        shown = f"here: {text_of(here.found_ranks)}" if here.found_ranks else "no rank is"
        not_here = f"rank {text_of(missing)} is not on this host ({shown})"
        if others is not None:
            notes.append(f"rank {text_of(missing)}: the run has no such rank. Try: elastic status lists its ranks")
        elif choice is not None:
            notes.append(f"{not_here}, and the store does not know the run any more")
        else:
            notes.append(f"{not_here}. Try: the run's --rdzv options say where it is")
    return notes


_HELP = """\
Show the log files of workers (--redirects, --tee); -f follows them.

RUN is the id of a run on this host, or its run directory; without RUN, the run on this host. With the --rdzv options of
a run, or with a Slurm job number as RUN, the logs of other hosts are read too, by TCP at each agent's --agent-port. The
last round of each worker is shown, including rotated files. Lines are complete, without terminal control characters.
"""
_EPILOG = """\b
Examples:
  elastic logs
  elastic logs -f --rank 3,17 bert-7
  elastic logs --rank 0-7 --stream stderr --tail 50 bert-7
  elastic logs -f --rank 17 --rdzv-backend redis --rdzv-endpoint redis.example:6379 bert-7

Exit codes: 0; 2 usage, no such run, or no log of the requested ranks can be read; 3 plugin; 4 the store cannot be
reached or read.
"""

command = click.Command(
    "logs",
    callback=_logs,
    params=[
        click.Argument(["target"], metavar="[RUN]", required=False, shell_complete=complete_run),
        click.Option(
            ["-r", "--rank"], type=_ranks, metavar="RANKS", help="Only these global ranks, such as 3,17 or 0-7."
        ),
        click.Option(["-f", "--follow"], is_flag=True, help="Show new lines, across restarts, until the run ends."),
        click.Option(
            ["--stream"],
            type=click.Choice([*STREAMS, "both"]),
            default="both",
            show_default=True,
            help="Stream to show.",
        ),
        click.Option(
            ["-n", "--tail"],
            type=click.IntRange(0),
            metavar="LINES",
            help="Last lines of each file to show.  [default: all; with -f 10]",
        ),
        click.Option(
            ["--round", "round_index"],
            type=click.IntRange(0),
            metavar="N",
            help="Round to show.  [default: the last]",
        ),
        *run_params(),
        *store_params(),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
