"""The port that an agent holds is one on which torch's store can listen, round after round."""

import subprocess
import sys

from patience import patience

TORCH = """
import os, sys
from datetime import timedelta
from torch.distributed import TCPStore
from elastic_core.agent.port import HeldPort

held = HeldPort.reserve()
def once(value):
    pid = os.fork()
    if pid == 0:
        server = TCPStore("127.0.0.1", held.port, 2, True, timeout=timedelta(seconds=20), wait_for_workers=False)
        client = TCPStore("127.0.0.1", held.port, 2, False, timeout=timedelta(seconds=20))
        client.set("key", value)
        assert server.get("key") == value.encode()
        os.kill(os.getpid(), 9)  # with its connections open
    assert os.waitpid(pid, 0)[1] == 9
for value in ("first", "second", "third"):
    once(value)
print("stored")
"""


def test_torchs_store_listens_on_it_round_after_round():
    result = subprocess.run(
        [sys.executable, "-c", TORCH], capture_output=True, text=True, timeout=patience(100), check=False
    )
    assert result.stdout == "stored\n", result.stderr
