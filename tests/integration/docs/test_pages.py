"""The tutorials' code does what their pages show, and all pages show only code that is run."""

import re

import pytest

from page_kit import BLOCK, DOCS, ROOT, has, is_tutorial, name_of, pages, play, written

SHOWN = re.compile(r"(?P<before>^.*\n)?^```python\n", re.M)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page", [page for page in pages() if is_tutorial(page) and not has("torch", page)], ids=name_of
)
def test_code_of_a_tutorial_does_what_the_page_shows(page, tmp_path):
    play(page, tmp_path)


BUILDS = re.compile(r"^<!-- builds: (\S+) -->$", re.M)
NOT_SHOWN = {"README.md", "LICENSE", "py.typed"}


@pytest.mark.parametrize(
    "page",
    [page for page in sorted(DOCS.glob("*/*.md")) if BUILDS.search(page.read_text())],
    ids=name_of,
)
def test_what_a_page_builds_is_what_the_sources_have(page):
    text = page.read_text()
    (folder,) = BUILDS.findall(text)
    shown = dict(written(BLOCK.finditer(text)))
    built = {
        str(path.relative_to(ROOT / folder)): path.read_text()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.name not in NOT_SHOWN and not {"__pycache__", ".pytest_cache"} & set(path.parts)
    }
    beside = {name for name in shown if "/" not in name and name not in built}  # scripts of the page's own
    assert {name: text for name, text in shown.items() if name not in beside} == built


TO_BE_TYPED = sorted(page for kind in ("tutorial", "howto", "plugin_authors") for page in DOCS.glob(f"{kind}/*.md"))


def test_no_python_is_shown_that_is_not_run():
    unmarked = [
        (name_of(page), found["before"])
        for page in TO_BE_TYPED
        for found in SHOWN.finditer(page.read_text())
        if "<!--" not in (found["before"] or "")
    ]
    assert unmarked == []
