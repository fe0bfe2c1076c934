"""Reads the command line of `elastic run` as torchrun's argparse parser does.

Accepts both spellings of an option and unambiguous prefixes, and leaves all words from the script on unchanged.
"""

import re
from collections.abc import Callable, Sequence

from elastic_core.errors import ConfigError, nearest
from elastic_core.option_spec import RunOption
from elastic_core.options.table import BY_DEST, OPTIONS
from elastic_core.types import Record

_NEGATIVE = r"-\d*\.?\d+"
_SHORT = {option.short: option for option in OPTIONS if option.short}
_HELP, _HELP_ALL = "help", "help-all"


class Arguments(Record, frozen=True, kw_only=True):
    """The parsed command line: options by identifier, the script and its arguments, or a request for help."""

    given: dict[str, str | bool | tuple[str, ...]]
    script: str | None
    rest: tuple[str, ...]
    help: bool = False
    help_all: bool = False


def read_arguments(words: Sequence[str]) -> Arguments:
    """Return the options before the script, the script, and all words after it.

    Raises:
        ConfigError: An option is unknown, ambiguous, or has no value.
    """
    return _Reader(words).read()


class _Reader:
    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._next = 0
        self._given: dict[str, str | bool | tuple[str, ...]] = {}
        self._help = self._help_all = False

    def read(self) -> Arguments:
        while self._next < len(self._words) and not self._help:
            word = self._words[self._next]
            if word == "--":
                self._next += 1
                break
            if word == "-" or not word.startswith("-"):
                break
            self._next += 1
            if word.startswith("--"):
                self._long(word)
            else:
                self._cluster(word)
        rest = tuple(self._words[self._next :])
        script = rest[0] if rest else None
        return Arguments(given=self._given, script=script, rest=rest[1:], help=self._help, help_all=self._help_all)

    def _long(self, word: str) -> None:
        typed, equals, value = word.partition("=")
        if len(typed) > len("--help") and f"--{_HELP_ALL}".startswith(typed.replace("_", "-")):
            self._help = self._help_all = True
            return
        option = find_option(typed)
        if option is None:
            self._help = True
        elif not option.value_name and equals:
            raise ConfigError(f"{typed} takes no value: {word!r}", hint=f"--{option.flag}")
        elif not option.value_name:
            self._given[option.name] = True
        else:
            self._keep(option, value if equals else self._value(typed, option))

    def _cluster(self, word: str) -> None:
        # Short options behind one dash: flags, then at most one with a value (`-mr3`, `-r 3`, `-r=3`).
        for index, letter in enumerate(word[1:], start=1):
            if letter == "h":
                self._help = True
                return
            option = _SHORT.get(letter)
            if option is None:
                raise _unknown(word, typed=f"-{letter}" if index > 1 else word)
            if not option.value_name:
                self._given[option.name] = True
                continue
            attached = word[index + 1 :]
            self._keep(option, attached.removeprefix("=") if attached else self._value(f"-{letter}", option))
            return

    def _value(self, typed: str, option: RunOption) -> str:
        # As in argparse, a word that looks like an option is not a value.
        word = self._words[self._next] if self._next < len(self._words) else None
        if word is None or (
            len(word) > 1 and word.startswith("-") and not re.fullmatch(_NEGATIVE, word) and " " not in word
        ):
            seen = "the command line ends" if word is None else f"{word!r} follows"
            raise ConfigError(f"{typed} needs a value: {seen}", hint=f"--{option.flag}={option.value_name}")
        self._next += 1
        return word

    def _keep(self, option: RunOption, value: str) -> None:
        earlier = self._given.get(option.name, ())
        self._given[option.name] = (*earlier, value) if option.many and isinstance(earlier, tuple) else value


def find_option(typed: str) -> RunOption | None:
    """Return the option of `--name` or of its unambiguous prefix. `None` means `--help`.

    A prefix that is unambiguous for torchrun is so here too: torch's options are tried first, those of hooks last.

    Raises:
        ConfigError: No option has that name, or several have the prefix.
    """
    name = typed.removeprefix("--").replace("_", "-")
    exact = BY_DEST.get(name.replace("-", "_"))
    if exact is not None:
        return exact
    from elastic_core.options.hook_options import hook_option, hook_option_named  # for hooks' options only

    from_hook = hook_option(name)
    if from_hook is not None:
        return from_hook
    conditions: tuple[Callable[[RunOption], bool], ...] = (lambda option: option.torch, lambda option: True)
    matches: list[str] = []
    for condition in conditions:
        matches = [option.flag for option in OPTIONS if condition(option) and name and option.flag.startswith(name)]
        matches += [_HELP] if name and _HELP.startswith(name) else []
        if len(matches) == 1:
            break
    if not matches:
        from_hook = hook_option_named(name, typed)
        if from_hook is None:
            raise _unknown(typed, typed=typed)
        return from_hook
    if len(matches) > 1:
        listing = ", ".join(f"--{match}" for match in matches)
        raise ConfigError(f"option {typed} is ambiguous: {listing}", hint="more letters")
    return BY_DEST.get(matches[0].replace("-", "_"))


class UnknownOptionError(ConfigError):
    """No option has the given name."""


def _unknown(word: str, *, typed: str) -> ConfigError:
    from elastic_core.options.hook_options import hook_flags

    name = typed.partition("=")[0].lstrip("-").replace("_", "-")
    near = nearest(name, [*(option.flag for option in OPTIONS), *hook_flags()]) if len(name) > 1 else ""
    within = "" if typed in (word, word.partition("=")[0]) else f" in {word!r}"
    return UnknownOptionError(
        f"no such option: {typed.partition('=')[0]}{within}", hint=f"--{near}" if near else "elastic run --help"
    )
