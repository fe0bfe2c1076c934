"""What a new worker need not do while the survivors wait for it: imports, and a wait for each other rank's store."""

import subprocess
import sys

import pytest

from patience import patience
from ports import free_port

AHEAD = """
import os, sys
import torch, torch.distributed
threads = os.listdir("/proc/self/task")
import elastic_warm.ahead
assert os.listdir("/proc/self/task") == threads, "a thread was started, which no fork has"
before = set(sys.modules)
import elastic_warm as warm
state = warm.State(weights=torch.zeros(3), step=0)
state.sync()
state.commit()
state.restore()
warm.rounds(lambda: None)()
from elastic_warm.randomness import seed_anew
seed_anew(1, 2)
heartbeats = {"elastic_watch", "elastic_watch.beats", "elastic_watch.beat_layout"}  # announced by their import
print(*sorted(set(sys.modules) - before - heartbeats))
"""
WITHOUT_TORCH = """
import sys
import elastic_warm.ahead
print(*({"torch", "numpy"} & set(sys.modules)), "elastic_warm.worker" in sys.modules)
"""
STORE = """
import sys
from datetime import timedelta
import torch.distributed
from elastic_warm.torch_state import wait_for_stores_in_python
wait_for_stores_in_python()
module = sys.modules["torch.distributed.rendezvous"]
port = int(sys.argv[1])
limit = timedelta(seconds=600)  # torch would wait so long for the other rank
server = module._create_c10d_store("127.0.0.1", port, 0, 2, limit)
client = module._create_c10d_store("localhost", port, 1, 2, limit)
client.set("from", "rank 1")
print(server.get("from").decode())
"""

# A rank 0 that waits for all clients, as torch makes it: its process has not been kept.
SERVER_THAT_WAITS = """
import sys, threading
from datetime import timedelta
import torch.distributed
from elastic_warm.torch_state import wait_for_stores_in_python
make = torch.distributed.TCPStore
wait_for_stores_in_python()
port = int(sys.argv[1])
limit = timedelta(seconds=600)
made = []
server = threading.Thread(target=lambda: made.append(make("127.0.0.1", port, 2, True, limit, multi_tenant=True)))
server.start()
client = sys.modules["torch.distributed.rendezvous"]._create_c10d_store("127.0.0.1", port, 1, 2, limit)
server.join(30)
print(len(made), flush=True)
sys.modules["os"]._exit(0)
"""


@pytest.mark.parametrize(
    ("program", "lines"),
    [(AHEAD, "\n"), (WITHOUT_TORCH, "True\n"), (STORE, "rank 1\n"), (SERVER_THAT_WAITS, "1\n")],
    ids=["imports", "without torch", "store", "server that waits"],
)
def test_a_new_worker_waits_for_little(program, lines):
    ran = subprocess.run(
        [sys.executable, "-c", program, str(free_port())],
        capture_output=True, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert (ran.stdout, ran.returncode) == (lines, 0), ran.stderr
