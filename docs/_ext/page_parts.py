"""Pieces of Markdown that the pages' tables are made of."""

import inspect
from collections.abc import Iterable


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table, with its head."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def first_line(thing: object) -> str:
    """What a docstring says first; empty: there is none."""
    return (inspect.getdoc(thing) or "").partition("\n\n")[0]


def public(cls: type) -> str:
    """A link to a class of the API."""
    return f"{{py:class}}`~elastic_core.api.{cls.__name__}`"
