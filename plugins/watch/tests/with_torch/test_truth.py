"""Faults with known truth, played by `elastic run`: no innocent rank is named, and the culprit is, where it can be."""

import os
from pathlib import Path

import pytest

from redis_servers import redis_server  # noqa: F401  # a fixture
from truth.cells import LANES, Lane
from truth.forked import ADDRESS, start_server
from truth.lanes import WRONG, play, record

FULL = "CHAOS_FULL"
"""The variable with which the rare cells are played, too."""
RESULTS = "TRUTH_RESULTS"
"""The variable with the file into which the results are written: docs/_ext/hangs.json, for the table on the page."""


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory):
    """The path of the socket of the interpreter that forks workers."""
    yield from start_server(tmp_path_factory.mktemp("fork"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.name)
def test_ranks_that_hang_are_named_and_no_others(lane: Lane, elastic, fork_server, tmp_path, request):
    endpoint = request.getfixturevalue("redis_server").endpoint if lane.nodes > 1 else ""
    if not os.environ.get(RESULTS) and not os.environ.get(FULL):
        lane = lane.usual()
    outcomes, failed = play(lane, elastic, tmp_path, env={ADDRESS: fork_server}, endpoint=endpoint)
    if path := os.environ.get(RESULTS):
        record(outcomes, Path(path))
    assert not failed, failed[0]
    wrong = [outcome for outcome in outcomes if outcome.result == WRONG]
    assert not wrong
    assert not [outcome for outcome in outcomes if not outcome.kept]
