"""What options of `elastic run` choose, for commands of distributions that take some of them: a policy, a store."""

from collections.abc import Mapping

import click
from msgspec.structs import replace

from elastic_core.errors import ConfigError
from elastic_core.failure.handler import FailureHandler
from elastic_core.options.choices import Choices
from elastic_core.options.restart_options import is_file, policy_choice, policy_settings
from elastic_core.options.table import BY_DEST
from elastic_core.plugins.registry import PluginRegistry

Given = Mapping[str, str | tuple[str, ...] | None]


class _RunOption(click.Option):
    """An option of `elastic run`: its second spelling works, and need not be read about."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the spelling with dashes, and the help."""
        record = super().get_help_record(ctx)
        return None if record is None else (f"{self.opts[0]} {self.metavar}", record[1])


def run_option(name: str, *, help_text: str = "", other_spelling: bool = True) -> click.Option:
    """Return an option of `elastic run`, for a command of a distribution.

    Args:
        name: The option as an identifier, `rdzv_backend`.
        help_text: What it means there; default: what it means for a run.
        other_spelling: Whether `--rdzv_backend` is understood, too.
    """
    option = BY_DEST[name]
    spellings = option.spellings if other_spelling else [f"--{option.flag}"]
    return _RunOption(
        [*spellings, name], multiple=option.many, metavar=option.value_name or None, help=help_text or option.help
    )


def chosen_policy(given: Given, *, file: str | None = None) -> tuple[str, FailureHandler, tuple[str, ...]]:
    """Return the policy that options of `elastic run` choose: its name, itself, and what its user should know of it.

    Args:
        given: Option identifier to text; None or empty: not given. Variables are not read.
        file: A rule file, in the place of `--policy`.

    Raises:
        ConfigError: no policy was named, a value is malformed, or the policy refuses its options.
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
    choices = Choices(chosen, {}, BY_DEST)
    name, conf = policy_choice(choices)
    registry = PluginRegistry()
    policy = registry.make_policy(name, replace(policy_settings(choices), name=name), conf)
    return name, policy, registry.warnings
