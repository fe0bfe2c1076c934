"""Show what a run is doing, on this machine or in its store."""

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

import click
from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, WaitBudget
from elastic_core.api.commands import StoreChoice, echo, echo_json, run_places
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
from elastic_ops.status.live import live, show, wanted
from elastic_ops.status.page import Page, page_of_run, page_of_runs, plain
from elastic_ops.status.store_view import NO_NODE, RunInStore
from elastic_ops.status.view import RunView, StatusDocument, StoreView, iso_time, view_of_directory
from elastic_ops.store import StoreReader

api_version = 1

_STORE_GONE: Final = "gone with its store"
_OVER: Final = ("agent dead", "unknown", _STORE_GONE, NO_NODE)
MIN_WATCH_S: Final = 0.1


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

    def __init__(self, choice: StoreChoice) -> None:
        """Choose the plugin; connect to nothing."""
        self._reader = StoreReader(choice)
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
        view = RunInStore(reading, self._reader.choice, self._reader.where).view()
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


def _status(target: str | None, run: str | None, as_json: bool, watch: float | None, **options: str | None) -> int:
    target = run_of(target, run, options)
    choice = store_asked(options, target)
    with ExitStack() as cleanup:
        source: Source
        if choice is not None:
            stored = StoreSource(choice)
            cleanup.callback(stored.close)
            source = RememberedSource(stored, target) if target is not None and is_here(options, target) else stored
        else:
            source = MachineSource() if target is None else NamedSource(target)
        if watch is not None:
            return _watch(source, watch, as_json=as_json, in_full=target is not None)
        runs = source.look()
        if as_json:
            _write_json(runs)
        elif not runs:
            echo(source.nothing())
        else:
            pages = _pages(runs, in_full=target is not None)
            if wanted():
                show(pages)
            else:
                echo(*_text(pages))
        return 0


def _watch(source: Source, every_s: float, *, as_json: bool, in_full: bool) -> int:
    """Read and print repeatedly until the run is over, or Ctrl-C."""
    gc.enable()
    pause = WaitBudget()
    with ExitStack() as cleanup:
        tell: Callable[[Sequence[Page]], None] = lambda pages: echo(*_text(pages), "")  # noqa: E731
        if not as_json and wanted():
            tell = cleanup.enter_context(live())
        try:
            while True:
                runs = source.look()
                if as_json:
                    _write_json(runs)
                else:
                    tell(_pages(runs, in_full=in_full) if runs else [Page(above=(source.nothing(),))])
                sys.stdout.flush()
                if all(map(_over, runs)):
                    return 0
                pause.sleep(every_s)
        except KeyboardInterrupt:  # how a watch ends
            return 0


def _over(run: RunView) -> bool:
    return run.verdict is not None or run.state in _OVER


def _pages(runs: Sequence[RunView], *, in_full: bool) -> list[Page]:
    """Return a page for each agent of a named run, or a list of all runs here."""
    now_ns = SYSTEM_CLOCK.wall_ns()
    if in_full or len(runs) == 1:
        return [page_of_run(run, now_ns=now_ns) for run in runs]
    return [page_of_runs(runs, now_ns=now_ns)]


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
  elastic status --watch 2 bert-7
  elastic status --rdzv-backend redis --rdzv-endpoint redis.example:6379 bert-7
  elastic status --json /run/user/1000/elastic-1000/bert-7-6364b286

Exit codes: 0; 2 usage, or no such run; 3 plugin; 4 the store cannot be reached or read.
"""

command = click.Command(
    "status",
    callback=_status,
    params=[
        click.Argument(["target"], metavar="[RUN]", required=False, shell_complete=complete_run),
        *run_params(),
        *store_params(),
        click.Option(
            ["-w", "--watch"],
            metavar="SECONDS",
            type=duration(MIN_WATCH_S),
            help="Update every SECONDS until the run is over.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON; with --watch, one line per update."),
    ],
    help=_HELP,
    epilog=_EPILOG,
)
