"""The common options of `elastic stop` and `elastic drain`, and the requesting user."""

import os

import click

from elastic_core.api import duration_s
from elastic_core.api.tools import user_name
from elastic_ops.run_target import store_params

DEFAULT_TIMEOUT_S = 60.0


def _time(value: str) -> float:
    read = duration_s(value)
    if read is None:
        raise click.BadParameter(f"{value!r}; expected seconds, 0 or more, or a time as 30s, 5m or 1h")
    return read


def ending_params() -> list[click.Parameter]:
    """Return the options of both commands."""
    return [
        *store_params(),
        click.Option(
            ["--deadline"],
            metavar="TIME",
            type=_time,
            help="How long workers may take to save and exit.  [default: the run's own options]",
        ),
        click.Option(
            ["--timeout"],
            metavar="TIME",
            type=_time,
            default=f"{DEFAULT_TIMEOUT_S:g}",
            show_default=True,
            help="How long to wait for the end; 0: do not wait.",
        ),
        click.Option(["--user"], metavar="NAME", help="Owner of the run in the store, if it is another user."),
    ]


def asker(command: str) -> str:
    """Return the requesting user and command, for people."""
    return f"{user_name()}@{os.uname().nodename} (elastic {command})"
