"""The page that says where is what, against the tree."""

import re
from pathlib import Path

import house
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "house.md"


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]+\.py)`", PAGE.read_text()))))
def test_each_file_that_the_page_names_is_there(name):
    assert (house.CORE / name).is_file() or (house.ROOT / name).is_file()


def test_each_room_says_what_it_is():
    assert all(line.split("|")[2].strip() for line in house.rooms().splitlines())
    assert "TODO" not in house.rooms()


def test_each_import_by_string_has_its_reason():
    without = [f"{file}: {target}" for file, target, reason in house.imports_by_string() if not reason]
    assert not without, f"say why on its line, in a comment: {without}"
