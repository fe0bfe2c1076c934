"""The texts of errors in the source: one form for a rejected value, and `Try:` after a full stop alone."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")])
WANTS = re.compile(
    r"(?:^|[:;,] )needed\b"  # --nnodes 'two': needed a number
    r"|\b(?:is|are) needed$"  # 0 or more is needed
    r"|\bneeded (?:is|are)\b"
    r"|^(?:--[\w-]+ )?(?:§|'§') is (?:no|none of|neither)\b"  # 'x' is no number
    r"|, which is (?:not an?|not one of|neither|no)\b"
)
"""What an error says of a value, in other words than 'expected'; a `§` is in the place of each value."""


def refusals(source):
    """Return the texts of errors and their lines, with a `§` for each value."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        parts = node.args[0].values if isinstance(node.args[0], ast.JoinedStr) else [node.args[0]]
        if name.endswith(("Error", "BadParameter", "refusal", "reject")) and isinstance(
            parts[-1], ast.Constant | ast.FormattedValue
        ):
            yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "§" for part in parts)


def ends(source):
    """Return the texts of errors that end with a sign, with their lines."""
    return [(line, text) for line, text in refusals(source) if text.rstrip()[-1:] in tuple(".?!:;,")]


def other_forms(source):
    """Return the texts of errors that reject a value in another form than `object: seen; expected needed`."""
    return [(line, text) for line, text in refusals(source) if WANTS.search(text)]


def test_what_is_looked_for_is_found():
    source = 'raise ConfigError(f"{n} agents run here: which one?", hint="x")\nraise ElasticError("fine", hint="a.")'
    assert ends(source) == [(1, "§ agents run here: which one?")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("--nnodes {n!r}: needed a number", True),
        ("--spares is {n}; 0 or more is needed", True),
        ("{n!r} is no port", True),
        ("--kind {n!r} is none of {n}", True),
        ("--rdzv-endpoint has the port {n!r}, which is not a number from 1 to 9", True),
        ("--nnodes: {n!r}; expected a number", False),
        ("rule file {n!r} is not readable", False),
        ("run {n!r} is full: this node is not needed", False),
    ],
)
def test_another_form_is_found(text, found):
    assert bool(other_forms(f'raise ConfigError(f"{text}")')) is found


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in FILES}), ids=lambda path: str(path.relative_to(ROOT))
)
def test_errors_have_the_one_form(folder):
    sources = {path.name: path.read_text() for path in FILES if path.parent == folder}
    assert [(name, *end) for name, source in sources.items() for end in ends(source)] == []
    assert [(name, *form) for name, source in sources.items() for form in other_forms(source)] == []
