"""What a worker may be doing when its round ends: each activity blocks, or goes on for ever, in a place of its own."""

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import elastic_warm as warm
from elastic_warm import torch_state, transfers

SLEEP_S = 600


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # in one piece: peers share a pipe


def checked_group():
    """Join the round's group, and check that its operations work."""
    if "RECONFIGURES" in os.environ:
        reconfigured_group()
    else:
        dist.init_process_group("gloo")
    total = torch.full((4,), float(dist.get_rank() + 1))
    dist.all_reduce(total)
    size = dist.get_world_size()
    assert total.tolist() == [size * (size + 1) / 2] * 4


def reconfigured_group():
    """Join a group, and reconfigure it twice, as a script may do within a round."""
    dist.init_process_group("gloo", enable_reconfigure=True)
    store, rank, size = dist.distributed_c10d._get_default_store(), dist.get_rank(), int(os.environ["WORLD_SIZE"])
    for number in range(2):
        store.set(f"{number}/{rank}", dist._get_reconfigure_handle())
        handles = [store.get(f"{number}/{each}").decode() for each in range(size)]
        dist._reconfigure(number, handles).wait()


def idle():
    say("idle")
    while True:
        threading.Event().wait(SLEEP_S)


class Slow(Dataset):
    """A data set whose first samples are there, and others never are."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index >= 8:
            threading.Event().wait(SLEEP_S)
        return index


def compute():
    matrix = torch.rand(200, 200)
    say("here")
    while True:
        matrix = torch.tanh(matrix @ matrix)


def backward():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    say("here")
    model(torch.ones(4, 8)).sum().backward()


def all_reduce():
    say("here")
    dist.all_reduce(torch.ones(1000))


def waited():
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    say("here")
    work.wait()


def receive():
    say("here")
    dist.recv(torch.ones(1000), src=1)


def send():
    say("here")
    dist.send(torch.ones(64 << 20), dst=1)


def barrier():
    say("here")
    dist.barrier()


def gather_objects():
    say("here")
    dist.all_gather_object([None, None], "words")


def new_group():
    say("here")
    dist.new_group([0, 1])


def subgroup():
    group = dist.new_group([0, 1])
    say("here")
    dist.all_reduce(torch.ones(1000), group=group)


def transfer():
    """Wait for work in the main thread, while a thread receives a copy for a partner."""
    group = dist.new_group([0, 1])

    def receive_copy():
        with contextlib.suppress(RuntimeError):
            dist.recv(torch.ones(1000), src=1, group=group)

    thread = threading.Thread(target=receive_copy, name="copy", daemon=True)
    transfers.begin(thread)
    destroy = torch_state.destroy_groups

    def destroy_after_transfers():
        torch_state.destroy_groups = destroy
        if thread.is_alive():  # gloo may never free it then
            os._exit(9)
        destroy()

    torch_state.destroy_groups = destroy_after_transfers
    say("here")
    idle()


def shards():
    """Make a model that is sharded over a mesh of two groups."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("shards", "copies"))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer, mesh=mesh["shards"])
    fully_shard(model, mesh=mesh["shards"])
    return model


def sharded():
    model = shards()
    say("here")
    model(torch.ones(4, 8)).sum().backward()


def functional():
    from torch.distributed import _functional_collectives

    result = _functional_collectives.all_reduce(torch.ones(1000), "sum", dist.group.WORLD)
    say("here")
    print(result.sum())


def data():
    loader = DataLoader(Slow(), batch_size=2, num_workers=2)
    say("here")
    for _ in loader:
        pass


def persistent():
    loader = DataLoader(Slow(), batch_size=2, num_workers=2, persistent_workers=True, prefetch_factor=1)
    batches = iter(loader)
    next(batches)
    say("here")
    for _ in loader:
        pass


def save():
    folder = Path(os.environ["TEST_FOLDER"])
    with warm.protected():
        say("here")
        while not ((folder / "go_on").exists() and warm.worker._kept._leave):  # the request has arrived as well
            threading.Event().wait(0.005)
        (folder / "saved").write_text("whole")


def initialise():
    say("here")
    dist.init_process_group("gloo")


def store_only():
    """Be the store's server, and never join."""
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, is_master=True, wait_for_workers=False)
    say("served", store.port)  # and keep it
    idle()


def listen_only():
    """Accept connections as the kernel does for a server that is stopped, and never respond."""
    server = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])), reuse_port=True)
    say("served", server.fileno())
    idle()


WITHOUT_GROUP = ("initialise", "join", "connect", "stopped", "idle")
"""Activities that are the forming of the group itself."""


def act(name):
    """Run an activity as the worker that is kept."""
    if name not in WITHOUT_GROUP:
        checked_group()
    if name == "idle":
        idle()
    globals()["initialise" if name in WITHOUT_GROUP else name]()


def accompany(name):
    """Run the peer's part, which leaves the worker alone in what it does."""
    if name == "join":
        store_only()
    if name == "stopped":
        listen_only()
    if name not in WITHOUT_GROUP:
        checked_group()
    if name == "backward":
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    if name == "sharded":
        shards()
    if name in ("subgroup", "transfer"):
        dist.new_group([0, 1])
    idle()


@warm.rounds
def train():
    name = os.environ["ACTIVITY"]
    warm.should_stop()
    if name == "end":
        checked_group()
        dist.destroy_process_group()
    elif "PEER" in os.environ:
        accompany(name)
    else:
        act(name)


def serve_peers():
    """Fork a process for each line on stdin, which names variables, and print its number."""
    say("ready")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.environ.update(dict(word.split("=", 1) for word in line.split()))
            train_plainly()
            os._exit(0)
        say(pid)


def train_plainly():
    name = os.environ["ACTIVITY"]
    if name == "end":
        checked_group()
        dist.destroy_process_group()
    else:
        accompany(name)


if __name__ == "__main__":
    if "PEERS" in os.environ:
        serve_peers()
    else:
        train()
