"""The run of a command: the common options and argument of this distribution's commands."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import click

from elastic_core.api import ConfigError, duration_s
from elastic_core.api.commands import StoreChoice, chosen_store, run_option
from elastic_ops.jobs import has_runs, options_of_job
from elastic_ops.run_directories import find_runs

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

WITHOUT_STORE: Final = ("local", "static")
"""Backends without a store."""
_BACKEND: Final = "PET_RDZV_BACKEND"
_HELP: Final = {
    "rdzv_backend": "Rendezvous backend of the run (redis, etcd, c10d, …): read the run from its store.",
    "rdzv_endpoint": "Address of the backend, as on the run's nodes.",
    "rdzv_id": "Run id.",
    "rdzv_conf": "Options of the backend, such as password_file=PATH.",
    "connect_timeout": "How long to wait for the backend's server.  [default: 5]",
}


def duration(least_s: float = 0.0) -> Callable[[object], float]:
    """Return the parser of a duration option, as in `elastic run`: seconds, or with a unit."""

    def seconds(value: object) -> float:
        read = duration_s(str(value))
        if read is None or read <= 0 or read < least_s:
            least = f"{least_s:g} or more" if least_s else "more than 0"
            raise click.BadParameter(f"{value!r}; expected seconds, {least}, or a time as 30s, 5m or 1h")
        return read

    return seconds


def run_params() -> list[click.Parameter]:
    """Return the option that names a run as the argument RUN does."""
    return [
        click.Option(
            ["--run"], metavar="RUN", shell_complete=complete_run, help="The run, as RUN: by its id or directory."
        )
    ]


def run_of(target: str | None, run: str | None, options: dict[str, str | None]) -> str | None:
    """Return the run from RUN or `--run`, or `None`.

    Without a store in the options, `--rdzv-id` names it too; it is then removed from `options`.

    Raises:
        click.UsageError: two runs were named.
    """
    if target is not None and run not in (None, target):
        what = f"RUN {target!r} and --run {run!r} name two runs; expected one"
        raise click.UsageError(what, click.get_current_context())
    named = run if target is None else target
    if list(typed_options(options)) == ["rdzv_id"] and not names_store({}) and named in (None, options["rdzv_id"]):
        named, options["rdzv_id"] = options["rdzv_id"], None
    return named


def store_params() -> list[click.Parameter]:
    """Return the options that choose a store, spelled as those of `elastic run`."""
    return [run_option(dest, help_text=f"{text}  [PET_{dest.upper()}]") for dest, text in _HELP.items()]


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Return the ids of this machine's runs for completion, or else directories."""
    from click.shell_completion import CompletionItem

    try:
        ids = {run.status.run_id for run in find_runs() if run.status is not None}
    except ConfigError:  # reported when the command is run
        ids = set()
    fits = [CompletionItem(run_id) for run_id in sorted(ids) if run_id.startswith(incomplete)]
    return fits or [CompletionItem(incomplete, type="dir")]


class NoSuchRunError(ConfigError):
    """The store has no run of that id."""


def no_such_run(run_id: str, where: str) -> NoSuchRunError:
    """Return the error for a store without this run."""
    return NoSuchRunError(
        f"no run {run_id!r} in {where}",
        hint="the --rdzv-id that its nodes were started with; a run that is over is forgotten after a while",
    )


def store_asked(options: Mapping[str, str | None], target: str | None) -> StoreChoice | None:
    """Return the store from which the run is read. `None` means this host's run directories.

    An option of the store has precedence over `PET_RDZV_BACKEND`, whether or not the run is named by its id. If agents
    of that id run here with another backend, they override the variable. Without both, a run named by the number of a
    scheduler's job is read from the job's store.

    Raises:
        ConfigError: a part is missing or malformed, or the job has no run in a store.
        click.UsageError: two runs were named.
    """
    given = typed_options(options)
    if target is None:
        return chosen_store(given, os.environ)
    if job := options_of_job(target, given):
        return chosen_store({**job, **given}, os.environ)
    if given.get("rdzv_id") not in (None, target):
        raise click.UsageError(
            f"RUN {target!r} and --rdzv-id {given['rdzv_id']!r} name two runs; expected one",
            click.get_current_context(),
        )
    if not given:
        if os.sep in target or not names_store(given):
            return None
        backend = os.environ[_BACKEND].strip()
        met = {run.status.backend for run in find_runs() if run.running and run.status and run.status.run_id == target}
        if met and backend not in met:
            return None
    return chosen_store({**given, "rdzv_id": target}, os.environ)


def is_here(options: Mapping[str, str | None], target: str | None) -> bool:
    """Return whether this host has directories of a run that is missing in a store that only a variable named.

    A run of one node leaves nothing in a store, and a store forgets a run that is over.
    """
    return target is not None and not typed_options(options) and has_runs(target)


def names_store(options: Mapping[str, str | None]) -> bool:
    """Return whether options name a store, or else `PET_RDZV_BACKEND` does."""
    return bool(typed_options(options)) or (os.environ.get(_BACKEND) or "").strip() not in ("", *WITHOUT_STORE)


def typed_options(options: Mapping[str, str | None]) -> dict[str, str]:
    """Return the options of a command that its user typed."""
    return {dest: text for dest, text in options.items() if text is not None}
