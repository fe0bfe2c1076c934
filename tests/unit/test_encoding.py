"""Records as JSON, whatever their text holds."""

import json
from collections.abc import Mapping

import msgspec

from elastic_core.encoding import encode_json
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
