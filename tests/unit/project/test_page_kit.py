"""How the documentation's pages are read as tests."""

import pytest

from page_kit import BLOCK, play


def test_a_check_is_run_and_not_shown(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- check\n$ echo one\none\n-->\n\n<!-- run -->\n```console\n$ echo two\ntwo\n```\n")
    assert [block["check"] for block in BLOCK.finditer(page.read_text())] == ["check", None]
    play(page, tmp_path)
    page.write_text("<!-- check\n$ echo one\ntwo\n-->\n")
    (tmp_path / "again").mkdir()
    with pytest.raises(AssertionError):
        play(page, tmp_path / "again")
