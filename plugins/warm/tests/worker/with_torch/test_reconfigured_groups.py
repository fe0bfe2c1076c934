"""Why a kept worker makes its groups anew: what torch does with a group that is reconfigured between two rounds."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from patience import patience

PROGRAM = Path(__file__).parents[2] / "reconfigured_groups.py"
SINCE = (2, 15)


@pytest.fixture(scope="module")
def result():
    """What the program has printed."""
    release = importlib.metadata.version("torch")
    if tuple(map(int, release.split(".")[:2])) < SINCE:
        pytest.skip(f"torch {release} can't reconfigure process groups; 2.15 can")
    command = [sys.executable, str(PROGRAM)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=patience(240)).stdout)


pytestmark = pytest.mark.timeout(600)


def test_replicas_of_the_old_round_work_in_the_new_one(result):
    assert [each["gradient"] for each in result["shrunk"]] == [1.5, 1.5]  # the mean of 1 and 2


def test_the_table_of_members_stays_that_of_the_old_round(result):
    assert [(each["size"], each["ranks"]) for each in result["shrunk"]] == [(2, [0, 1, 2])] * 2


def test_shards_of_the_old_round_are_put_together_in_a_wrong_order_without_an_error(result):
    right, wrong = [[1.0, 3.0], [2.0, 4.0]], [[3.0, 1.0], [4.0, 2.0]]
    assert result["swapped"] == [[right, wrong]] * 2


def test_the_store_of_the_first_round_is_needed_in_each(result):
    assert result["another store"].startswith("DistStoreError: wait timeout after 1000ms")
    assert result["no store"].startswith("DistNetworkError: ")
