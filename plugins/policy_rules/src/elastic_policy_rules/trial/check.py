"""`elastic policy check`: every problem of a rule file, or `ok`."""

import click

from elastic_core.api.commands import chosen_policy, echo
from elastic_policy_rules.trial.options import policy_parameters


def _check(file: str | None, **given: str | tuple[str, ...] | None) -> int:
    name, _, warnings = chosen_policy(given, file=file)
    for line in warnings:
        echo(line, err=True)
    echo(f"{file or f'policy {name!r}'}: ok")
    return 0


command = click.Command(
    "check",
    short_help="Report the errors of a rule file, or of a policy's options.",
    callback=_check,
    params=policy_parameters(),
    help="Report all errors of the rule FILE with their lines, or of the options of --policy NAME, and exit with 2. "
    "Without errors, print ok.",
)
