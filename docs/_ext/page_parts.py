"""Pieces of Markdown that the pages' tables are made of."""

import ast
import inspect
from collections.abc import Iterable
from functools import cache
from pathlib import Path


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


def said_of_attributes(cls: type) -> dict[str, str]:
    """What stands below each attribute that a class defines itself, which Python throws away."""
    (definition,) = (node for node in _classes(inspect.getsourcefile(cls) or "") if node.name == cls.__name__)
    found = {}
    for node, after in zip(definition.body, [*definition.body[1:], ast.Pass()], strict=True):
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            found[target.id] = inspect.cleandoc(str(text))
    return found


@cache
def _classes(file: str) -> list[ast.ClassDef]:
    return [node for node in ast.parse(Path(file).read_text()).body if isinstance(node, ast.ClassDef)]
