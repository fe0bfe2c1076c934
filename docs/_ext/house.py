"""Where is what: the rooms of the core and the distributions beside it, drawn from the tree."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from page_parts import table

ROOT: Final = Path(__file__).resolve().parents[2]
CORE: Final = ROOT / "src" / "elastic_core"
"""A distribution in README: its name, and who needs it."""


def rooms() -> str:
    """Return a table of the core's folders, and what each is."""
    folders = (CORE, *sorted(path.parent for path in CORE.rglob("*/__init__.py")))
    rows = ((f"`{folder.relative_to(ROOT)}`", _first_line(folder / "__init__.py")) for folder in folders)
    return table(("package", "what"), rows)


def distributions() -> str:
    """Return a table of our distributions: what each is, and what it registers."""
    rows = []
    for path in [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]:
        project = tomllib.loads(path.read_text())["project"]
        offers = [f"{group}: {', '.join(names)}" for group, names in project.get("entry-points", {}).items()]
        folder = path.parent.relative_to(ROOT)
        rows.append((project["name"], f"`{folder}`", project["description"], "; ".join(offers)))
    return table(("distribution", "folder", "what", "registers"), rows)


def imports_by_string() -> Iterator[tuple[str, str, str]]:
    """Yield file, target and reason of each import by string in our sources: what no contract of imports sees.

    The reason is the comment on its line or on the line before; empty where a module of ours is named without one.
    """
    for path in sorted([*CORE.rglob("*.py"), *ROOT.glob("plugins/*/src/**/*.py")]):
        text = path.read_text()
        rows = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or ast.unparse(node.func).split(".")[-1] != "import_module":
                continue
            row, before = rows[node.lineno - 1], rows[node.lineno - 2].strip()
            reason = row.partition("  # ")[2] or (before.removeprefix("# ") if before.startswith("# ") else "")
            yield str(path.relative_to(ROOT)), ast.unparse(node.args[0]), reason or _usual_reason(node.args[0])


def _usual_reason(target: ast.expr) -> str:
    if not isinstance(target, ast.Constant):
        return "named by an entry point, a table or an argument"
    return "" if str(target.value).startswith("elastic_") else "heavy, or optional: imported where it is used"


def string_imports() -> str:
    """Return the imports by string as a table."""
    rows = ((f"`{file}`", f"`{target}`", reason) for file, target, reason in imports_by_string())
    return table(("file", "what", "why"), rows)


def _first_line(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    return doc.split("\n", 1)[0]
