"""Reads the command line of `elastic run` as argparse reads torchrun's.

Both spellings of an option, unambiguous prefixes, and everything from the script on untouched.
"""

import re
from collections.abc import Callable, Sequence

from elastic_core.errors import ConfigError
from elastic_core.options.readers import nearest
from elastic_core.options.table import OPTIONS, OptionRow
from elastic_core.types import Record

_NEGATIVE = re.compile(r"-\d*\.?\d+")
_SHORT = {row.short: row for row in OPTIONS if row.short is not None}
_HELP = "help"


class Arguments(Record, frozen=True, kw_only=True):
    """What the command line gave: options by identifier, the script, and its arguments. `help`: only help was asked."""

    given: dict[str, str | bool | tuple[str, ...]]
    script: str | None
    rest: tuple[str, ...]
    help: bool = False


def read_arguments(words: Sequence[str]) -> Arguments:
    """Return the options before the script, the script, and everything after it as it is.

    Raises:
        ConfigError: an option is unknown, ambiguous, or lacks its value.
    """
    reader = _Reader(words)
    return reader.read()


class _Reader:
    """One pass over the words."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._next = 0
        self._given: dict[str, str | bool | tuple[str, ...]] = {}
        self._help = False

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
        return Arguments(given=self._given, script=rest[0] if rest else None, rest=rest[1:], help=self._help)

    def _long(self, word: str) -> None:
        typed, equals, value = word.partition("=")
        row = find_option(typed)
        if row is None:
            self._help = True
        elif row.metavar is None and equals:
            raise ConfigError(f"{typed} takes no value: {word!r}", hint=f"--{row.name}")
        elif row.metavar is None:
            self._given[row.dest] = True
        else:
            self._keep(row, value if equals else self._value(typed, row))

    def _cluster(self, word: str) -> None:
        """Read short options behind one dash: flags, then at most one with a value (`-mr3`, `-r 3`, `-r=3`)."""
        for index, letter in enumerate(word[1:], start=1):
            if letter == "h":
                self._help = True
                return
            row = _SHORT.get(letter)
            if row is None:
                raise _unknown(word, typed=f"-{letter}" if index > 1 else word)
            if row.metavar is None:
                self._given[row.dest] = True
                continue
            attached = word[index + 1 :]
            self._keep(row, attached.removeprefix("=") if attached else self._value(f"-{letter}", row))
            return

    def _value(self, typed: str, row: OptionRow) -> str:
        """Return the word that follows; one that looks like an option is none, as in argparse."""
        word = self._words[self._next] if self._next < len(self._words) else None
        if word is None or (
            len(word) > 1 and word.startswith("-") and not _NEGATIVE.fullmatch(word) and " " not in word
        ):
            seen = "the command line ends" if word is None else f"{word!r} follows"
            raise ConfigError(f"{typed} needs a value: {seen}", hint=f"--{row.name}={row.metavar}")
        self._next += 1
        return word

    def _keep(self, row: OptionRow, value: str) -> None:
        earlier = self._given.get(row.dest, ())
        self._given[row.dest] = (*earlier, value) if row.many and isinstance(earlier, tuple) else value


def find_option(typed: str) -> OptionRow | None:
    """Return the option that `--name`, or an unambiguous beginning of it, means; None for `--help`.

    A beginning that was unambiguous for torchrun stays so: torch's options are tried first, those of hooks last.

    Raises:
        ConfigError: there is no such option, or several begin so.
    """
    name = typed.removeprefix("--").replace("_", "-")
    exact = next((row for row in OPTIONS if row.name == name), None)
    if exact is not None:
        return exact
    from elastic_core.options.hook_options import hook_option_named, hook_row  # not for a line of our options alone

    from_hook = hook_row(name)
    if from_hook is not None:
        return from_hook
    conditions: tuple[Callable[[OptionRow], bool], ...] = (lambda row: row.torch, lambda row: True)
    matches: list[str] = []
    for condition in conditions:
        matches = [row.name for row in OPTIONS if condition(row) and name and row.name.startswith(name)]
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
    return next((row for row in OPTIONS if row.name == matches[0]), None)


def _unknown(word: str, *, typed: str) -> ConfigError:
    name = typed.partition("=")[0].lstrip("-").replace("_", "-")
    near = nearest(name, [row.name for row in OPTIONS]) if len(name) > 1 else ""
    within = "" if typed in (word, word.partition("=")[0]) else f" in {word!r}"
    return ConfigError(
        f"no such option: {typed.partition('=')[0]}{within}", hint=f"--{near}" if near else "elastic run --help"
    )
