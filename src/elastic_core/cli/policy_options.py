"""What both commands of `elastic policy` take: a rule file, or the name of a policy with its options."""

from collections.abc import Mapping
from typing import Final

import click
from msgspec.structs import replace

from elastic_core.errors import ConfigError
from elastic_core.failure.handler import FailureHandler
from elastic_core.options.choices import Choices
from elastic_core.options.restart_options import is_file, policy_choice, policy_settings
from elastic_core.options.table import BY_DEST
from elastic_core.plugins.registry import PluginRegistry

_DESTS: Final = (
    "policy",
    "policy_conf",
    "max_restarts",
    "restart_window",
    "restart_backoff",
    "fatal_exit_codes",
    "same_failure_limit",
    "nnodes",
)

Given = Mapping[str, str | tuple[str, ...] | None]


def policy_parameters() -> list[click.Parameter]:
    """Return the argument FILE, and the options of `elastic run` that a policy is built with."""
    parameters: list[click.Parameter] = [click.Argument(["file"], metavar="[FILE]", required=False)]
    for dest in _DESTS:
        row = BY_DEST[dest]
        parameters.append(
            click.Option([f"--{row.name}", dest], multiple=row.many, metavar=row.metavar, help=row.help, default=None)
        )
    return parameters


def build_policy(file: str | None, given: Given) -> tuple[str, FailureHandler, tuple[str, ...]]:
    """Return the policy's name, the policy, and what the user should hear of it.

    Args:
        file: A rule file, in the place of `--policy`.
        given: What the command line gave, by option identifier; None: nothing.

    Raises:
        ConfigError: nothing to try was named, a value is malformed, or the policy refuses its options.
        PluginError: the policy is not installed, or broken.
    """
    chosen = {dest: value for dest, value in given.items() if value}
    if file is not None and "policy" in chosen:
        raise ConfigError(
            f"a rule file {file!r} and --policy {chosen['policy']!r} are two policies", hint="one of them"
        )
    if file is None and "policy" not in chosen:
        raise ConfigError("no policy was named", hint="a rule file, or --policy NAME with --policy-conf K=V")
    if file is not None:
        chosen["policy"] = file if is_file(file) else f"./{file}"
    choices = Choices(chosen, {}, BY_DEST)  # no variables: what is tried out is what is typed
    name, conf = policy_choice(choices)
    registry = PluginRegistry()
    settings = replace(policy_settings(choices), name=name)
    policy = registry.make_policy(name, settings, conf)
    return name, policy, registry.warnings
