"""The distributions, built once for all tests of this folder: each of its modules is in the xdist group `packaging`."""

import pytest

from wheel_kit import EXAMPLES, OURS, build


@pytest.fixture(scope="session")
def dist(tmp_path_factory):
    """Return a folder with sdist and wheel of each of our distributions."""
    folder = tmp_path_factory.mktemp("dist")
    build(OURS, folder)
    return folder


@pytest.fixture(scope="session")
def example_dist(tmp_path_factory):
    """Return a folder with sdist and wheel of each example plugin."""
    folder = tmp_path_factory.mktemp("examples")
    build(EXAMPLES, folder)
    return folder
