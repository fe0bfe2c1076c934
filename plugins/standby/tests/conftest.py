"""Fixtures of the tests in these folders."""

import pytest


@pytest.fixture
def lines(tmp_path):
    """A program that prints one word."""
    (tmp_path / "train.py").write_text("import os; print(os.environ['RANK'])")
    return "train.py"
