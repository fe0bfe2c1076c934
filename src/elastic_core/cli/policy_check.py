"""`elastic policy check`: every problem of a rule file, or `ok`."""

import click

from elastic_core.cli.output import echo
from elastic_core.cli.policy_options import build_policy, policy_parameters


def _check(file: str | None, **given: str | tuple[str, ...] | None) -> int:
    name, _, warnings = build_policy(file, given)
    for line in warnings:
        echo(line, err=True)
    echo(f"{file or f'policy {name!r}'}: ok")
    return 0


command = click.Command(
    "check",
    callback=_check,
    params=policy_parameters(),
    help="Say what is wrong with the rule FILE, or with the options of --policy NAME: all of it, with lines; exit code "
    "2. Else print ok.",
)
