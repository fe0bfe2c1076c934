"""The options for the end of workers: signals, time limits, and the restart policy with its settings.

The policy's choice and settings are read here for a run and for commands that try a policy.
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from elastic_core.errors import ConfigError
from elastic_core.option_spec import RunOption
from elastic_core.options.choices import Choices, Draft, Section, section
from elastic_core.options.readers import exit_codes, key_values, node_range, preemption_signal, seconds, signal_names
from elastic_core.types import PolicySettings

RULES: Final = "rules"
"""The policy that reads a rule file."""
_FILE_ENDS: Final = (".yaml", ".yml", ".toml", ".json")


def policy_choice(choices: Choices) -> tuple[str, Mapping[str, str]]:
    """Return the policy's name and its options. A file instead of a name means the policy `rules`.

    Raises:
        ConfigError: An option is malformed, or two rule files are given.
    """
    name = choices.text("policy") or ""
    conf = key_values(choices, "policy_conf", choices.texts("policy_conf"))
    if not is_file(name):
        return name, conf
    if conf.get("file", name) != name:
        raise ConfigError(
            f"{choices.label('policy')} and --policy-conf file={conf['file']!r} name two rule files; expected one",
            hint=f"--policy {name} alone",
        )
    return RULES, {**conf, "file": name}


def is_file(name: str) -> bool:
    """Return whether the name of a policy is a rule file."""
    return "/" in name or name.lower().endswith(_FILE_ENDS)


RESTARTS: Final = section(
    Section.RESTARTS,
    RunOption(
        name="max_restarts",
        type="int",
        help="How many times the workers are restarted after a failure before the run fails; 0: never.",
        default=0,
        least=0,
        torch=True,
        field="restarts.max_restarts",
        read=Choices.value,
    ),
    RunOption(
        name="restart_window",
        type="duration",
        help="Count only the restarts of the last SECONDS against --max-restarts.",
        default_note="the whole run",
        above=0,
        field="restarts.restart_window_s",
        read=Choices.value,
    ),
    RunOption(
        name="restart_backoff",
        type="duration",
        help="Wait before a second restart if workers fail soon after their start. The wait doubles each time, up to "
        "30 s; 0: no wait.",
        default=0.5,
        field="restarts.restart_backoff_s",
        read=Choices.value,
    ),
    RunOption(
        name="max_membership_changes",
        type="int",
        help="How many times workers may be restarted because nodes join or leave, before the run fails.",
        default_note="no limit",
        least=0,
        field="nodes.max_membership_changes",
        read=Choices.value,
    ),
    RunOption(
        name="fatal_exit_codes",
        metavar="LIST",
        help="Exit codes after which workers are not restarted, such as 3,64-78.",
        default_note="none",
        field="restarts.fatal_exit_codes",
        read=exit_codes,
    ),
    RunOption(
        name="same_failure_limit",
        type="int",
        help="End the run when the same exception occurs at the same place N times in a row without progress in "
        "between.",
        default_note="no limit",
        least=2,
        field="restarts.same_failure_limit",
        read=Choices.value,
    ),
    RunOption(
        name="policy",
        metavar="NAME|FILE",
        help="Failure handler that decides between restart and stop: a name that 'elastic plugins' lists, "
        "module:Class, or a rule file such as rules.yaml (needs elastic-policy-rules).",
        default="intensity",
        field="restarts.name",
        read=lambda choices, _: policy_choice(choices)[0],
    ),
    RunOption(
        name="policy_conf",
        metavar="K=V",
        help="Option of the failure handler; K=V,K=V sets several.",
        many=True,
        field="policy_conf",
    ),
)


def take_restarts(draft: Draft) -> None:
    """Set the fields for restarts.

    Raises:
        ConfigError: A value is malformed.
    """
    draft.settle(RESTARTS)
    choices = draft.choices
    by_file = is_file(choices.text("policy") or "")
    draft.set("policy_conf", policy_choice(choices)[1], choices.origin("policy" if by_file else "policy_conf"))


def policy_settings(choices: Choices) -> PolicySettings:
    """Return the settings of the policy, without its options.

    Raises:
        ConfigError: A value is malformed.
    """
    min_nodes, max_nodes = node_range(choices)
    read: dict[str, Any] = {"min_nodes": min_nodes, "max_nodes": max_nodes}
    for option in RESTARTS:
        part, _, field = option.field.partition(".")
        if option.read is not None and part == "restarts":
            read[field] = option.read(choices, option.name)
    return PolicySettings(**read)


SIGNALS: Final = section(
    Section.SIGNALS,
    RunOption(
        name="signals_to_handle",
        metavar="NAMES",
        help="Signals that the agent passes on to the workers. SIGTERM, SIGINT, SIGHUP and SIGQUIT also end the run.",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        torch=True,
        field="stops.signals_to_handle",
    ),
    RunOption(
        name="preemption_signal",
        metavar="NAME",
        help="Signal by which a scheduler announces that it will take this node away. The run ends on this node as "
        "with SIGTERM, and the other nodes continue.",
        default_note="none",
        field="stops.preemption_signal",
    ),
    RunOption(
        name="shutdown_timeout",
        type="duration",
        help="How long a worker may take to end after a stop signal, whatever the reason of the stop; then SIGKILL.",
        default_note="TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30",
        torch=True,
        field="stops.shutdown_timeout_s",
    ),
)

EXIT: Final = section(
    Section.RESTARTS,
    RunOption(
        name="exit_timeout",
        type="duration",
        help="How long a worker may take to exit after an uncaught exception; then the worker counts as failed with "
        "that exception. It is stopped at that time if another worker runs or a restart follows. Otherwise its "
        "threads and exit handlers have --shutdown-timeout, counted from the exception. 0: no limit.",
        default=5.0,
        field="stops.exit_timeout_s",
    ),
)

_SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"


def take_stops(draft: Draft) -> None:
    """Set the handled signals, and the time limits for workers to end."""
    choices = draft.choices
    names, lines = signal_names(choices)
    draft.take("signals_to_handle", names)
    draft.notice(*lines)
    draft.take("preemption_signal", preemption_signal(choices))
    if choices.chosen("shutdown_timeout"):
        draft.take("shutdown_timeout", seconds(choices, "shutdown_timeout"))
    elif draft.environ.get(_SHUTDOWN_VARIABLE):
        option = replace(choices.options["shutdown_timeout"], env=_SHUTDOWN_VARIABLE)
        limit_s = seconds(Choices({}, draft.environ, {option.name: option}), option.name)
        draft.set("stops.shutdown_timeout_s", limit_s, f"env {_SHUTDOWN_VARIABLE}")
    else:
        draft.set("stops.shutdown_timeout_s", 30.0, "default")
    limit_s, held = seconds(choices, "exit_timeout"), choices.text("debug_rank") is not None
    draft.take("exit_timeout", 0.0 if held else limit_s)
    if held and limit_s and choices.chosen("exit_timeout"):
        draft.notice(f"{choices.label('exit_timeout')} has no effect: --debug-rank turns time limits off")
