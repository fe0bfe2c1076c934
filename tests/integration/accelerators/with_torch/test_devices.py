"""Device counting against torch's word, on a node with GPUs."""

import os

import pytest

from elastic_core.options.devices import Node, count_for, visible_count
from support import lacks

pytestmark = [pytest.mark.gpu]


def clean():
    hidden = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    return {name: value for name, value in os.environ.items() if name not in hidden}


@pytest.fixture(scope="module")
def torchs_count():
    count = Node(clean()).ask_torch("cuda")[1]
    if count < 1:
        lacks("a GPU that torch sees")
    return count


def test_gpus_are_counted_as_torch_counts_them(torchs_count):
    assert count_for("gpu", Node(clean())).count == torchs_count


def test_uuids_are_found_as_torch_finds_them(torchs_count):
    uuids = Node(clean()).nvidia(with_uuids=True).uuids
    if not uuids:
        lacks("a GPU of NVIDIA")
    node = Node({**clean(), "CUDA_VISIBLE_DEVICES": f"{uuids[0]},GPU-none"})
    assert visible_count("cuda", node)[0] == node.ask_torch("cuda")[1] == 1
