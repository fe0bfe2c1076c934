"""Lines with certain texts go to a file of their own, as torch's filters pick them."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.processes.output.lines import LineFilter
from elastic_core.processes.output.log_file import LogFile


@pytest.fixture
def filtered(tmp_path):
    path = tmp_path / "filtered_stdout.log"

    def run(texts, *chunks, prefix="[default0]:"):
        file = LogFile(str(path), log=SimpleNamespace(notice=pytest.fail))
        line_filter = LineFilter(texts, prefix=prefix, file=file)
        for chunk in chunks:
            line_filter.feed(chunk)
        line_filter.end()
        return path.read_bytes()

    return run


def test_lines_with_any_of_the_texts_are_kept_whole_with_their_prefix(filtered):
    kept = filtered(["loss", "lr"], b"step 1\nloss 2\nno\n", b"a l", b"r b\nloss lr loss\n", b"the loss")
    assert kept == b"[default0]:loss 2\n[default0]:a lr b\n[default0]:loss lr loss\n[default0]:the loss\n"


def test_the_prefix_itself_is_no_match(filtered):
    assert filtered(["default0"], b"nothing\n") == b""


def test_updates_of_a_progress_bar_are_lines(filtered):
    assert filtered(["20%"], b"\r10%", b"\r20%\r", b"30%\r\n", prefix="") == b"20%\n"


def test_a_line_without_an_end_in_several_chunks_is_found_once_it_ends(filtered):
    assert filtered(["ee"], b"a", b"e", b"e", b"b", prefix="") == b"aeeb\n"


def test_texts_are_no_patterns(filtered):
    assert (
        filtered([".*", "é"], b"abc\nx.*y\n", "café\n".encode(), b"\xe9\n", prefix="") == b"x.*y\n" + "café\n".encode()
    )


@given(
    lines=st.lists(st.text(alphabet="abc ", max_size=8), max_size=40),
    texts=st.lists(st.text(alphabet="abc ", min_size=1, max_size=3), min_size=1, max_size=3),
    cut=st.integers(min_value=1, max_value=50),
)
def test_the_same_lines_as_one_by_one(tmp_path_factory, lines, texts, cut):
    path = tmp_path_factory.mktemp("filter") / "log"
    line_filter = LineFilter(texts, prefix="p:", file=LogFile(str(path), log=SimpleNamespace(notice=pytest.fail)))
    data = "".join(f"{line}\n" for line in lines).encode()
    for start in range(0, len(data), cut):
        line_filter.feed(data[start : start + cut])
    line_filter.end()
    assert path.read_text() == "".join(f"p:{line}\n" for line in lines if any(text in line for text in texts))
