"""What a worker may be doing when its round ends: each activity blocks, or goes on for ever, in a place of its own."""

import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import elastic_warm as warm

SLEEP_S = 600


def say(*words):
    print(*words, flush=True)


def checked_group():
    """Join the round's group, and check that its operations work."""
    dist.init_process_group("gloo")
    total = torch.full((4,), float(dist.get_rank() + 1))
    dist.all_reduce(total)
    size = dist.get_world_size()
    assert total.tolist() == [size * (size + 1) / 2] * 4


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


def data():
    loader = DataLoader(Slow(), batch_size=2, num_workers=2)
    say("here")
    for _ in loader:
        pass


def save():
    folder = Path(os.environ["TEST_FOLDER"])
    with warm.protected():
        say("here")
        while not (folder / "go_on").exists():
            threading.Event().wait(0.005)
        (folder / "saved").write_text("whole")


def initialise():
    say("here")
    dist.init_process_group("gloo")


def store_only():
    """Be the store's server, and never join."""
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, is_master=True, wait_for_workers=False)
    say("served", store.port)
    idle()


WITHOUT_GROUP = ("initialise", "join", "connect", "idle")
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
    if name not in WITHOUT_GROUP:
        checked_group()
    if name == "backward":
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    if name == "subgroup":
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
