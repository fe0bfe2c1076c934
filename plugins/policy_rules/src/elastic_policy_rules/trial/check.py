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
    short_help="Say what is wrong with a rule file, or with a policy's options.",
    callback=_check,
    params=policy_parameters(),
    help="Say what is wrong with the rule FILE, or with the options of --policy NAME: all of it, with lines; exit code "
    "2. Else print ok.",
)
