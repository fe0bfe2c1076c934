"""Records as JSON, whatever their text holds."""

import json
from collections.abc import Mapping

import msgspec
import pytest

from elastic_core.encoding import clean, encode_json, joined_spans, printable_json
from elastic_core.types import Record


class Box(Record, frozen=True, kw_only=True):
    """Anything."""

    name: str
    more: Mapping[str, tuple[str, ...]] = {}
    count: int = 3
    inner: "Box | None" = None


def test_text_is_encoded_as_ever():
    box = Box(name="ü 日本", more={"a": ("b", "\n")})
    assert encode_json(box) == msgspec.json.encode(box)


def test_what_utf_8_has_no_place_for_is_written_out_wherever_it_stands():
    box = Box(name="caf\udce9", more={"\udcff": ("x", "\ud800y")}, inner=Box(name="plain"))
    assert json.loads(encode_json(box)) == {
        "name": "caf\\udce9",
        "more": {"\\udcff": ["x", "\\ud800y"]},
        "count": 3,
        "inner": {"name": "plain", "more": {}, "count": 3, "inner": None},
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ValueError: ü 日本 🙂", "ValueError: ü 日本 🙂"),
        ("evil\x1b]0;title\x07\x1b[2J\n\x1b[31mFAKE LINE", "evil?]0;title??[2J ?[31mFAKE LINE"),
        ("a\r\nb\tc\vd\x85e\u2028f\xa0g", "a b c d e f g"),
        ("C1 \x9b31m, DEL \x7f, NUL \0", "C1 ?31m, DEL ?, NUL ?"),
        ("turned \u202egnp.exe\u202c, \u2066isolated\u2069", "turned ?gnp.exe?, ?isolated?"),
        ("no\u200bwidth\ufeff, soft\xadhyphen", "no?width?, soft?hyphen"),
        ("caf\udce9", "caf\udce9"),
    ],
)
def test_what_others_wrote_is_one_line_that_steers_nothing(text, shown):
    assert clean(text) == shown
    assert clean(clean(text)) == clean(text)


def test_json_for_a_terminal_has_the_same_content():
    box = Box(name="\x1b[2J\x9b1m\u202e\U000e0001 ü\n")
    shown = printable_json(encode_json(box).decode() + "\n")
    assert shown[:-1].isprintable()
    assert shown[-1] == "\n"
    assert json.loads(shown)["name"] == box.name


def test_spans_that_touch_or_overlap_become_one():
    assert joined_spans([(3, 3), (1, 2), (7, 7), (2, 2)]) == ((1, 3), (7, 7))
    assert joined_spans([(0, 9), (4, 5)]) == ((0, 9),)
    assert joined_spans([]) == ()
