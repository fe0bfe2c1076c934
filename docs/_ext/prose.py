"""The texts that users read, and the words in them that slow a reader down, counted.

Run as a program it lists each finding: `python docs/_ext/prose.py [PART OF A PATH]`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
WORDS = re.compile(
    r"\b(?:nobody|somebody|whoever|told|heard|the word(?!\s+[`\"'])|stands(?!\s+for)"
    r"|as ever|in peace|for want of|be it that)\b",
    re.IGNORECASE,
)
# `who` and `whose` where a sentence or a clause begins; a question may begin with them.
SUBJECTS = re.compile(r"(?:^|[.:;]\s+|^[-*#|>]+\s+|\|\s+)(?:who|whose)\b(?![^.:;|]*\?)", re.IGNORECASE)
_FENCE = re.compile(r"^\s*(```|~~~)")


class Finding(NamedTuple):
    """A place with a word of the list."""

    path: str
    line: int
    words: str
    text: str


def pages() -> list[Path]:
    """Return README and pages, of the distributions too, without the decisions."""
    found = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("plugins/*/README.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
    return sorted(path for path in found if "decisions" not in path.parts and path.name != "CHANGELOG.md")


def sources() -> list[Path]:
    """Return the modules that are installed."""
    return sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")])


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield a page's paragraphs with their first lines; code blocks are not prose."""
    fenced, begin, lines = False, 0, []
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and line.strip():
            begin = begin or number
            lines.append(line)
            continue
        if lines:
            yield begin, "\n".join(lines)
        begin, lines = 0, []


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield a module's docstrings and its other texts of several words: help, messages, errors."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def findings() -> list[Finding]:
    """Return each place with a word of the list."""
    return [
        Finding(str(path.relative_to(ROOT)), begin + text.count("\n", 0, match.start()), match[0].strip(), text)
        for read, paths in ((prose, pages()), (strings, sources()))
        for path in paths
        for begin, text in read(path)
        for pattern in (WORDS, SUBJECTS)
        for match in pattern.finditer(text)
    ]


if __name__ == "__main__":
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    shown = [each for each in findings() if part in each.path]
    for path, line, words, text in shown:
        sys.stdout.write(f"{path}:{line}: {words!r}: {' '.join(text.split())[:150]}\n")
    sys.stdout.write(f"{len(shown)} in {len({each.path for each in shown})} files\n")
