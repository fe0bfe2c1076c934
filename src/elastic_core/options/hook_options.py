"""Options of `elastic run` that installed hooks bring, beside our own: the same reading, the same errors."""

from typing import Final

from msgspec.structs import replace

from elastic_core.errors import ConfigError
from elastic_core.options.choices import VARIABLE_PREFIX, Choices, Draft, Given, OptionRow
from elastic_core.options.readers import nearest
from elastic_core.options.table import BY_DEST, chosen_elsewhere, torch_variables
from elastic_core.plugins.conversion import GivenValue, parse, wanted
from elastic_core.plugins.hook_flags import HookOption, installed_options
from elastic_core.plugins.missing import known_options, option_not_installed, refuse_variable
from elastic_core.types import RunOption

_UNINTERRUPTIBLE: Final = "uninterruptible_timeout"
_UNINTERRUPTIBLE_VARIABLE: Final = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
"""Torch's, which stands for that option; a negative number is no limit there."""
_OF_TORCHRUN: Final = frozenset({"event-log-handler", "numa-binding"})
"""Those of torchrun's options that come with a distribution of ours beside the core."""


def hook_row(dest: str, *, typed: str = "") -> OptionRow | None:
    """Return the row of an option that a hook brings; None: no hook that is installed has it.

    `typed` is what asked for it; empty: the option's own name.

    Raises:
        PluginError: it comes with a distribution that is not installed, or what declares it is broken.
    """
    flag = dest.replace("_", "-")
    found = installed_options().load(flag)
    if found is not None:
        return row_of(found)
    if flag in known_options():
        raise option_not_installed(flag, typed)
    return None


def hook_option_named(beginning: str, typed: str) -> OptionRow | None:
    """Return the row of the one option of a hook that begins so; None: there is none.

    Raises:
        ConfigError: there are several.
        PluginError: it comes with a distribution that is not installed, or what declares it is broken.
    """
    flags = sorted({*installed_options().flags, *known_options()})
    flags = [flag for flag in flags if flag.startswith(beginning)]
    if len(flags) > 1:
        listing = ", ".join(f"--{flag}" for flag in flags)
        raise ConfigError(f"option {typed} is ambiguous: {listing}", hint="more letters")
    return hook_row(flags[0]) if flags else None


def is_hook_option(dest: str) -> bool:
    """Return whether a hook has an option of this name, be it one of ours that is not installed; imports nothing."""
    flag = dest.replace("_", "-")
    return flag in installed_options().flags or flag in known_options()


def row_of(found: HookOption) -> OptionRow:
    """Return a hook's option as a row beside ours."""
    option = found.option
    metavar = option.metavar or (option.unit or option.type).upper()
    return OptionRow(
        name=option.name.replace("_", "-"),
        metavar=None if option.type == "bool" else metavar,
        default=None if option.default is None else _text(option.default),
        default_note=option.default_note,
        many=option.many,
        section=option.heading or found.entry.distribution,
        help=option.help,
        torch=found.entry.name in _OF_TORCHRUN,
        env=VARIABLE_PREFIX + option.name.upper(),
        choices=option.choices,
    )


def all_rows() -> list[OptionRow]:
    """Return the rows of all that are installed and sound; imports their declarations."""
    return [row_of(found) for found in installed_options().load_all()[0]]


def take_hook_options(draft: Draft, given: Given) -> None:
    """Settle the options of hooks that were given. Called: only where there may be one.

    Raises:
        ConfigError: a value is malformed.
        PluginError: an option comes with a distribution that is not installed, or is broken.
    """
    values: dict[str, GivenValue] = {}
    proposed = draft.choices.proposed
    elsewhere = (*chosen_elsewhere(given, draft.environ), *(dest for dest in proposed if dest not in BY_DEST))
    for dest in dict.fromkeys(elsewhere):
        row = hook_row(dest)
        found = installed_options().load(dest.replace("_", "-"))
        if row is None or found is None:
            continue  # a variable of somebody else's
        choices = Choices(given, draft.environ, {dest: row}, proposed)
        value = _value(choices, found)
        if found.option.time_limit and value and draft.choices.text("debug_rank") is not None:
            value = 0.0 if isinstance(value, float) else 0
            draft.notice(f"{choices.label(dest)} has no effect: --debug-rank turns time limits off")
        if value is not False:
            values[dest] = value
            draft.mark(dest, choices.origin(dest))
    for variable in torch_variables(draft.environ):
        _take_variable(draft, values, variable)
    limit = draft.environ.get(_UNINTERRUPTIBLE_VARIABLE)
    if limit and (limit_s := _uninterruptible_s(limit)) and _UNINTERRUPTIBLE not in values:
        hook_row(_UNINTERRUPTIBLE, typed=_UNINTERRUPTIBLE_VARIABLE)
        values[_UNINTERRUPTIBLE] = limit_s
        draft.mark(_UNINTERRUPTIBLE, f"env {_UNINTERRUPTIBLE_VARIABLE}")
    draft.set("hook_options", values, "derived: options that hooks bring")


def _uninterruptible_s(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not value < float("inf"):  # nor is "not a number"
        raise ConfigError(
            f"{_UNINTERRUPTIBLE_VARIABLE}={text!r}: needed seconds, 0 for no limit",
            hint=f"{_UNINTERRUPTIBLE_VARIABLE}=300, or unset it",
        )
    return max(0.0, value)


def _take_variable(draft: Draft, values: dict[str, GivenValue], variable: str) -> None:
    found = installed_options().load_variable(variable)
    if found is None:
        refuse_variable(variable, draft.environ[variable])
    elif found.option.name not in values:
        row = replace(row_of(found), env=variable)
        value = _value(Choices({}, draft.environ, {row.dest: row}), found)
        if value is not False:
            values[row.dest] = value
            draft.mark(row.dest, f"env {variable}")


def _value(choices: Choices, found: HookOption) -> GivenValue:
    option = found.option
    if option.many:
        return tuple(_one(choices, option, text) for text in choices.texts(option.name))
    if option.type == "bool":
        return choices.flag(option.name)
    return _one(choices, option, choices.text(option.name) or "")


def _one(choices: Choices, option: RunOption, text: str) -> str | int | float | bool:
    needed = "" if option.fault is None else option.fault(text)
    value = parse(text, option)
    if needed or value is None:
        choices.reject(option.name, needed or wanted(option), hint=option.hint or nearest(text, option.choices))
    return value


def _text(default: str | float | bool) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)
