"""Turns text into the values that an option declares: all bounds and units, and what is needed, are settled here."""

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
"""Of an option of `elastic run`: several values where it may be given more than once."""

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
"""What torch's backends read from `--rdzv-conf`: a line that worked there must not fail here."""

OPTION_TYPES: Final = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "duration": "seconds",
}
"""What `OptionSpec.type` may be, and what it stands for."""

_INT: Final = re.compile(r"\s*[+-]?\d+\s*")
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|m|h|d)")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_TRUE: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE: Final = frozenset({"0", "false", "f", "no", "n", "off"})
_QUOTES: Final = " \t'\""


class ResolvedOptions(Record, frozen=True, kw_only=True):
    """The declared options with their values, defaults filled in; lists apart; and what the user should know."""

    values: Mapping[str, OptionValue]
    """By name, of the declared types; defaults filled in."""
    lists: Mapping[str, OptionList] = {}
    """Those of several values, by name."""
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
    """Check `conf` against what a plugin declares and convert it.

    Quotes around keys and values are stripped, as torch does.

    Args:
        conf: What the user wrote.
        specs: What the plugin declares.
        flag: Where the user wrote it, for messages: `--rdzv-conf`, or with a colon what the key follows at once.
        owner: Who declares (`backend 'redis'`), for messages.
        tolerated: Keys that warn instead of failing where they are not declared.

    Raises:
        ConfigError: an unknown key, an empty value, one that the declaration excludes, or a required option that is
            missing.
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
    """Return an option as its user types it: `--rdzv-conf lease_ttl`, `-p diary:path`."""
    return f"{flag}{name}" if flag.endswith(":") else f"{flag} {name}"


def default_of(spec: OptionSpec) -> OptionValue:
    """Return the default of one option that is no list, of its type."""
    return float(spec.default) if spec.type in ("float", "duration") and type(spec.default) is int else spec.default


def _items(spec: OptionSpec, text: str | None, *, flag: str) -> OptionList:
    """Return the values of a list, which stand between colons."""
    shown = text if text is not None else "" if spec.default is None else str(spec.default)
    if not shown and text is None:
        return ()
    return tuple(item for part in shown.split(":") if (item := convert(part.strip(), spec, flag=flag)) is not None)


def convert(text: str, spec: OptionSpec, *, flag: str) -> OptionValue:
    """Return the value of one option, or of one part of a list.

    Raises:
        ConfigError: it is empty, or the declaration excludes it.
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
    """Return what the values of an option are, for messages: `a whole number, 1 or more`."""
    if spec.choices:
        return f"one of {', '.join(spec.choices)}"
    kind = OPTION_TYPES[spec.type]
    if spec.type == "duration":
        return f"{kind}{_bounds(spec) or ', 0 or more'}, or a time as 30s, 5m or 1h"
    return f"{kind}{_bounds(spec)}"


def _bounds(spec: OptionSpec) -> str:
    if spec.least is not None and spec.most is not None:
        return f" from {spec.least:g} to {spec.most:g}"
    bounds = (("more than {:g}", spec.above), ("{:g} or more", spec.least), ("at most {:g}", spec.most))
    return "".join(f", {text.format(bound)}" for text, bound in bounds if bound is not None)


def needed(text: str, spec: OptionSpec) -> str:
    """Return what is needed in the place of a text that `parse` refuses, for messages."""
    by_plugin = spec.fault(text) if isinstance(spec, RunOption) and spec.fault is not None else ""
    return by_plugin or wanted(spec)


def parse(text: str, spec: OptionSpec) -> OptionValue:
    """Return the value of a text; None: the declaration excludes it."""
    if (spec.choices and text not in spec.choices) or (isinstance(spec, RunOption) and spec.fault and spec.fault(text)):
        return None
    value = _typed(text, spec.type)
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
    """Return None for text that is not of the type."""
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
    """Return the seconds that a user's text stands for: `10`, `500ms`, `10s`, `2m`, `1.5h`, `1d`; None: for none.

    All times that are typed, options of the core's or of a plugin's, are read by this.
    """
    lowered = text.strip().lower()
    match = _DURATION.fullmatch(lowered)
    try:
        value = float(match[1]) * _UNITS_S[match[2]] if match else float(lowered)
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


def _sample(spec: OptionSpec) -> str:
    """Return in the place of a value what one looks like: `<a number, in seconds>`."""
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
