"""Prefixes on whole lines, however the bytes are cut into chunks."""

import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.processes.output.lines import LinePrefixer

P = b"[d0]:"


def feed(*chunks, prefix=P, **more):
    prefixer = LinePrefixer(prefix, **more)
    return [*(prefixer.feed(chunk) for chunk in chunks), prefixer.end()]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((b"a\n",), [P + b"a\n", b""]),
        ((b"a\nb\n",), [P + b"a\n" + P + b"b\n", b""]),
        ((b"\n\n",), [P + b"\n" + P + b"\n", b""]),
        ((b"a", b"b\nc"), [b"", P + b"ab\n", P + b"c\n"]),
        ((b"1%\r2%\r3",), [P + b"1%\r" + P + b"2%\r", P + b"3\n"]),
        ((b"1%\r", b"2%\r"), [b"", P + b"1%\r", P + b"2%\r"]),
        ((b"a\r\nb\r\n",), [P + b"a\r\n" + P + b"b\r\n", b""]),
        ((b"a\r", b"\nb\n"), [b"", P + b"a\r\n" + P + b"b\n", b""]),
        ((b"x\na\r", b"\n"), [P + b"x\n", P + b"a\r\n", b""]),
        ((b"\r\r\n\r",), [P + b"\r" + P + b"\r\n", P + b"\r"]),
        ((b"\r" + P + b"\n",), [P + b"\r" + P + P + b"\n", b""]),  # our own prefix in the worker's output
        ((b"\x00\xff\xfe\n",), [P + b"\x00\xff\xfe\n", b""]),
    ],
)
def test_lines_come_out_whole(chunks, expected):
    assert feed(*chunks) == expected


def test_no_prefix_still_holds_partial_lines():
    assert feed(b"a\nb", b"c\n", prefix=b"") == [b"a\n", b"bc\n", b""]


def test_a_line_without_end_is_broken_at_the_limit():
    assert feed(b"abcd", b"ef", b"g\n", line_limit_bytes=6) == [b"", P + b"abcdef\n", P + b"g\n", b""]


def reference(data):
    lines = re.findall(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z", data)
    return b"".join(P + (line if line[-1:] in b"\r\n" else line + b"\n") for line in lines)


@given(st.lists(st.one_of(st.sampled_from([b"\n", b"\r", b"\r\n", P]), st.binary(min_size=1, max_size=8)), max_size=30))
def test_where_chunks_are_cut_makes_no_difference(chunks):
    out = feed(*chunks)
    assert b"".join(out) == reference(b"".join(chunks))
    for piece in out:
        assert not piece or (piece.startswith(P) and piece[-1:] in b"\r\n")


def test_a_line_that_comes_in_small_pieces_takes_no_more_than_its_length():
    prefixer = LinePrefixer(P)
    tracemalloc.start()
    try:
        for number in range(200_000):
            assert prefixer.feed(b"%x" % (0x100 + number % 0xF00)) == b""
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()
    assert len(prefixer.end()) == len(P) + 600_000 + 1
