"""Each promise of the README, and each of its commands, has a test, and `readme.toml` names it."""

import ast
import json
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from elastic_core.options.hook_options import all_hook_options
from elastic_core.options.table import OPTIONS
from tiers import TEST, TORCH, tier_of

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = Path(__file__).with_name("readme.toml")
README = ROOT / "README.md"

TABLES = {
    "reasons": ("README.md", ("", "torchrun", "elastic run")),
    "differences": ("README.md", ("behaviour", "torchrun", "elastic run")),
    "distributions": ("docs/reference/distributions.md", ("distribution", "use", "in a checkout")),
    "library": ("docs/reference/migration.md", ("module", "contents")),
}
"""The tables, by the name that entries give them, each with its page and the cells of its header."""
FIGURES = {
    "start of 1 worker, to its first line": "start-1",
    "memory of the agent, with all packages": "agent-memory",
    "a node joins: time until all workers have started again": "nodes-join",
}
"""The rows of the README with figures, each with the name of its figure in the benchmarks."""
OPTIONS_OF_OURS = "options"
"""The entries about options name flags: each option that torchrun lacks has one."""

KEYS = {"table": str, "row": str, "test": str, "torch": bool}


def test_each_promise_of_the_readme_has_a_test_that_the_everyday_tier_runs():
    pages = {page: (ROOT / page).read_text() for page, _ in TABLES.values()}
    entries = tomllib.loads(ENTRIES.read_text())["promise"]
    faults = [
        *faults_of_entries(entries),
        *faults_of_rows(pages, entries),
        *faults_of_options(options_of_ours(), entries),
        *faults_of_tests(entries),
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_each_command_of_the_readme_is_run_by_a_test():
    shown = commands_of(README.read_text())
    entries = tomllib.loads(ENTRIES.read_text())["command"]
    named = {entry["line"]: entry["test"] for entry in entries}
    assert len(named) == len(entries)
    assert [line for line in shown if line not in named] == [], "add each as [[command]] to readme.toml, with its test"
    assert [line for line in named if line not in shown] == [], "correct these commands of readme.toml, or remove them"
    without = {test for test in named.values() if len(places_of(test)) != 1}
    assert without == set(), "name test functions that are in exactly one file"


def test_figures_are_those_of_the_benchmarks():
    readme = README.read_text()
    measured = json.loads((ROOT / "benchmarks/published.json").read_text())["figures"]
    for row, name in FIGURES.items():
        if name in measured:
            theirs, ours = (of_readme(measured[name], launcher) for launcher in ("torchrun", "elastic run"))
            assert f"| {row} | {theirs} | {ours} |" in readme, "correct README: make bench-save has other figures"
    known = {of_readme(one, launcher) for one in measured.values() for launcher in one["launchers"]}
    pages = [(ROOT / f"docs/explanation/{name}.md").read_text() for name in ("performance", "measurements")]
    shown = set(re.findall(r"\b[\d.]+ (?:ms|MiB)\b", readme.partition("## Why")[2].partition("\n## ")[0]))
    assert len(shown) == 10
    assert [figure for figure in sorted(shown - known) if not any(figure in page for page in pages)] == []


def of_readme(one, launcher):
    """Return a launcher's median of a figure as the README has it."""
    return f"{one['launchers'][launcher]['median']['value']:.0f} {one['unit']}"


def test_options_of_the_readme_exist():
    lines = re.findall(r"elastic run [^`\n]*|`--[^`]+`", README.read_text())
    named = {option for line in lines for option in re.findall(r"(?<!\S)`?(--[a-z-]+)", line)}
    assert len(named) > 10
    assert named <= {f"--{option.flag}" for option in (*OPTIONS, *all_hook_options())}


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 200


def test_links_of_the_readme_lead_to_files():
    readme = README.read_text()
    linked = re.findall(r"\]\((?!https?:)([^)#]+)|(?:src|srcset)=\"([^\"]+)\"", readme)
    paths = [path for pair in linked for path in pair if path]
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_each_kind_of_fault_is_one_line_that_says_what_to_do():
    page = "| module | contents |\n| --- | --- |\n| `new`, [a](b) | … |\n| `kept` | … |\n"
    kept = {"table": "library", "row": "kept", "test": "test_readme.py::test_none", "torch": True}
    entries = [kept, kept, {"table": "library", "row": "old"}, {"table": "options", "row": "--gone, --used"}]
    found = [
        *faults_of_entries(entries),
        *faults_of_rows({"README.md": "", "docs/reference/distributions.md": "", TABLES["library"][0]: page}, entries),
        *faults_of_options(["--used", "--new"], entries),
        *faults_of_tests([kept]),
    ]
    for words in (
        "row 'old' needs test (a str)",
        "row 'kept' names test_readme.py::test_none 2 times",
        "distributions.md: the table 'distributions' (distribution | use | in a checkout) is missing",
        'add table = "library", row = "new, a", test = "test_FILE.py::test_NAME"',
        "the table 'library' has no row 'old'",
        "option --new has no test",
        "no option of ours is named --gone",
        "test_readme.py::test_none is defined in 0 test files",
    ):
        assert [words in fault and "\n" not in fault for fault in found].count(True) == 1, (words, found)
    here = {**kept, "test": f"test_readme.py::{test_each_kind_of_fault_is_one_line_that_says_what_to_do.__name__}"}
    assert "is in tier 'test'; expected 'test-torch'" in next(faults_of_tests([here]))


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("```sh\npip install .   # one node\n```\n", ["pip install ."]),
        ("```console\n$ elastic runs\nnone\n```\n", ["elastic runs"]),
        ("```diff\n- torchrun a.py\n+ elastic run a.py\n```\n", ["elastic run a.py"]),
        ("```diff\n+step += 1\n```\n", []),
        (
            "```sh\nelastic k8s render a | elastic k8s apply -f -\n```\n",
            ["elastic k8s render a", "elastic k8s apply -f -"],
        ),
        ("Type `make demo`, not `elastic run`.\n```python\n`make it`\n```\n", ["make demo"]),
    ],
    ids=["sh", "console", "line that changes", "script that changes", "pipe", "text"],
)
def test_commands_are_found(text, commands):
    assert commands_of(text) == commands


def commands_of(text):
    """Return the commands of a page, in blocks and within the text, without comments; each once."""
    found, kind = [], None
    for line in text.splitlines():
        if line.startswith("```"):
            kind = line[3:] if kind is None else None
        elif kind is None:
            found += [
                each for each in re.findall(r"`((?:elastic|make|pip|srun) [^`]+)`", line) if each != "elastic run"
            ]
        elif kind == "sh":
            found += line.partition("  # ")[0].split(" | ")
        elif (kind == "console" and line.startswith("$ ")) or (kind == "diff" and line.startswith("+ elastic ")):
            found.append(line[2:])
    return list(dict.fromkeys(filter(None, map(str.strip, found))))


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


def faults_of_rows(pages, entries):
    """Yield a line for each row without an entry, for each entry without a row, and for each missing table."""
    for table, (page, header) in TABLES.items():
        rows = rows_of(pages[page], header)
        named = [entry.get("row") for entry in entries if entry.get("table") == table]
        if rows is None:
            yield f"{page}: the table {table!r} ({' | '.join(header)}) is missing; correct TABLES in test_readme.py"
            continue
        for row in rows:
            if row not in named:
                yield (
                    f"{page}: row {row!r} has no test. Write one, and in readme.toml below [[promise]] add "
                    f'table = "{table}", row = "{row}", test = "test_FILE.py::test_NAME"'
                )
        for row in dict.fromkeys(named):
            if row not in rows:
                yield f"readme.toml: the table {table!r} has no row {row!r}; correct the entry, or remove it"
    for entry in entries:
        if entry.get("table") not in (*TABLES, OPTIONS_OF_OURS):
            yield f"readme.toml: row {entry.get('row')!r}: table is none of {', '.join((*TABLES, OPTIONS_OF_OURS))}"


def options_of_ours():
    """Return the options of `elastic run` that torchrun lacks."""
    return [f"--{option.flag}" for option in (*OPTIONS, *all_hook_options()) if not option.torch]


def faults_of_options(options, entries):
    """Yield a line for each of our options without an entry, and for each entry without an option."""
    rows = [entry.get("row", "") for entry in entries if entry.get("table") == OPTIONS_OF_OURS]
    named = {flag for row in rows for flag in row.split(", ")}
    for flag in options:
        if flag not in named:
            yield (
                f"option {flag} has no test. Write one, and in readme.toml below [[promise]] add "
                f'table = "{OPTIONS_OF_OURS}", row = "{flag}", test = "test_FILE.py::test_NAME"'
            )
    for flag in sorted(named - {*options}):
        yield f"readme.toml: no option of ours is named {flag}; correct the entry, or remove it"


def faults_of_tests(entries):
    """Yield a line for each named test that is not in exactly one file, or is in another tier than needed."""
    for entry in entries:
        defining = places_of(entry.get("test", ""))
        if len(defining) != 1:
            found = f" ({', '.join(map(str, defining))})" if defining else ""
            yield (
                f"readme.toml: row {entry.get('row')!r}: {entry.get('test')} is defined in {len(defining)} test files"
                f"{found}; name a test function that is in exactly one"
            )
            continue
        tier, needed = tier_of(defining[0]), TORCH if entry.get("torch") else TEST
        if tier != needed:
            yield (
                f"readme.toml: row {entry.get('row')!r}: {defining[0]} is in tier {tier!r}; expected {needed!r}. "
                "Name a test of that tier, or move this one"
            )


def places_of(test):
    """Return the test files that define a test, which is named FILE::FUNCTION."""
    file, _, function = test.partition("::")
    return [path for path in files_by_name().get(file, []) if function in functions_of(path)]


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
