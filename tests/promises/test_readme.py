"""Each row of the README's tables of promises has a test, and `readme.toml` names it."""

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

from tiers import TEST, TORCH, tier_of

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = Path(__file__).with_name("readme.toml")

TABLES = {
    "distributions": ("distribution", "who needs it"),
    "differences": ("", "torchrun", "elastic run"),
    "options": ("option", "meaning"),
    "library": ("room", "what it has"),
}
"""The tables, by the name that entries give them, each with the cells of its header."""

KEYS = {"table": str, "row": str, "test": str, "torch": bool}


def test_each_promise_of_the_readme_has_a_test_that_the_everyday_tier_runs():
    readme = (ROOT / "README.md").read_text()
    entries = tomllib.loads(ENTRIES.read_text())["promise"]
    faults = [*faults_of_entries(entries), *faults_of_rows(readme, entries), *faults_of_tests(entries)]
    assert not faults, "\n" + "\n".join(faults)


def test_each_kind_of_fault_is_one_line_that_says_what_to_do():
    readme = "| option | meaning |\n| --- | --- |\n| `--new N`, [a](b) | … |\n| `--kept` | … |\n"
    kept = {"table": "options", "row": "--kept", "test": "test_readme.py::test_none", "torch": True}
    entries = [kept, kept, {"table": "options", "row": "--old"}]
    found = [*faults_of_entries(entries), *faults_of_rows(readme, entries), *faults_of_tests([kept])]
    for words in (
        "row '--old' needs test (a str)",
        "row '--kept' names test_readme.py::test_none 2 times",
        "README.md: the table 'distributions' (distribution | who needs it) is missing",
        'add table = "options", row = "--new N, a", test = "test_FILE.py::test_NAME"',
        "the README's table 'options' has no row '--old'",
        "test_readme.py::test_none is defined in 0 test files",
    ):
        assert [words in fault and "\n" not in fault for fault in found].count(True) == 1, (words, found)
    here = {**kept, "test": f"test_readme.py::{test_each_kind_of_fault_is_one_line_that_says_what_to_do.__name__}"}
    assert "is in tier 'test'; expected 'test-torch'" in next(faults_of_tests([here]))


def rows_of(readme, header):
    """Return the texts of a table's first column, without markup, or None if no table has this header."""
    lines = iter(readme.splitlines())
    for line in lines:
        if line.startswith("|") and tuple(cells_of(line)) == header:
            next(lines)  # the line below the header
            rows = []
            for row in lines:
                if not row.startswith("|"):
                    break
                rows.append(cells_of(row)[0])
            return rows
    return None


def cells_of(line):
    """Return the texts of a table's line: links are replaced by their words, and backticks are left out."""
    cells = re.split(r"(?<!\\)\|", line.strip())[1:-1]
    return [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).replace("`", "").strip() for cell in cells]


def faults_of_entries(entries):
    """Yield a line for each entry that lacks a key, has an unknown one, or is there twice."""
    for entry in entries:
        where = f"readme.toml: row {entry.get('row')!r}"
        for key, kind in KEYS.items():
            if key != "torch" and not isinstance(entry.get(key), kind):
                yield f"{where} needs {key} (a {kind.__name__})"
        for key in entry.keys() - KEYS:
            yield f"{where} has an unknown key {key!r}; keys are {', '.join(KEYS)}"
    named = Counter((entry.get("table"), entry.get("row"), entry.get("test")) for entry in entries)
    for (_, row, test), count in named.items():
        if count > 1:
            yield f"readme.toml: row {row!r} names {test} {count} times; keep one entry"


def faults_of_rows(readme, entries):
    """Yield a line for each row without an entry, for each entry without a row, and for each missing table."""
    for table, header in TABLES.items():
        rows = rows_of(readme, header)
        named = [entry.get("row") for entry in entries if entry.get("table") == table]
        if rows is None:
            yield f"README.md: the table {table!r} ({' | '.join(header)}) is missing; correct TABLES in test_readme.py"
            continue
        for row in rows:
            if row not in named:
                yield (
                    f"README.md: row {row!r} has no test. Write one, and in readme.toml below [[promise]] add "
                    f'table = "{table}", row = "{row}", test = "test_FILE.py::test_NAME"'
                )
        for row in dict.fromkeys(named):
            if row not in rows:
                yield f"readme.toml: the README's table {table!r} has no row {row!r}; correct the entry, or remove it"
    for entry in entries:
        if entry.get("table") not in TABLES:
            yield f"readme.toml: row {entry.get('row')!r}: table is none of {', '.join(TABLES)}"


def faults_of_tests(entries):
    """Yield a line for each named test that is not in exactly one file, or is in another tier than needed."""
    for entry in entries:
        file, _, function = entry.get("test", "").partition("::")
        defining = [path for path in files_by_name().get(file, []) if function in functions_of(path)]
        if len(defining) != 1:
            found = f" ({', '.join(map(str, defining))})" if defining else ""
            yield (
                f"readme.toml: row {entry.get('row')!r}: {file}::{function} is defined in {len(defining)} test files"
                f"{found}; name a test function that is in exactly one"
            )
            continue
        tier, needed = tier_of(defining[0]), TORCH if entry.get("torch") else TEST
        if tier != needed:
            yield (
                f"readme.toml: row {entry.get('row')!r}: {defining[0]} is in tier {tier!r}; expected {needed!r}. "
                "Name a test of that tier, or move this one"
            )


@cache
def files_by_name():
    """Return the repository's test files by name, each path relative to the repository."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        folders = tomllib.load(file)["tool"]["pytest"]["ini_options"]["testpaths"]
    found = {}
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("test_*.py")):
        found.setdefault(path.name, []).append(path.relative_to(ROOT))
    return found


@cache
def functions_of(path):
    """Return the names of a file's test functions, which are at its top level."""
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
