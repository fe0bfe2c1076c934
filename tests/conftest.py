"""Fixtures that more than one folder uses."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from support import launcher


@pytest.fixture
def elastic(tmp_path):
    """Start `elastic run` with arguments; every process of it is ended after the test."""
    yield from launcher(tmp_path)


@pytest.fixture
def script(tmp_path):
    """Write a worker script and return its path."""

    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
