"""Which run is meant: the options and the argument that `elastic status` and `elastic incidents` share."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from elastic_core.api import ConfigError, StoreChoice, chosen_store, duration_s, find_runs, run_option

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_HELP: Final = {
    "rdzv_backend": "The run's rendezvous backend: look into its store (redis, etcd, c10d, …).",
    "rdzv_endpoint": "Where the backend is, as the run's nodes were told.",
    "rdzv_id": "Name of the run.",
    "rdzv_conf": "Options of the backend, such as password_file=PATH.",
    "connect_timeout": "How long to wait for the backend's server; default 5.",
}


def duration(least_s: float = 0.0) -> Callable[[object], float]:
    """Return what reads an option that is a time, as `elastic run` takes it: seconds, or with a unit."""

    def seconds(value: object) -> float:
        read = duration_s(str(value))
        if read is None or read <= 0 or read < least_s:
            least = f"{least_s:g} or more" if least_s else "more than 0"
            raise click.BadParameter(f"{value!r} is not seconds, {least}, or a time as 30s, 5m or 1h")
        return read

    return seconds


def store_params() -> list[click.Parameter]:
    """Return the options that choose a store, spelled as those of `elastic run`."""
    return [run_option(dest, help_text=f"{text}  [PET_{dest.upper()}]") for dest, text in _HELP.items()]


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Offer the ids of this machine's runs, or else directories."""
    from click.shell_completion import CompletionItem

    try:
        ids = {run.status.run_id for run in find_runs() if run.status is not None}
    except ConfigError:  # told when the command is run
        ids = set()
    fits = [CompletionItem(run_id) for run_id in sorted(ids) if run_id.startswith(incomplete)]
    return fits or [CompletionItem(incomplete, type="dir")]


def store_asked(options: dict[str, str | None], target: str | None) -> StoreChoice | None:
    """Return the store that was asked for; None: this machine's run directories.

    With a backend, the run that was named is the run's id there.

    Raises:
        ConfigError: a part is missing or malformed.
        click.UsageError: two runs were named, or a run of this machine with an option of a store.
    """
    given = {dest: text for dest, text in options.items() if text is not None}
    if target is None:
        return chosen_store(given, os.environ)
    if "rdzv_backend" in given and "rdzv_id" not in given:
        return chosen_store({**given, "rdzv_id": target}, os.environ)
    if given:
        named = ", ".join(f"--{dest.replace('_', '-')}" for dest in given)
        raise click.UsageError(
            f"{target!r} is a run on this machine, and {named} a run in a store", click.get_current_context()
        )
    return None
