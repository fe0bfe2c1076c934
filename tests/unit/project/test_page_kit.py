"""How the documentation's pages are read as tests."""

import pytest

from page_kit import BLOCK, play, written


def test_a_check_is_run_and_not_shown(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- check\n$ echo one\none\n-->\n\n<!-- run -->\n```console\n$ echo two\ntwo\n```\n")
    assert [block["check"] for block in BLOCK.finditer(page.read_text())] == ["check", None]
    play(page, tmp_path)
    page.write_text("<!-- check\n$ echo one\ntwo\n-->\n")
    (tmp_path / "again").mkdir()
    with pytest.raises(AssertionError):
        play(page, tmp_path / "again")


def test_a_file_may_go_on_where_readers_do_not_see_it(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- file: a.txt -->\n```text\none\n```\n\n<!-- check more: a.txt\ntwo\n-->\n\n"
        "<!-- run -->\n```console\n$ cat a.txt\none\ntwo\n```\n"
    )
    assert dict(written(BLOCK.finditer(page.read_text()))) == {"a.txt": "one\n\n\ntwo\n"}
    play(page, tmp_path)
