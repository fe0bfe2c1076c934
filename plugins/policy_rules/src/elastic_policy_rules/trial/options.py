"""The common parameters of both commands of `elastic policy`: a rule file, or the name of a policy with its options."""

from typing import Final

import click

from elastic_core.api.commands import run_option

_POLICY_OPTIONS: Final = (
    "policy",
    "policy_conf",
    "max_restarts",
    "restart_window",
    "restart_backoff",
    "fatal_exit_codes",
    "same_failure_limit",
    "nnodes",
)


def policy_parameters() -> list[click.Parameter]:
    """Return the argument FILE, and the options of `elastic run` for building a policy."""
    file = click.Argument(["file"], metavar="[FILE]", required=False)
    return [file, *(run_option(name, other_spelling=False) for name in _POLICY_OPTIONS)]
