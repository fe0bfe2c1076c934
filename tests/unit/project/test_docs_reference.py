"""The reference pages are complete: what is made from the code has all of it, and what names tests names real ones."""

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import elastic_plugin_kit
import elastic_train
import elastic_warm
from elastic_core import api, embedding
from elastic_core.options.table import OPTIONS

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
SOURCES = [*ROOT.glob("src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]


def load(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / "_ext" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = load("reference_tables")
names = load("public_names")
parts = load("page_parts")
diagram = load("state_diagram")
made = load("made_tables")


RENEW = "the code has changed. Try: make docs-tables, or python docs/_ext/made_tables.py"


def test_every_table_is_on_a_page_as_the_code_has_it_now():
    shown = {name: set() for name in made.ALL}
    for page in made.pages():
        for match in made.MADE.finditer(page.read_text()):
            shown.setdefault(match["name"], set()).add(match["text"])
    assert [name for name, texts in shown.items() if not texts] == [], "no page shows these tables"
    assert [name for name in shown if shown[name] != {f"\n{made.ALL[name]()}\n\n"}] == [], RENEW


def test_every_option_is_in_the_reference_with_its_help_and_variable():
    text, variables = tables.options(), tables.pet_variables()
    missing = [
        (row.name, words)
        for row in OPTIONS
        for words, page in (
            (f"--{row.flag}", text),
            (row.help, text),
            *(((f"`{row.env_name}`", text), (f"`{row.env_name}`", variables)) if row.env_name else ()),
        )
        if words not in page
    ]
    assert missing == []


def test_nothing_is_left_for_later():
    later = re.compile(r"(?i)not available yet|not there yet|no effect yet|not implemented")
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("*/*.md")]
    assert {str(page): found for page in pages if (found := later.findall(page.read_text()))} == {}
    assert [row.name for row in OPTIONS if "yet" in row.help] == []


def variables_in_the_code():
    names = set()
    for path in SOURCES:
        names |= set(re.findall(r"\b(?:ELASTIC|TORCHELASTIC|TORCH_ELASTIC)_[A-Z_]*[A-Z]\b", path.read_text()))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names |= set(re.findall(r"^(?:TORCH|NCCL|OMP|CUDA|XDG|PYTHON)_[A-Z_]*[A-Z]$", node.value))
    return names


def test_every_variable_in_the_code_is_explained():
    every = (tables.WORKER_VARIABLES, tables.VARIABLES_OF_HOOKS, tables.READ_VARIABLES, tables.INTERNAL_VARIABLES)
    explained = {name for table in every for name in table}
    missing = sorted(variables_in_the_code() - explained)
    assert not missing, f"explain {missing} in docs/_ext/reference_tables.py"


def test_no_variable_is_explained_that_the_code_does_not_know():
    text = "\n".join(path.read_text() for path in SOURCES)
    every = (tables.WORKER_VARIABLES, tables.VARIABLES_OF_HOOKS, tables.READ_VARIABLES, tables.INTERNAL_VARIABLES)
    explained = {name for table in every for name in table}
    assert [name for name in explained if name not in text] == []


def test_every_variable_that_is_explained_for_workers_is_really_set():
    assert tables.worker_variable_names() == list(tables.WORKER_VARIABLES)


def test_all_that_embeds_an_agent_is_in_the_reference_once():
    listed = [name for section in names.EMBEDDING_SECTIONS.values() for name in section]
    assert sorted(listed) == sorted({*names.public(embedding), "registry", "run_job"})
    assert all(f"`{name}`" in names.embedding_reference() for name in listed)


def test_the_front_page_of_the_api_fits_on_a_page_and_says_when_each_name_is_needed():
    listed = {name: text for section in names.front_page().values() for name, text in section.items()}
    assert sorted(listed) == sorted(names.public(api)), "src/elastic_core/api/__init__.py: docstring and imports differ"
    assert len(listed) <= 70
    assert [name for name, text in listed.items() if not re.fullmatch(r"[A-Z`].*\.", text)] == []
    shown = subprocess.check_output(
        [sys.executable, "-c", "import elastic_core.api as api; help(api)"],
        text=True,
        env=os.environ | {"PAGER": "cat"},
    )
    assert all(f"{name}: " in shown for name in listed)
    assert len(shown.splitlines()) < 150


def test_each_name_of_the_api_is_in_one_module_and_in_the_reference_once():
    found = [name for module in names.MODULES for name in names.public(module)]
    assert [name for name in sorted({*found}) if found.count(name) > 1] == []
    assert len(found) <= 190
    files = {path.stem for path in (ROOT / "src" / "elastic_core" / "api").glob("[a-z]*.py")}
    assert files == {module.__name__.rpartition(".")[2] for module in names.MODULES} - {"api"}
    assert sorted(name for section in names.api_sections().values() for name in section) == sorted(found)


def test_what_a_script_may_use_is_in_the_reference_and_in_the_help():
    page = (DOCS / "reference" / "worker.md").read_text()
    public = [(name, getattr(elastic_train, name)) for name in elastic_train.__all__]
    members = [
        (f".{member}", value)
        for _, owner in public
        for member, value in vars(owner).items()
        if not member.startswith("_") and inspect.isfunction(value)
    ]
    assert [name for name, value in (*public, *members) if not value.__doc__] == []
    shown = [
        (name, rf"`\.?{name.removeprefix('.')}\b" if name[0] == "." else rf"`{name}\b") for name, _ in public + members
    ]
    assert [name for name, pattern in shown if not re.search(pattern, page)] == []


def reasons(path):
    """Yield the parts of texts that have the reason why a worker is not kept."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.keyword(arg="reason", value=value) | ast.Assign(targets=[ast.Name(id="reason")], value=value):
                texts = value
            case ast.Expr(value=ast.Yield(value=ast.JoinedStr() as texts)):
                pass
            case ast.Call(func=ast.Attribute(attr="_give_up"), args=[texts]):
                pass
            case _:
                continue
        constants = [each.value for each in ast.walk(texts) if isinstance(each, ast.Constant)]
        yield from (text for text in constants if isinstance(text, str) and " " in text)


def test_what_a_warm_round_has_is_in_the_reference_with_each_reason_against_it():
    folder = ROOT / "plugins" / "warm" / "src" / "elastic_warm"
    page = (DOCS / "reference" / "warm-rounds.md").read_text()
    assert [name for name in elastic_warm.__all__ if not re.search(rf"`{name}\b", page)] == []
    texts = [text for path in folder.glob("*.py") for text in reasons(path)]
    assert len(texts) > 20
    assert [text for text in texts if text.strip("': ") not in page] == []


def text_of(node):
    """Return the text of an expression, with `…` for what is computed."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(text_of, values))
        case _:
            return "…"


INSIDE = re.compile(r"malformed|is gone|not known|no commit was found")
"""Errors of a damaged copy, and of a defect."""


def test_each_error_of_a_training_state_is_in_the_reference():
    folder = ROOT / "plugins" / "warm" / "src" / "elastic_warm"
    page = (DOCS / "reference" / "warm-state.md").read_text()
    found = [
        text_of(node.args[0])
        for path in folder.glob("*.py")
        if path.name != "worker.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("StateError", "ConfigError")
    ]
    assert len(found) > 20
    assert [text for text in found if not INSIDE.search(text) and f"`{text}`" not in page and text != "…"] == []


def test_help_of_the_kit_shows_the_kits():
    code = "import elastic_plugin_kit as kit; help(kit)"
    shown = subprocess.check_output([sys.executable, "-c", code], text=True, env=os.environ | {"PAGER": "cat"})
    assert len(shown.splitlines()) < 120
    missing = [name for name in elastic_plugin_kit.__all__ if name not in shown]
    assert not missing, f"the docstring of elastic_plugin_kit does not name {missing}"


RECORDS = [
    cls
    for cls in (getattr(module, name) for module in names.MODULES for name in names.public(module))
    if isinstance(cls, type) and issubclass(cls, api.Record) and cls is not api.Record
]


def test_every_field_of_a_public_record_says_what_it_is():
    without = [
        f"{record.__name__}.{name}"
        for record in RECORDS
        for name, said in parts.attributes(record).items()
        if not said.text
    ]
    assert without == [], "each needs a line below it: its meaning, its unit, when it is None"


def difference_rows():
    for line in (DOCS / "reference" / "differences.md").read_text().splitlines():
        if line.startswith("| ") and not line.startswith(("| behaviour", "| ---", "| no.")) and not numbered(line):
            yield cells(line)


def cells(line):
    return [cell.strip() for cell in line.strip("| ").split(" | ")]


def numbered(line):
    return re.match(r"\| \d+ \|", line)


def defect_rows():
    lines = (DOCS / "reference" / "differences.md").read_text().splitlines()
    return [cells(line) for line in lines if numbered(line)]


def test_every_difference_names_a_test_that_exists():
    rows = list(difference_rows())
    assert [row for row in rows if len(row) != 5] == []
    assert faults_of_tests(row[4] for row in rows) == []


def test_all_forty_defects_of_torch_are_there():
    rows = defect_rows()
    assert [int(row[0]) for row in rows] == list(range(1, 41))
    assert all(len(row) == 4 for row in rows)


def test_every_defect_names_a_test_that_exists():
    assert faults_of_tests(row[3] for row in defect_rows()) == []


def faults_of_tests(cells):
    """Return a line for each cell that does not name a test: `FILE::NAME`."""
    functions, faults = {}, []
    for cell in cells:
        path, _, name = cell.strip("`").partition("::")
        if path not in functions and (ROOT / path).is_file():
            nodes = ast.walk(ast.parse((ROOT / path).read_text()))
            functions[path] = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        if not name.startswith("test_") or name not in functions.get(path, ()):
            faults.append(f"{path} has no {name}")
    return faults


def test_the_state_diagram_has_every_way():
    page = (DOCS / "explanation" / "agent-states.md").read_text()
    lines = page.partition("```mermaid\n")[2].partition("```")[0].splitlines()
    ways = diagram.read(lines)
    drawn = {(way.source, event, way.target) for way in ways for event in way.events}
    written = re.findall(r"(\w+) --> (\w+): (\w+)", "\n".join(lines))
    assert drawn == {(source, event, target) for source, target, event in written}
    picture = diagram.draw(lines)
    boxes = diagram.place(ways)
    assert all(f">{state}</text>" in picture for state in boxes)
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")


def test_wires_in_one_lane_never_overlap():
    page = (DOCS / "explanation" / "agent-states.md").read_text()
    boxes = diagram.place(diagram.read(page.splitlines()))
    lanes = diagram.lanes(boxes)
    spans = {state: diagram._span(state, boxes) for state in lanes}
    for first in lanes:
        for second in lanes:
            if first != second and lanes[first] == lanes[second]:
                (a, b), (c, d) = spans[first], spans[second]
                assert b < c or d < a, (first, second)
