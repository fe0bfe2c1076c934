"""Converts text to the values that an option declares, and checks bounds, units and required options."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from elastic_core.errors import ConfigError, nearest
from elastic_core.option_spec import OptionSpec, RunOption
from elastic_core.types import Record

OptionValue = str | int | float | bool | None
OptionList = tuple[str | int | float | bool, ...]
GivenValue = OptionValue | OptionList
"""The value of an option of `elastic run`: a tuple if it may be given more than once."""

TORCH_RDZV_KEYS: Final = frozenset(
    {
        "timeout",
        "last_call_timeout",
        "join_timeout",
        "close_timeout",
        "heartbeat_timeout",
        "keep_alive_interval",
        "keep_alive_max_attempt",
        "cas_backoff_max_seconds",
        "read_timeout",
        "store_type",
        "is_host",
        "rank",
        "etcd_prefix",
        "protocol",
        "cert",
        "key",
        "cacert",
        "ssl_cert",
        "ssl_cert_key",
        "ca_cert",
    }
)
"""Keys of `--rdzv-conf` that torch's backends read: they must not be errors here."""

OPTION_TYPES: Final = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "duration": "seconds",
}
"""The values of `OptionSpec.type`, with their text for users."""

_INT: Final = re.compile(r"\s*[+-]?\d+\s*")
_DURATION: Final = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|m|h|d)"
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_TRUE: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE: Final = frozenset({"0", "false", "f", "no", "n", "off"})
_QUOTES: Final = " \t'\""


class ResolvedOptions(Record, frozen=True, kw_only=True):
    """The values of declared options with defaults, lists separately, and warnings."""

    values: Mapping[str, OptionValue]
    """The values by name, of the declared types, with defaults."""
    lists: Mapping[str, OptionList] = {}
    """The options that have several values, by name."""
    warnings: tuple[str, ...] = ()
    """Lines for the user."""


def resolve_options(
    conf: Mapping[str, str],
    specs: Sequence[OptionSpec],
    *,
    flag: str,
    owner: str,
    tolerated: frozenset[str] = frozenset(),
) -> ResolvedOptions:
    """Return the declared options of a plugin with the values from `conf`, checked and converted.

    Quotes around keys and values are stripped, as torch does.

    Args:
        conf: The user's options.
        specs: The plugin's declarations.
        flag: The user's option for messages, such as `--rdzv-conf`; with a colon if the key follows directly.
        owner: The declaring plugin for messages, such as `backend 'redis'`.
        tolerated: Undeclared keys that cause a warning instead of an error.

    Raises:
        ConfigError: A key is unknown, a value is empty or invalid, or a required option is missing.
    """
    declared = {spec.name: spec for spec in specs}
    given: dict[str, str] = {}
    warnings: list[str] = []
    for raw_key, raw_value in conf.items():
        key, text = raw_key.strip(_QUOTES), raw_value.strip(_QUOTES)
        if key in declared:
            given[key] = text
        elif key in tolerated:
            warnings.append(f"{typed_as(flag, key)}={text!r} has no effect with {owner}")
        else:
            raise _unknown(key, declared, flag=flag, owner=owner)
    values: dict[str, OptionValue] = {}
    lists: dict[str, OptionList] = {}
    for spec in specs:
        if spec.required and spec.name not in given:
            hint = f"{typed_as(flag, spec.name)}={_sample(spec)}"
            raise ConfigError(f"{owner} needs the option {spec.name!r} in {flag.rstrip(':')}", hint=hint)
        if spec.many:
            lists[spec.name] = _items(spec, given.get(spec.name), flag=flag)
        else:
            values[spec.name] = convert(given[spec.name], spec, flag=flag) if spec.name in given else default_of(spec)
    return ResolvedOptions(values=values, lists=lists, warnings=tuple(warnings))


def typed_as(flag: str, name: str) -> str:
    """Return an option as users type it: `--rdzv-conf lease_ttl`, `-p diary:path`."""
    return f"{flag}{name}" if flag.endswith(":") else f"{flag} {name}"


def default_of(spec: OptionSpec) -> OptionValue:
    """Return the default of an option that is not a list, converted to its type."""
    return float(spec.default) if spec.type in ("float", "duration") and type(spec.default) is int else spec.default


def _items(spec: OptionSpec, text: str | None, *, flag: str) -> OptionList:
    # The values of a list are between colons.
    shown = text if text is not None else "" if spec.default is None else str(spec.default)
    if not shown and text is None:
        return ()
    return tuple(item for part in shown.split(":") if (item := convert(part.strip(), spec, flag=flag)) is not None)


def convert(text: str, spec: OptionSpec, *, flag: str) -> OptionValue:
    """Return the value of one option, or of one part of a list.

    Raises:
        ConfigError: The text is empty or invalid.
    """
    typed = typed_as(flag, spec.name)
    if not text:
        raise ConfigError(f"{typed} has no value", hint=f"{typed}={_sample(spec)}")
    value = parse(text, spec)
    if value is None:
        near = nearest(text, spec.choices) or _sample(spec)
        own = spec.hint if isinstance(spec, RunOption) else ""
        raise ConfigError(f"{typed}: {text!r}; expected {needed(text, spec)}", hint=own or f"{typed}={near}")
    return value


def wanted(spec: OptionSpec) -> str:
    """Return a description of an option's values, for messages: `a whole number, 1 or more`."""
    if spec.choices:
        return f"one of {', '.join(spec.choices)}"
    kind, words = OPTION_TYPES[spec.type], "".join(f", or {word}" for word in spec.words)
    if spec.type == "duration":
        return f"{kind}{_bounds(spec) or ', 0 or more'}, or a time as 30s, 5m or 1h{words}"
    return f"{kind}{_bounds(spec)}{words}"


def _bounds(spec: OptionSpec) -> str:
    if spec.least is not None and spec.most is not None:
        return f" from {spec.least:g} to {spec.most:g}"
    bounds = (("more than {:g}", spec.above), ("{:g} or more", spec.least), ("at most {:g}", spec.most))
    return "".join(f", {text.format(bound)}" for text, bound in bounds if bound is not None)


def needed(text: str, spec: OptionSpec) -> str:
    """Return what is expected instead of a text that `parse` rejects, for messages."""
    by_plugin = spec.fault(text) if isinstance(spec, RunOption) and spec.fault is not None else ""
    return by_plugin or wanted(spec)


def parse(text: str, spec: OptionSpec) -> OptionValue:
    """Return the value of a text. `None` if it is invalid."""
    if (spec.choices and text not in spec.choices) or (isinstance(spec, RunOption) and spec.fault and spec.fault(text)):
        return None
    word = text.strip().lower()
    value = word if word in spec.words else _typed(text, spec.type)
    return value if value is None or fits(value, spec) else None


def fits(value: str | float, spec: OptionSpec) -> bool:
    """Return whether a value of the declared type is within its bounds."""
    if isinstance(value, str | bool):
        return True
    return (
        (spec.least is None or value >= spec.least)
        and (spec.above is None or value > spec.above)
        and (spec.most is None or value <= spec.most)
    )


def _typed(text: str, kind: str) -> OptionValue:
    # `None` if the text does not have the type.
    lowered = text.strip().lower()
    try:
        match kind:
            case "int":
                return int(text) if _INT.fullmatch(text) else None
            case "float":
                number = float(text)
                return number if math.isfinite(number) else None
            case "bool":
                return lowered in _TRUE if lowered in _TRUE | _FALSE else None
            case "duration":
                return duration_s(text)
            case _:
                return text
    except ValueError:
        return None


def duration_s(text: str) -> float | None:
    """Return the seconds of a duration text: `10`, `500ms`, `10s`, `2m`, `1.5h`, `1d`. `None` if it is not one.

    All durations that users type are read by this function, in options of the core and of plugins.
    """
    lowered = text.strip().lower()
    match = re.fullmatch(_DURATION, lowered) if lowered[-1:] in _UNITS_S else None
    try:
        value = float(match[1]) * _UNITS_S[match[2]] if match else float(lowered)
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


def _sample(spec: OptionSpec) -> str:
    # Shown in place of a value: `<a number, in seconds>`.
    unit = f", in {spec.unit}" if spec.unit and spec.type != "duration" else ""
    default = f", default {spec.default}" if spec.default is not None else ""
    many = ":…" if spec.many else ""
    return f"<{wanted(spec)}{unit}{default}>{many}"


def _unknown(key: str, declared: Mapping[str, OptionSpec], *, flag: str, owner: str) -> ConfigError:
    place = flag.rstrip(":")
    if not declared:
        return ConfigError(f"{owner} takes no {place} options, but {key!r} was given", hint=f"leave {key!r} out")
    names = sorted(declared)
    near = nearest(key, names)
    known = ", ".join(names)
    hint = f"{typed_as(flag, near)}=…" if near else f"one of {known}"
    return ConfigError(f"{owner} has no option {key!r} in {place}; it has {known}", hint=hint)
