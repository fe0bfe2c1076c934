"""Fixtures of the tests in these folders."""

import pytest

from fake_agent import FakeAgent


@pytest.fixture
def agent(tmp_path):
    """An agent whose workers end with the test."""
    made = FakeAgent(tmp_path)
    yield made
    made.close()
