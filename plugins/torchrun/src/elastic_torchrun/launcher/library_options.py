"""The arguments of a library call as options of `elastic run`, which checks and explains every value."""

import enum
import os
from collections.abc import Iterable, Mapping
from typing import Final

from elastic_core.api import ConfigError, RunOption
from elastic_core.embedding import BY_DEST, hook_option, is_hook_option, nearest

Given = dict[str, str | bool | tuple[str, ...]]

_NOT_HERE: Final = frozenset({"module", "no_python", "run_path", "dry_run", "verbose", "debug_rank"})
"""Options of the command line only: how it is read, and its terminal."""
_BY_RANK: Final = frozenset({"redirects", "tee"})


def given_from(options: Mapping[str, object]) -> Given:
    """Return the options by identifier, as texts. `None` and `False` mean not given.

    Args:
        options: By their names on the command line, with underscores; `run_id` is `rdzv_id`.

    Raises:
        ConfigError: there is no such option, or its value is invalid.
    """
    given: Given = {}
    for name, value in options.items():
        dest = "rdzv_id" if name == "run_id" else name
        chosen = value is not None and value is not False and value != ""
        option = BY_DEST.get(dest) or (hook_option(dest) if chosen else None)
        if (option is None and (chosen or not is_hook_option(dest))) or dest in _NOT_HERE:
            known = [each for each in BY_DEST if each not in _NOT_HERE]
            near = next((each for each in known if each.startswith(dest)), "") or nearest(dest, known)
            raise ConfigError(f"launch() has no option {name!r}", hint=near or "the options of 'elastic run --help'")
        if chosen and option is not None:
            given[dest] = _value(option, value)
    return given


def library_environment() -> dict[str, str]:
    """Return the environment for a library call, without values of command-line options."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PET_")}


def joined(texts: Iterable[str]) -> str:
    """Return a list separated by commas, in which a comma of a text is doubled."""
    return ",".join(text.replace(",", ",,") for text in texts)


def _value(option: RunOption, value: object) -> str | bool | tuple[str, ...]:
    dest = option.name
    if not option.value_name:
        if value is not True:
            raise ConfigError(f"{dest} is {value!r}; expected True or False")
        return True
    if option.many:
        many = [value] if isinstance(value, str) else _texts(value)
        return tuple(str(each) for each in many)
    return _text(dest, value)


def _text(dest: str, value: object) -> str:
    if isinstance(value, Mapping):
        separator = ":" if dest in _BY_RANK else "="
        return ",".join(f"{key}{separator}{_plain(each)}" for key, each in value.items())
    if dest == "nnodes" and isinstance(value, tuple):
        return ":".join(_plain(each) for each in value)
    if dest.endswith("_filters") and not isinstance(value, str):
        return joined(_texts(value))
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(_plain(each) for each in value)
    return _plain(value)


def _texts(value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{key}={_plain(each)}" for key, each in value.items()]
    return [str(each) for each in value] if isinstance(value, Iterable) else [_plain(value)]


def _plain(value: object) -> str:
    return str(value.value) if isinstance(value, enum.Enum) else str(value)
