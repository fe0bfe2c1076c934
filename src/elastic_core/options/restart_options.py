"""The options about restarts: which policy decides, and what it is built with, in a run and where one is tried out."""

from collections.abc import Mapping
from typing import Final

from elastic_core.errors import ConfigError
from elastic_core.options.choices import Choices
from elastic_core.options.draft import Draft
from elastic_core.options.option import OptionRow, Section, row
from elastic_core.options.values import exit_codes, integer, key_values, node_range, seconds
from elastic_core.types import PolicySettings

RESTARTS: Final[tuple[OptionRow, ...]] = (
    row(
        Section.RESTARTS,
        "max-restarts",
        "N",
        "How many times a failed worker group is started again before the run fails; 0: never.",
        default="0",
        torch=True,
    ),
    row(
        Section.RESTARTS,
        "restart-window",
        "SECONDS",
        "Count only the restarts of the last SECONDS against --max-restarts.",
        default_note="the whole run",
    ),
    row(
        Section.RESTARTS,
        "restart-backoff",
        "SECONDS",
        "Wait before a second restart when workers fail soon after their start; doubles each time, up to 30 s; 0: no "
        "wait.",
        default="0.5",
    ),
    row(
        Section.RESTARTS,
        "max-membership-changes",
        "N",
        "How often workers may be started again because nodes came or went, before the run fails.",
        default_note="any number of times",
    ),
    row(
        Section.RESTARTS,
        "fatal-exit-codes",
        "LIST",
        "Exit codes that are not retried, such as 3,64-78.",
        default_note="none",
    ),
    row(
        Section.RESTARTS,
        "same-failure-limit",
        "N",
        "End the run when the same exception comes from the same place for the Nth time in a row, and got no further.",
        default_note="no limit",
    ),
    row(
        Section.RESTARTS,
        "policy",
        "NAME|FILE",
        "Failure handler that decides between restart and stop ('elastic plugins' lists what is installed), or a rule "
        "file, such as rules.yaml, for elastic-policy-rules.",
        default="intensity",
    ),
    row(
        Section.RESTARTS,
        "policy-conf",
        "K=V",
        "Option of the failure handler (repeatable, or K=V,K=V).",
        many=True,
    ),
)


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
