"""Options of `elastic run` that installed hooks declare; they are read like the core's own."""

from typing import Final

from msgspec.structs import replace

from elastic_core.errors import ConfigError
from elastic_core.option_spec import RunOption
from elastic_core.options.choices import Choices, Draft, Given
from elastic_core.options.table import BY_DEST, chosen_elsewhere, torch_variables
from elastic_core.plugins.conversion import GivenValue
from elastic_core.plugins.hook_flags import installed_options
from elastic_core.plugins.missing import known_options, option_not_installed, refuse_variable

_UNINTERRUPTIBLE: Final = "uninterruptible_timeout"
# Torch's variable for that option. A negative number means no limit.
_UNINTERRUPTIBLE_VARIABLE: Final = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"


def hook_option(dest: str, *, typed: str = "") -> RunOption | None:
    """Return an option of a hook. `None` if no installed hook has it.

    `typed` is what the user typed, for the error. Empty means the option's name.

    Raises:
        PluginError: The option's distribution is not installed, or its declaration is broken.
    """
    flag = dest.replace("_", "-")
    found = installed_options().load(flag)
    if found is None and flag in known_options():
        raise option_not_installed(flag, typed)
    return found


def hook_option_named(beginning: str, typed: str) -> RunOption | None:
    """Return the only option of a hook with this prefix. `None` if there is none.

    Raises:
        ConfigError: Several options have the prefix.
        PluginError: The option's distribution is not installed, or its declaration is broken.
    """
    flags = [flag for flag in hook_flags() if flag.startswith(beginning)]
    if len(flags) > 1:
        listing = ", ".join(f"--{flag}" for flag in flags)
        raise ConfigError(f"option {typed} is ambiguous: {listing}", hint="more letters")
    return hook_option(flags[0]) if flags else None


def hook_flags() -> list[str]:
    """Return the flags of installed hooks and of hooks of this project, without importing them."""
    return sorted({*installed_options().flags, *known_options()})


def is_hook_option(dest: str) -> bool:
    """Return whether an installed hook, or one of this project, has the option, without importing it."""
    return dest.replace("_", "-") in hook_flags()


def all_hook_options() -> list[RunOption]:
    """Return all valid installed options, importing their declarations."""
    return installed_options().load_all()[0]


def take_hook_options(draft: Draft, given: Given) -> None:
    """Set the given options of hooks. Called: only if there may be one.

    Raises:
        ConfigError: A value is malformed.
        PluginError: An option's distribution is not installed, or the option is broken.
    """
    values: dict[str, GivenValue] = {}
    proposed = draft.choices.proposed
    elsewhere = (*chosen_elsewhere(given, draft.environ), *(dest for dest in proposed if dest not in BY_DEST))
    for dest in dict.fromkeys(elsewhere):
        option = hook_option(dest)
        if option is None:
            continue  # a foreign variable
        choices = Choices(given, draft.environ, {dest: option}, proposed)
        value = choices.value(dest)
        if option.time_limit and value and draft.choices.text("debug_rank") is not None:
            value = 0 if isinstance(value, int) else 0.0
            draft.notice(f"{choices.label(dest)} has no effect: --debug-rank turns time limits off")
        if value is not False:
            values[dest] = value
            draft.mark(dest, choices.origin(dest))
    for variable in torch_variables(draft.environ):
        _take_variable(draft, values, variable)
    limit = draft.environ.get(_UNINTERRUPTIBLE_VARIABLE)
    if limit and (limit_s := _uninterruptible_s(limit)) and _UNINTERRUPTIBLE not in values:
        hook_option(_UNINTERRUPTIBLE, typed=_UNINTERRUPTIBLE_VARIABLE)
        values[_UNINTERRUPTIBLE] = limit_s
        draft.mark(_UNINTERRUPTIBLE, f"env {_UNINTERRUPTIBLE_VARIABLE}")
    draft.set("hook_options", values, "derived: options that hooks bring")


def _uninterruptible_s(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not value < float("inf"):  # also rejects NaN
        raise ConfigError(
            f"{_UNINTERRUPTIBLE_VARIABLE}: {text!r}; expected seconds, 0 for no limit",
            hint=f"{_UNINTERRUPTIBLE_VARIABLE}=300, or unset it",
        )
    return max(0.0, value)


def _take_variable(draft: Draft, values: dict[str, GivenValue], variable: str) -> None:
    option = installed_options().load(variable)
    if option is None:
        refuse_variable(variable, draft.environ[variable])
    elif option.name not in values:
        value = Choices({}, draft.environ, {option.name: replace(option, env=variable)}).value(option.name)
        if value is not False:
            values[option.name] = value
            draft.mark(option.name, f"env {variable}")
