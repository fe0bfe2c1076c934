"""Which run is meant: the options and the argument that `elastic status` and `elastic incidents` share."""

import os
from typing import TYPE_CHECKING, Final

import click

from elastic_core.launcher.store_access import STORE_OPTIONS, StoreChoice, chosen_store
from elastic_core.options.table import BY_DEST

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_HELP: Final = {
    "rdzv_backend": "The run's rendezvous backend: look into its store (redis, etcd, c10d, …).",
    "rdzv_endpoint": "Where the backend is, as the run's nodes were told.",
    "rdzv_id": "Name of the run.",
    "rdzv_conf": "Options of the backend, such as password_file=PATH.",
    "connect_timeout": "How long to wait for the backend's server; default 5.",
}


class _StoreOption(click.Option):
    """An option of `elastic run`: its second spelling works, and need not be read about."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the spelling with dashes, and the help."""
        record = super().get_help_record(ctx)
        return None if record is None else (f"{self.opts[0]} {self.metavar}", record[1])


def store_params() -> list[click.Parameter]:
    """Return the options that choose a store, spelled as those of `elastic run`."""
    params: list[click.Parameter] = []
    for dest in STORE_OPTIONS:
        row = BY_DEST[dest]
        params.append(_StoreOption(list(row.spellings), metavar=row.metavar, help=f"{_HELP[dest]}  [{row.env}]"))
    return params


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Offer the ids of this machine's runs, or else directories."""
    from click.shell_completion import CompletionItem

    from elastic_core.errors import ConfigError
    from elastic_core.rundir.index import find_runs

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
        named = ", ".join(f"--{BY_DEST[dest].name}" for dest in given)
        raise click.UsageError(
            f"{target!r} is a run on this machine, and {named} a run in a store", click.get_current_context()
        )
    return None
