"""The texts of errors in the source: `Try:` follows a full stop, so that no text ends with a sign of its own."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")])


def ends(source):
    """Return the texts of errors that end with a sign, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        text = node.args[0].values[-1] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
        is_text = name.endswith(("Error", "BadParameter", "refusal")) and isinstance(text, ast.Constant)
        if is_text and str(text.value).rstrip()[-1:] in tuple(".?!:;,"):
            yield node.lineno, text.value


def test_what_is_looked_for_is_found():
    source = 'raise ConfigError(f"{n} agents run here: which one?", hint="x")\nraise ElasticError("fine", hint="a.")'
    assert list(ends(source)) == [(1, " agents run here: which one?")]


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in FILES}), ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_error_ends_with_two_signs(folder):
    found = [(path.name, *end) for path in FILES if path.parent == folder for end in ends(path.read_text())]
    assert found == []
