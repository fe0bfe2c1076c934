"""Turns `KEY=VALUE` text into the options that a plugin has declared."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from elastic_core.errors import ConfigError
from elastic_core.types import OptionSpec, Record

OptionValue = str | int | float | bool | None
GivenValue = OptionValue | tuple[str, ...]
"""Of an option of `elastic run`: several texts where it may be given more than once."""

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

OPTION_TYPES: Final = ("str", "int", "float", "bool")
"""What `OptionSpec.type` may be."""

_TRUE: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE: Final = frozenset({"0", "false", "f", "no", "n", "off"})
_QUOTES: Final = " \t'\""


class ResolvedOptions(Record, frozen=True, kw_only=True):
    """The declared options with their values, defaults filled in, and what the user should hear."""

    values: Mapping[str, OptionValue]
    warnings: tuple[str, ...] = ()


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
        flag: Where the user wrote it (`--rdzv-conf`), for messages.
        owner: Who declares (`backend 'redis'`), for messages.
        tolerated: Keys that warn instead of failing where they are not declared.

    Raises:
        ConfigError: an unknown key, an empty value, one of the wrong type, or a required option that is missing.
    """
    declared = {spec.name: spec for spec in specs}
    values: dict[str, OptionValue] = {spec.name: spec.default for spec in specs}
    warnings: list[str] = []
    given: set[str] = set()
    for raw_key, raw_value in conf.items():
        key, text = raw_key.strip(_QUOTES), raw_value.strip(_QUOTES)
        if key in declared:
            values[key] = convert(text, declared[key], flag=flag)
            given.add(key)
        elif key in tolerated:
            warnings.append(f"{flag} {key}={text!r} has no effect with {owner}")
        else:
            raise _unknown(key, declared, flag=flag, owner=owner)
    missing = [spec for spec in specs if spec.required and spec.name not in given]
    if missing:
        raise ConfigError(
            f"{owner} needs the option {missing[0].name!r} in {flag}",
            hint=f"{flag} {missing[0].name}={_needed(missing[0])}",
        )
    return ResolvedOptions(values=values, warnings=tuple(warnings))


def convert(text: str, spec: OptionSpec, *, flag: str) -> OptionValue:
    """Return the value of one option.

    Raises:
        ConfigError: it is empty, or not of the declared type.
    """
    if not text:
        raise ConfigError(f"{flag} {spec.name} has no value", hint=f"{flag} {spec.name}={_needed(spec)}")
    value = _parse(text, spec.type)
    if value is None:
        raise ConfigError(
            f"{flag} {spec.name}={text!r} is not {_KINDS[spec.type]}", hint=f"{flag} {spec.name}={_needed(spec)}"
        )
    return value


_KINDS: Final = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}


def _parse(text: str, kind: str) -> OptionValue:
    """Return None for text that is not of the kind."""
    lowered = text.lower()
    try:
        match kind:
            case "int":
                return int(text)
            case "float":
                number = float(text)
                return number if math.isfinite(number) else None
            case "bool":
                return lowered in _TRUE if lowered in _TRUE | _FALSE else None
            case _:
                return text
    except ValueError:
        return None


def _needed(spec: OptionSpec) -> str:
    """Say in the place of a value what one looks like: `<a number, in seconds>`."""
    unit = f", in {spec.unit}" if spec.unit else ""
    default = f", default {spec.default}" if spec.default is not None else ""
    return f"<{_KINDS[spec.type]}{unit}{default}>"


def _unknown(key: str, declared: Mapping[str, OptionSpec], *, flag: str, owner: str) -> ConfigError:
    import difflib  # only a user's mistake needs it

    if not declared:
        return ConfigError(f"{owner} takes no {flag} options, but {key!r} was given", hint=f"leave {key!r} out")
    names = sorted(declared)
    nearest = difflib.get_close_matches(key, names, n=1)
    known = ", ".join(names)
    hint = f"{flag} {nearest[0]}=…" if nearest else f"one of {known}"
    return ConfigError(f"{owner} has no option {key!r} in {flag}; it has {known}", hint=hint)
