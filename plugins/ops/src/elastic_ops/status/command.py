"""Show what a run is doing, on this machine or in its store."""

import gc
import os
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import click
from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, ConfigError, WaitBudget, duration_s
from elastic_core.api.commands import StoreChoice, echo, echo_json
from elastic_core.api.records import run_places
from elastic_core.api.rendezvous import RendezvousConnectionError
from elastic_ops.run_directories import FoundRun, find_runs, run_at, runs_named
from elastic_ops.run_target import (
    NoSuchRunError,
    complete_run,
    duration,
    is_here,
    run_of,
    run_params,
    store_asked,
    store_params,
)
from elastic_ops.status.history import page_of_history
from elastic_ops.status.ledger_line import LEDGER
from elastic_ops.status.page import Page, page_of_run, page_of_runs, plain
from elastic_ops.status.store_history import rounds_in_store
from elastic_ops.status.store_view import NO_NODE, RunInStore
from elastic_ops.status.view import RunView, StatusDocument, StoreView, iso_time, view_of_directory
from elastic_ops.store import StoreReader

if TYPE_CHECKING:
    from elastic_ops.status.live_ledger import LiveLedgers

api_version = 1

_LIKE_DURATION: Final = re.compile(r"[\d.]+[A-Za-z]{0,7}")
"""A mistyped duration, such as `5min`. A run id such as `817d675a` is none."""
_STORE_GONE: Final = "gone with its store"
_OVER: Final = ("agent dead", "unknown", _STORE_GONE, NO_NODE)
MIN_WATCH_S: Final = 0.1
WATCH: Final = "2"
"""The value of `--watch` without one."""


class Source(Protocol):
    """A source of runs."""

    def look(self) -> tuple[RunView, ...]:
        """Return the current state of the runs."""
        ...

    def nothing(self) -> str:
        """Return the text to print if there is no run."""
        ...


class StoreSource:
    """One run in a store. After the first read, an unreachable server is shown and is no error."""

    def __init__(self, choice: StoreChoice, *, history: bool = False) -> None:
        """Choose the plugin; connect to nothing. `history`: add the rounds of the run to its view."""
        self._reader = StoreReader(choice)
        self._history = history
        self._last: RunView | None = None
        self._away_since = ""
        self._since: dict[str, tuple[str, str]] = {}

    def look(self) -> tuple[RunView, ...]:
        """Read the store."""
        try:
            reading = self._reader.read()
        except RendezvousConnectionError as err:
            if self._last is None:
                raise
            self._away_since = self._away_since or _now()
            store = StoreView(
                where=self._reader.where,
                reachable=False,
                unreachable_since=self._away_since,
                trouble=err.what.removeprefix(f"{self._reader.where}: "),
            )
            # A node of the run kept it, and took it along: it won't come back for this run.
            state = _STORE_GONE if self._reader.hosted_by_member else self._last.state
            return (replace(self._last, store=store, state=state),)
        self._away_since = ""
        run = RunInStore(reading, self._reader.choice, self._reader.where)
        view = run.view()
        if self._history:
            view = replace(view, rounds=rounds_in_store(run.run, _agents_here(view)))
        self._last = replace(
            view, nodes=tuple(replace(node, since=self._seen(node.node_id, node.state)) for node in view.nodes)
        )
        return (self._last,)

    def _seen(self, node: str, state: str) -> str:
        """Return since when a node has been seen in a state, as a store has no times. Empty if since the first read."""
        known = self._since.get(node)
        if known is None or known[0] != state:
            self._since[node] = known = (state, _now() if self._last is not None else "")
        return known[1]

    def nothing(self) -> str:
        """Return nothing: a store without the run is an error."""
        return ""

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()


class NamedSource:
    """Run directories that were given by path or by the run's id."""

    def __init__(self, target: str) -> None:
        """Find them."""
        runs = runs_named(target)
        alive = [run for run in runs if run.running]
        self._paths = [Path(run.path) for run in alive or runs[-1:]]
        self._had_status: set[Path] = set()

    def look(self) -> tuple[RunView, ...]:
        """Read them again. If a directory is gone, or its status is (which is removed first), the run has succeeded."""
        found = [run_at(path) for path in self._paths if path.is_dir()]
        self._had_status.update(Path(run.path) for run in found if run.status is not None)
        left = (run for run in found if run.status is not None or Path(run.path) not in self._had_status)
        return tuple(map(view_of_directory, left))

    def nothing(self) -> str:
        """Return that it is gone."""
        return "its run directory is gone: the run has ended, without a failure that would have kept it"


class RememberedSource:
    """A run in the store that a variable names, or its run directories if that store does not have it."""

    def __init__(self, store: StoreSource, target: str) -> None:
        """Read the store first."""
        self._source: Source = store
        self._target = target

    def look(self) -> tuple[RunView, ...]:
        """Read the one that has the run."""
        try:
            return self._source.look()
        except NoSuchRunError:
            self._source = NamedSource(self._target)
        return self._source.look()

    def nothing(self) -> str:
        """Return that one's text."""
        return self._source.nothing()


class MachineSource:
    """The running agents of this user on this machine."""

    def look(self) -> tuple[RunView, ...]:
        """Find them again."""
        return tuple(view_of_directory(run) for run in find_runs() if run.running)

    def nothing(self) -> str:
        """Return where agents were searched, and what else was found."""
        kept: list[FoundRun] = find_runs()
        more = ""
        if kept:
            count = "1 run directory is" if len(kept) == 1 else f"{len(kept)} run directories are"
            more = f"; {count} kept there: elastic incidents"
        return f"no agent of this user runs on this host (directories: {run_places()}){more}"


class CurrentLedgers:
    """Replaces the ledgers that agents here have published, up to a minute ago, by their current ones, for a text."""

    def __init__(self) -> None:
        """Request nothing yet."""
        self._live: LiveLedgers | None = None

    def of(self, runs: Sequence[RunView]) -> Sequence[RunView]:
        """Return the views with the current ledgers."""
        if self._live is None:
            if not any(LEDGER in run.hooks for run in runs):
                return runs
            from elastic_ops.status.live_ledger import LiveLedgers  # HTTP is slow to import

            self._live = LiveLedgers()
        return self._live.of(runs)


def _agents_here(view: RunView) -> list[FoundRun]:
    """Return the running agents of a run on this machine."""
    try:
        found = find_runs()
    except ConfigError:  # no place for run directories
        return []
    same = (view.run_id, view.backend)
    return [run for run in found if run.status is not None and (run.status.run_id, run.status.backend) == same]


def _status(
    target: str | None, run: str | None, as_json: bool, watch: float | None, history: bool, **options: str | None
) -> int:
    if history and watch is not None:
        text = "--history: --watch is given too; expected one of both"
        raise click.UsageError(text, click.get_current_context())
    target = run_of(target, run, options)
    choice = store_asked(options, target)
    with ExitStack() as cleanup:
        source: Source
        if choice is not None:
            stored = StoreSource(choice, history=history)
            cleanup.callback(stored.close)
            source = RememberedSource(stored, target) if target is not None and is_here(options, target) else stored
        else:
            source = MachineSource() if target is None else NamedSource(target)
        if watch is not None:
            on_screen = not as_json and _can_show_screen()
            show = _watch_on_screen if on_screen else _watch
            return show(source, watch, as_json=as_json, in_full=target is not None)
        runs = source.look()
        if as_json:
            _write_json(runs)
        elif not runs:
            echo(source.nothing())
        else:
            echo(*_text(_histories(runs) if history else _pages(runs, in_full=target is not None)))
        return 0


def _watch(source: Source, every_s: float, *, as_json: bool, in_full: bool) -> int:
    """Read and print repeatedly until the run is over, or Ctrl-C."""
    gc.enable()
    pause = WaitBudget()
    ledgers = CurrentLedgers()
    try:
        while True:
            runs = source.look()
            if as_json:
                _write_json(runs)
            else:
                echo(*_text(_pages(runs, in_full=in_full, ledgers=ledgers)) if runs else [source.nothing()], "")
            sys.stdout.flush()
            if _all_over(runs):
                return 0
            pause.sleep(every_s)
    except KeyboardInterrupt:  # how a watch ends
        return 0


def _watch_on_screen(source: Source, every_s: float, *, as_json: bool, in_full: bool) -> int:
    """Show a screen until the run is over, then print its last state; or until Ctrl-C or `q`."""
    from elastic_ops.status.live import watch_on_screen  # rich is slow to import

    gc.enable()
    try:
        runs = watch_on_screen(source, every_s, in_full=in_full, over=_all_over)
    except KeyboardInterrupt:
        return 0
    if runs is not None:
        echo(*_text(_pages(runs, in_full=in_full)) if runs else [source.nothing()])
    return 0


def _can_show_screen() -> bool:
    """Return whether stdout is a terminal that has a screen."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def _all_over(runs: Sequence[RunView]) -> bool:
    return all(map(_over, runs))


def _over(run: RunView) -> bool:
    return run.verdict is not None or run.state in _OVER


def _pages(runs: Sequence[RunView], *, in_full: bool, ledgers: CurrentLedgers | None = None) -> list[Page]:
    """Return a page for each agent of a named run, or a list of all runs here."""
    in_full = in_full or len(runs) == 1
    if in_full:
        runs = (ledgers or CurrentLedgers()).of(runs)
    now_ns = SYSTEM_CLOCK.wall_ns()
    if in_full:
        return [page_of_run(run, now_ns=now_ns) for run in runs]
    return [page_of_runs(runs, now_ns=now_ns)]


def _histories(runs: Sequence[RunView]) -> list[Page]:
    now_ns = SYSTEM_CLOCK.wall_ns()
    width = max(80, min(120, shutil.get_terminal_size((80, 24)).columns))
    return [page_of_history(run, now_ns=now_ns, width=width) for run in runs]


def _text(pages: Sequence[Page]) -> list[str]:
    return "\n\n".join(map(plain, pages)).split("\n")


def _write_json(runs: Sequence[RunView]) -> None:
    echo_json(StatusDocument(runs=tuple(runs)))


def _now() -> str:
    return iso_time(SYSTEM_CLOCK.wall_ns())


_HELP = """\
Show the state of a run: nodes and ranks, round, restarts, the last incident, the store.

RUN is a run directory, or the id of a run on this machine, with all its agents here; without RUN, the running agents of
this user on this machine are listed. With the --rdzv options, or PET_RDZV_BACKEND in the environment, the run (RUN, or
--rdzv-id) is read from its store, from any host that reaches the store. RUN may be a Slurm job number too. The command
changes nothing.
"""
_EPILOG = """\b
Examples:
  elastic status
  elastic status --watch bert-7
  elastic status --history bert-7
  elastic status --rdzv-backend redis --rdzv-endpoint redis.example:6379 bert-7
  elastic status --json /run/user/1000/elastic-1000/bert-7-6364b286

Exit codes: 0; 2 usage, or no such run; 3 plugin; 4 the store cannot be reached or read.
"""


class _StatusCommand(click.Command):
    """Gives `--watch` its default if no duration follows it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add the default."""
        words = list(args)
        options = words[: words.index("--")] if "--" in words else words
        for at in reversed(range(len(options))):
            follows = options[at + 1] if at + 1 < len(options) else ""
            if (
                options[at] in ("-w", "--watch")
                and duration_s(follows) is None
                and not _LIKE_DURATION.fullmatch(follows)
            ):
                words[at : at + 1] = [options[at], WATCH]
        return super().parse_args(ctx, words)


command = _StatusCommand(
    "status",
    callback=_status,
    params=[
        click.Argument(["target"], metavar="[RUN]", required=False, shell_complete=complete_run),
        *run_params(),
        *store_params(),
        click.Option(
            ["-w", "--watch"],
            metavar="[SECONDS]",
            type=duration(MIN_WATCH_S),
            help=f"Update every SECONDS (default {WATCH}) until the run is over; on a terminal, a screen (q quits).",
        ),
        click.Option(
            ["--history"],
            is_flag=True,
            help="Show all known rounds: time, size, why each ended, and the nodes that joined, left or were lost.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON; with --watch, one line per update."),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
