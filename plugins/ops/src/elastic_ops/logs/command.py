"""Show what workers of this host have written to their log files; -f follows them over restarts."""

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import click

from elastic_core.api import (
    ConfigError,
    FoundRun,
    StoreChoice,
    StoreReader,
    WaitBudget,
    echo,
    find_runs,
    rank_ranges,
    run_places,
    runs_named,
)
from elastic_ops.logs.follow import STREAMS, HostLogs, LogLine
from elastic_ops.run_target import complete_run, store_asked, store_params
from elastic_ops.status.view import NodeView
from elastic_ops.stored_run import RunInStore

api_version = 1

_LOOK_EVERY_S: Final = 0.2
_FOLLOWED_LINES: Final = 10
_MOST_RANKS: Final = 100_000


def _ranks(value: str) -> frozenset[int]:
    """Return the ranks of a text such as `3,17` or `0-7,12`."""
    found: set[int] = set()
    for part in value.split(","):
        first, dash, last = (each.strip() for each in part.partition("-"))
        if not (first.isdecimal() and (last.isdecimal() if dash else not last)):
            raise click.BadParameter(f"{part.strip()!r} is no rank: needed are some, as 3,17 or 0-7")
        low, high = int(first), int(last or first)
        if high < low or high - low >= _MOST_RANKS:
            raise click.BadParameter(f"{part.strip()!r} is no range of ranks")
        found |= set(range(low, high + 1))
    return frozenset(found)


def _logs(
    target: str | None,
    rank: frozenset[int] | None,
    follow: bool,
    stream: str,
    tail: int | None,
    round_index: int | None,
    **options: str | None,
) -> int:
    if follow and round_index is not None:
        raise click.UsageError("--round is about one that was, -f about those that come", click.get_current_context())
    choice = store_asked(options, target)
    runs = _runs(target, choice)
    streams = STREAMS if stream == "both" else (stream,)
    last = _FOLLOWED_LINES if follow and tail is None else tail
    logs = HostLogs(runs, ranks=rank, streams=streams, last=last)
    show = _Shown(alone=rank is not None and len(rank) == 1 and len(streams) == 1)
    if follow:
        _follow(logs, show)
    else:
        for line in logs.once(round_index):
            show.line(line)
    elsewhere = () if rank is None else sorted(rank - logs.found_ranks)
    notes = [*_of_console(logs), *_of_elsewhere(elsewhere, logs.found_ranks, choice)]
    if not runs and rank is None:
        notes = [f"no run {choice.run_id!r} on this host" if choice is not None else "", *_nodes_of(choice)]
    echo(*filter(None, notes), err=True)
    return 0 if show.count or not notes else 2


def _follow(logs: HostLogs, show: "_Shown") -> None:
    pause = WaitBudget()
    try:
        for line in logs.follow():
            if line is not None:
                show.line(line)
            else:
                sys.stdout.flush()
                pause.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:  # how one stops to follow
        return


class _Shown:
    """Lines for people; `alone`: all are of one worker's one stream."""

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self.count = 0

    def line(self, line: LogLine) -> None:
        self.count += 1
        mark = "" if line.stream == "stdout" else " err"
        echo(line.text if self._alone else f"[{line.global_rank}{mark}]: {line.text}")


# --- which run


def _runs(target: str | None, choice: StoreChoice | None) -> list[FoundRun]:
    """Return the run's directories on this host.

    Raises:
        ConfigError: there is none, or it is not clear which run is meant.
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
        raise ConfigError(f"{len(ids)} runs are here: {', '.join(map(repr, ids))}", hint="elastic logs RUN")
    raise ConfigError(
        f"no agent of this user runs here (looked in {run_places()})", hint="elastic runs, then elastic logs RUN"
    )


def _latest(found: list[FoundRun]) -> list[FoundRun]:
    """Return the agents that are alive; or else those of the run that ended last."""
    alive = [run for run in found if run.running]
    if alive or not found:
        return alive
    meeting = _meeting(found[-1])
    return [run for run in found[:-1] if meeting is not None and _meeting(run) == meeting] + found[-1:]


def _meeting(run: FoundRun) -> tuple[int, str, int] | None:
    """Return what nodes of one run on this host have in common."""
    if run.status is None or run.status.round is None:
        return None
    return (run.status.round.token, run.status.round.master_addr, run.status.round.master_port)


# --- what is not here


def _text(ranks: Iterable[int]) -> str:
    return rank_ranges(ranks).replace(" ", "")


def _of_console(logs: HostLogs) -> list[str]:
    if not logs.without_file:
        return []
    ranks = _text(sorted(logs.without_file))
    return [f"rank {ranks}: its output goes to its agent's console. Try: elastic run with --tee 3 or --redirects 3"]


def _of_elsewhere(ranks: Sequence[int], here: Collection[int], choice: StoreChoice | None) -> list[str]:
    if not ranks:
        return []
    if choice is None:
        shown = f"here: {_text(sorted(here))}" if here else "no rank is"
        return [f"rank {_text(ranks)} is not on this host ({shown}). Try: the run's --rdzv options say where it is"]
    nodes = _nodes(choice)
    lines = []
    for node in nodes:
        first = node.first_rank or 0
        own = [rank for rank in ranks if first <= rank < first + node.worker_count]
        if own:
            lines.append(_there(_text(own), node, choice))
    known = {rank for node in nodes for rank in range(node.first_rank or 0, (node.first_rank or 0) + node.worker_count)}
    missing = [rank for rank in ranks if rank not in known]
    return [*lines, *([f"rank {_text(missing)}: the run has no such rank"] if missing else [])]


def _there(ranks: str, node: NodeView, choice: StoreChoice) -> str:
    where = f"{node.node_id} ({node.address})" if node.address and node.address not in node.node_id else node.node_id
    return f"rank {ranks} is on node {where}. Try: there, elastic logs {choice.run_id} --rank {ranks}"


def _nodes_of(choice: StoreChoice | None) -> list[str]:
    if choice is None:
        return []
    ends = ((node, (node.first_rank or 0) + node.worker_count - 1) for node in _nodes(choice))
    return [_there(_text(range(node.first_rank or 0, last + 1)), node, choice) for node, last in ends]


def _nodes(choice: StoreChoice) -> tuple[NodeView, ...]:
    reader = StoreReader(choice)
    try:
        view = RunInStore(reader.read(), choice, reader.where).view()
    finally:
        reader.close()
    return tuple(node for node in view.nodes if node.first_rank is not None)


_HELP = """\
Show what workers of this host have written to their log files (--redirects, --tee), or with -f what they write.

RUN is the id of a run on this host, or its run directory; without it, the one that runs here. Of each worker the last
round is shown, rotated files included. Lines are whole, and cleaned of what steers a terminal. Where ranks are that are
on other hosts it says with the --rdzv options of the run.
"""
_EPILOG = """\b
Examples:
  elastic logs
  elastic logs -f --rank 3,17 bert-7
  elastic logs --rank 0-7 --stream stderr --tail 50 bert-7
  elastic logs --rank 17 --rdzv-backend redis --rdzv-endpoint redis.example:6379 bert-7

Exit codes: 0; 2 usage, no such run, or nothing of the ranks that were asked for is here; 3 plugin; 4 the store can't be
reached or read.
"""

command = click.Command(
    "logs",
    callback=_logs,
    params=[
        click.Argument(["target"], metavar="[RUN]", required=False, shell_complete=complete_run),
        click.Option(["-r", "--rank"], type=_ranks, metavar="RANKS", help="Of these global ranks, as 3,17 or 0-7."),
        click.Option(["-f", "--follow"], is_flag=True, help="Show what comes, over restarts, until the run ends."),
        click.Option(
            ["--stream"],
            type=click.Choice([*STREAMS, "both"]),
            default="both",
            show_default=True,
            help="Which of a worker's streams.",
        ),
        click.Option(
            ["-n", "--tail"],
            type=click.IntRange(0),
            metavar="LINES",
            help="So many last lines of each file; default: all, with -f 10.",
        ),
        click.Option(
            ["--round", "round_index"],
            type=click.IntRange(0),
            metavar="N",
            help="Of this round, in place of the last.",
        ),
        *store_params(),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
