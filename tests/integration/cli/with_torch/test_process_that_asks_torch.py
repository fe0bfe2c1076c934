"""The agent asks torch about devices in a process of its own."""

import os
import sys


def test_torch_is_asked_in_a_process_of_its_own():
    from elastic_core.options.devices import Node

    here = "torch" in sys.modules  # another test of this process may have imported it
    node = Node({**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert node.ask_torch("cuda") == ("cuda", 0)
    assert node.ask_torch("nonsense") == ("nonsense", -1)
    assert ("torch" in sys.modules) == here
