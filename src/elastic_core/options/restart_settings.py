"""Which policy decides, and what it is built with: the same for a run and for trying a policy out."""

from collections.abc import Mapping
from typing import Final

from elastic_core.errors import ConfigError
from elastic_core.options.choices import Choices
from elastic_core.options.draft import Draft
from elastic_core.options.values import exit_codes, integer, key_values, node_range, seconds
from elastic_core.types import PolicySettings

RULES: Final = "rules"
"""The policy that follows a rule file."""
_FILE_ENDS: Final = (".yaml", ".yml", ".toml", ".json")


def policy_choice(choices: Choices) -> tuple[str, Mapping[str, str]]:
    """Return the policy's name and its options: a file in the place of a name is one of rules.

    Raises:
        ConfigError: an option is malformed, or two rule files are named.
    """
    name = choices.text("policy") or ""
    conf = key_values(choices, "policy_conf", choices.texts("policy_conf"))
    if not is_file(name):
        return name, conf
    if conf.get("file", name) != name:
        raise ConfigError(
            f"{choices.label('policy')} and --policy-conf file={conf['file']!r} are two rule files",
            hint=f"--policy {name} alone",
        )
    return RULES, {**conf, "file": name}


def is_file(name: str) -> bool:
    """Return whether what stands in the place of a policy's name is a file of rules."""
    return "/" in name or name.lower().endswith(_FILE_ENDS)


def take_restarts(draft: Draft) -> None:
    """Settle all that decides about restarts.

    Raises:
        ConfigError: a value is malformed.
    """
    choices = draft.choices
    made = policy_settings(choices)
    draft.take("max_restarts", made.max_restarts)
    draft.take("restart_window_s", made.restart_window_s, "restart_window")
    draft.take("restart_backoff_s", made.restart_backoff_s, "restart_backoff")
    draft.take("fatal_exit_codes", made.fatal_exit_codes)
    draft.take("same_failure_limit", made.same_failure_limit)
    name, conf = policy_choice(choices)
    draft.take("policy", name)
    draft.take("policy_conf", conf, "policy" if is_file(choices.text("policy") or "") else "policy_conf")


def policy_settings(choices: Choices) -> PolicySettings:
    """Return what the policy is built with, but for its options.

    Raises:
        ConfigError: a value is malformed.
    """
    window = choices.text("restart_window")
    min_nodes, max_nodes = node_range(choices)
    repeats = choices.chosen("same_failure_limit")
    return PolicySettings(
        name=policy_choice(choices)[0],
        max_restarts=integer(choices, "max_restarts", at_least=0),
        restart_window_s=None if window is None else seconds(choices, "restart_window", above_zero=True),
        restart_backoff_s=seconds(choices, "restart_backoff"),
        fatal_exit_codes=exit_codes(choices) if choices.chosen("fatal_exit_codes") else (),
        same_failure_limit=integer(choices, "same_failure_limit", at_least=2) if repeats else None,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
    )
