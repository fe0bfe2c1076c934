"""Saves that end at each of their steps on the disk, one after another; run by `test_checkpoints.py`."""

import os
import sys
from pathlib import Path

import torch

from elastic_train import Checkpointer
from elastic_train.checkpoint import claims

FOLDER = Path(sys.argv[1]).resolve()
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


def state(step):
    return {"step": step, "values": torch.full((1000,), float(step))}


def save_and_end(step, cut):
    """Save, and end at the operation of that number as if the power had gone; return how many there were."""
    claims._held.clear()  # as a process of its own has none
    count = 0

    def operation():
        nonlocal count
        count += 1
        if count == cut:
            os._exit(9)

    def audit(event, arguments):
        if event in EVENTS and (event != "open" or str(arguments[0]).startswith(str(FOLDER))):
            operation()

    sync = os.fsync

    def fsync(fd):
        operation()
        sync(fd)

    os.fsync = fsync
    sys.addaudithook(audit)
    Checkpointer(FOLDER, keep=2).save(state(step), step=step)
    os._exit(0)


def take_stock(before, step):
    """Return whether the newest is the one that was being saved, and not the one before; a last save tidies up."""
    claims._held.clear()
    checkpoints = Checkpointer(FOLDER, keep=2)
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded.step in (before, step), (loaded.step, before, step)
    assert torch.equal(loaded.state["values"], state(loaded.step)["values"])
    checkpoints.save(state(step + 1), step=step + 1)
    names = sorted(entry.name for entry in FOLDER.iterdir() if not entry.name.startswith(".claim-"))
    assert [name.rpartition("-")[2] for name in names] == [str(loaded.step), str(step + 1)], names
    return loaded.step == step


for first in (1, 2):
    Checkpointer(FOLDER, keep=2).save(state(first), step=first)
code, ends = 9, []
while code:
    step = 2 * len(ends) + 3
    child = os.fork()
    if child == 0:
        try:
            save_and_end(step, len(ends) + 1)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    ends.append(take_stock(step - 1, step))
assert ends == sorted(ends)
print(f"{len(ends) - 1} cuts, {ends.count(False)} before the checkpoint had its name")
