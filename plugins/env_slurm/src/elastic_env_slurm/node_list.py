"""Slurm's lists of nodes, such as `gpu[001-003,7],login`: their names and number."""

import re
from collections.abc import Iterator
from typing import Final

_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_NAME: Final = re.compile(r"[^\s,\[\]]+")
_MOST: Final = 100_000
"""The limit of names: a longer list is a mistake."""


def node_names(text: str) -> list[str]:
    """Return the names in a list, in its order.

    Raises:
        ValueError: it is not a list; the text has the reason.
    """
    names: list[str] = []
    for part in _parts(text):
        names += _expanded(part, _MOST - len(names))
    if not names:
        raise ValueError("it is empty")
    return names


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between commas outside of brackets."""
    depth, begin = 0, 0
    for place, sign in enumerate(text):
        depth += (sign == "[") - (sign == "]")
        if depth not in (0, 1):
            raise ValueError(f"a bracket too many at {text[place:]!r}")
        if sign == "," and not depth:
            yield text[begin:place]
            begin = place + 1
    if depth:
        raise ValueError("a bracket is not closed")
    if text:
        yield text[begin:]


def _expanded(part: str, room: int) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        if not _NAME.fullmatch(part):
            raise ValueError(f"{part!r}; expected a name")
        return [part]
    inner, _, after = rest.partition("]")
    numbers = [number for each in inner.split(",") for number in _numbers(each, room)]
    tails = _expanded(after, room) if after else [""]  # several brackets: `rack[1-2]n[1-4]`
    if len(numbers) * len(tails) > room:
        raise ValueError("it has too many names")
    return [f"{before}{number}{tail}" for number in numbers for tail in tails]


def _numbers(text: str, room: int) -> list[str]:
    found = _RANGE.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} in brackets; expected a range of numbers")
    first, last = found[1], found[2] or found[1]
    if not 0 <= int(last) - int(first) < room:
        raise ValueError(f"{text!r} in brackets; expected a range of numbers")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
