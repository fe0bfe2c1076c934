"""Each class of the core has a name of its own: a reader who searches for a name finds one meaning."""

import ast
from collections import Counter
from pathlib import Path

CORE = Path(__file__).parents[3] / "src/elastic_core"


def test_no_class_name_is_defined_twice():
    names = Counter(
        node.name
        for path in CORE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []
