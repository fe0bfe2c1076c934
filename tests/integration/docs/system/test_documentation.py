"""The code of all pages but tutorials does what the pages show, and the documentation builds without a warning."""

import re
import sys

import pytest

from page_kit import DOCS, has, is_tutorial, name_of, pages, play, run

pytestmark = pytest.mark.timeout(600)
OTHERS = [page for page in pages() if not (is_tutorial(page) or has("torch", page) or has("ecosystem", page))]


@pytest.mark.parametrize("page", OTHERS, ids=name_of)
def test_code_of_a_page_does_what_the_page_shows(page, tmp_path):
    play(page, tmp_path)


def test_pages_build_without_warnings_and_load_nothing_from_elsewhere(tmp_path):
    sphinx = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]
    code, out = run([*sphinx, "--doctree-dir", tmp_path / "trees", DOCS, tmp_path / "pages"], tmp_path)
    assert code == 0, out
    built = list((tmp_path / "pages").rglob("*.html"))
    assert len(built) > 30
    loads = re.compile(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*\"")
    assert [(page.name, loads.findall(page.read_text())) for page in built if loads.search(page.read_text())] == []
    states = (tmp_path / "pages" / "explanation" / "agent-states.html").read_text()
    assert '<svg class="state-diagram"' in states
