"""Pieces of Markdown that the pages' tables are made of."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple


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
    """A link to a class of the API, from a page of the reference."""
    return f"[`{cls.__name__}`](api.md#{cls.__name__.lower()})"


def signature(function: Callable[..., object], name: str) -> str:
    """How a function is called, as its source has it."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef)
    arguments = re.sub(r"^(self|cls)(, (/, )?|$)", "", ast.unparse(node.args))
    return f"{name}({arguments})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def prose(thing: object) -> str:
    """A docstring as Markdown: its sections (`Args:`, `Raises:` …) become lists."""
    lines, items = [], False
    for line in (inspect.getdoc(thing) or "").splitlines():
        if re.fullmatch(r"(Args|Raises|Returns|Yields|Attributes|Example|Examples):", line):
            lines += ["", f"*{line[:-1]}:*", ""]
            items = True
        elif items and line.startswith("    ") and not line.startswith("     "):
            name, colon, text = line.strip().partition(": ")
            lines.append(f"- `{name}`: {text}" if colon and " " not in name else f"- {line.strip()}")
        elif items and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            items = items and not line
            lines.append(line.strip() if not line.startswith(("- ", "  ")) else line)
    return re.sub(r"\n{3,}", "\n\n", _no_tags("\n".join(lines))).strip()


def _no_tags(text: str) -> str:
    """Return text in which no `<word>` outside of code is a tag."""
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace("<", "\\<") for number, part in enumerate(parts))


class Attribute(NamedTuple):
    """An attribute that a class defines itself, as its source has it. `default` is empty where there is none."""

    annotation: str
    default: str
    text: str


def attributes(cls: type) -> dict[str, Attribute]:
    """The attributes that a class defines itself, with what stands below each, which Python throws away."""
    (definition,) = (node for node in _classes(inspect.getsourcefile(cls) or "") if node.name == cls.__name__)
    found = {}
    for node, after in zip(definition.body, [*definition.body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, annotation = node.target.id, ast.unparse(node.annotation).strip("'")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, annotation = node.targets[0].id, ""
        else:
            continue
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        default = ast.unparse(node.value) if node.value is not None else ""
        found[name] = Attribute(annotation, default, _no_tags(inspect.cleandoc(str(text))))
    return found


@cache
def _classes(file: str) -> list[ast.ClassDef]:
    return [node for node in ast.parse(Path(file).read_text()).body if isinstance(node, ast.ClassDef)]
