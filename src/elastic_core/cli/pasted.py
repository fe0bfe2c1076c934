"""Detects typographic hyphens and blanks in a command line that was pasted from a page."""

import unicodedata
from collections.abc import Sequence

from elastic_core.errors import ConfigError

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_BLANKS = "\u00a0\u2007\u202f\u200b\ufeff"


def pasted(error: Exception, words: Sequence[str]) -> ConfigError | None:
    """Return an error that names the typographic character in the argument that `error` names, or `None`.

    A valid argument, such as a file whose name begins with such a dash, is no error.
    """
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    for word in words:
        found = next((letter for letter in word if letter in _DASHES + _BLANKS), "")
        value = word.partition("=")[2] or word
        if found and any(part in text for part in (word, repr(word)[1:-1], value, repr(value)[1:-1])):
            return _named(word, found, getattr(error, "hint", ""))
    return None


def _named(word: str, found: str, hint: str) -> ConfigError:
    article = "an" if (name := _name(found))[0] in "aeiou" else "a"
    what = f"{article} {name} (U+{ord(found):04X})"
    if not word.startswith(found):
        return ConfigError(f"{word!r} contains {what}", hint=_ascii(word) if found in _BLANKS or not hint else hint)
    instead = ", not with hyphens" if found in _DASHES else ""
    return ConfigError(f"{word!r} begins with {what}{instead}", hint=_ascii(word))


def _name(letter: str) -> str:
    return unicodedata.name(letter).lower().replace("figure space", "no-break figure space")


def _ascii(word: str) -> str:
    # A long option begins with two hyphens, whatever the typographic dashes were.
    bare = word.lstrip(_DASHES + _BLANKS + "-")
    dashes = [letter for letter in word[: len(word) - len(bare)] if letter not in _BLANKS]
    start = "" if not dashes else "--" if len(bare.partition("=")[0]) > 1 else "-"
    return start + bare.translate({ord(dash): "-" for dash in _DASHES} | {ord(blank): None for blank in _BLANKS})
