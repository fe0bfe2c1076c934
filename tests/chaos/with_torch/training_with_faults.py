"""A training of three ranks that waits in the middle of one activity until a fault has hit one of its ranks.

    training_with_faults.py FOLDER FAULTS

FAULTS is JSON, a list of `{"round", "step", "activity", "how", "victims", "late", "again"}`. Each step has all
activities, so what it computes is the same with and without faults. At a fault there are three parts:

- a victim waits in the activity. If its gate opens, it raises an exception; if not, a signal hits it there;
- the late rank waits in the same activity until its gate opens, after the fault. So no rank gets past the activity. If
  it saves, it also waits until it is asked to leave; with `again`, then at the gate `asked-gate.ROUND.RANK`;
- each other rank goes on until it waits for these two.

A rank writes the file `PART.ROUND.RANK` with its pid when it is there, and waits at the FIFO `fault-gate.ROUND.RANK`,
which the test opens. `steps.RANK` has a line for each begin of a round and each committed step.
"""

import hashlib
import json
import os
import random
import sys
import threading
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elastic_warm as warm
from elastic_core.worker import Checkpointer, heartbeat, section

FAULT = "a fault of the matrix"
STEPS = 5
WIDTH = 8
SAVE_S = 1.0
"""The limit of the section around a checkpoint. A save has one of half an hour without it."""

FOLDER = Path(sys.argv[1])
FAULTS = json.loads(sys.argv[2])


# --- the fault


class Place:
    """An activity of a step (0: before the first), with the fault that hits a rank there in this round, if any."""

    def __init__(self, activity, number):
        here = {"round": now(), "step": number, "activity": activity}
        self.fault = next((fault for fault in FAULTS if here.items() <= fault.items()), None)
        self.part = ""
        if self.fault is not None:
            victim, late = rank() in self.fault["victims"], rank() == self.fault["late"]
            self.part = "victim" if victim else "late" if late else "other"

    @property
    def raises(self):
        return self.part == "victim" and self.fault["how"] == "exception"

    def enter(self):
        """Note that this rank is in the activity, which it can't leave before the fault."""
        if self.part:
            if self.part != "late":
                cover.end()
            note(self.part)

    def wait(self):
        """Wait here for the fault, as a victim or the late rank."""
        if self.part in ("victim", "late"):
            self.enter()
            pass_gate()
            cover.end()
            if self.part == "victim":
                raise ValueError(FAULT)


class Cover:
    """A section in which no rank counts as hung. It ends at a fault; the late rank's ends after it."""

    def __init__(self):
        self.section = None

    def begin(self):
        self.end()
        self.section = section("until a fault", limit_s=3600)
        self.section.__enter__()

    def end(self):
        if self.section is not None:
            self.section.__exit__(None, None, None)
            self.section = None


cover = Cover()


def now():
    return int(os.environ["ELASTIC_ROUND"])


def rank():
    return int(os.environ["RANK"])


def note(what):
    path = FOLDER / f"{what}.{now()}.{rank()}"
    written = FOLDER / f".{path.name}"
    written.write_text(str(os.getpid()))
    written.rename(path)


def pass_gate(name="fault"):
    os.close(os.open(FOLDER / f"{name}-gate.{now()}.{rank()}", os.O_RDONLY))


def log(*words):
    with (FOLDER / f"steps.{rank()}").open("a") as file:
        file.write(" ".join(map(str, (now(), os.getpid(), *words))) + "\n")


def settle():
    """Wait until the copies of the last commit are on the partner."""
    for thread in threading.enumerate():
        if thread.name == "elastic-partner-copy":
            thread.join()


# --- the activities


class Samples(Dataset):
    """The samples of a rank, one batch for each step."""

    def __len__(self):
        return STEPS + 1

    def __getitem__(self, number):
        place = Place("data", number)
        if place.part in ("victim", "other"):
            note(f"loader-of-{place.part}")
            pass_gate()  # that of another rank than the victim stays closed
            raise ValueError(FAULT)
        generator = torch.Generator().manual_seed(1000 * rank() + number)
        return torch.randn(4, WIDTH, generator=generator)


def batches_from(number):
    in_processes = any(fault["activity"] == "data" for fault in FAULTS)
    # A generator of its own, as a loader draws a seed from it.
    loader = DataLoader(
        Samples(),
        sampler=range(number, STEPS + 1),
        batch_size=None,
        num_workers=int(in_processes),
        generator=torch.Generator(),
    )
    return iter(loader)


def load(batches, number):
    place = Place("data", number)
    if place.part in ("victim", "other"):
        place.enter()
    batch = next(batches)
    place.wait()
    return batch


class Inside:
    """An object whose saving waits for the fault: for torch.save, and for a Checkpointer."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        self.place.wait()
        return dict, ()

    def state_dict(self):
        if self.place.part == "other":
            self.place.enter()
        self.place.wait()
        return {"nothing": 0}

    def load_state_dict(self, state):
        pass


def is_saved(activity, number):
    return any((fault["activity"], fault["step"]) == (activity, number) for fault in FAULTS)


def save(state, number):
    """Write this rank's file. One of a rank that is asked to leave meanwhile is completed."""
    if not is_saved("save", number):
        return
    place = Place("save", number)
    path = FOLDER / f"saved.{now()}.{rank()}"
    with warm.protected():
        written = path.with_name(path.name + ".part")
        torch.save({"model": state.model.state_dict(), "inside": Inside(place)}, written)
        while place.part == "late" and not warm.should_stop():
            threading.Event().wait(0.005)
        if place.part == "late":
            note("asked")
            if place.fault["again"]:
                pass_gate("asked")
        written.rename(path)
    if place.part == "other":
        place.enter()


def checkpoint(state, checkpointer, number):
    """Write a checkpoint of all ranks."""
    if is_saved("checkpoint", number):
        parts = {**state.parts(), "inside": Inside(Place("checkpoint", number))}
        with warm.protected(), section("checkpoint", limit_s=SAVE_S):
            checkpointer.save(parts, step=state.step)


def pass_on(noise, number):
    """Give each rank what all before it have drawn, from one to the next, and rank 0 what the last one has."""
    place = Place("point-to-point", number)
    before, after = (rank() - 1) % dist.get_world_size(), (rank() + 1) % dist.get_world_size()
    received = torch.zeros_like(noise)
    if place.part == "late":
        place.wait()
    elif place.raises:
        work = dist.irecv(received, before)  # noqa: F841  # it is under way at the exception
        place.wait()
    else:
        place.enter()
    if rank() == 0:
        dist.send(noise, after)
        dist.recv(received, before)
    else:
        dist.recv(received, before)
        dist.send(received + noise, after)
    return received


def compute(state, batch, received, number):
    """Leave the gradients of this rank in the parameters."""
    place = Place("compute", number)
    hidden = state.model[:3](batch * (1 + received))
    if place.part == "other":
        place.enter()
    elif place.part:
        hidden.register_hook(lambda _: place.wait())
    state.optimizer.zero_grad()
    state.model[3:](hidden).square().mean().backward()


def add_up(state, number):
    """Give all ranks the sum of their gradients."""
    place = Place("collective", number)
    parameters = list(state.model.parameters())
    gradients = torch.cat([parameter.grad.reshape(-1) for parameter in parameters])
    if place.part == "late":
        place.wait()
    elif place.raises:
        work = dist.all_reduce(gradients, async_op=True)  # noqa: F841  # it is under way at the exception
        place.wait()
    else:
        place.enter()
    dist.all_reduce(gradients)
    for parameter, part in zip(parameters, gradients.split([each.numel() for each in parameters]), strict=True):
        parameter.grad = part.reshape(parameter.shape)


def join(place, act):
    """Do what all ranks do together at the start of a round."""
    if place.part == "other":
        place.enter()
    place.wait()
    return act()


# --- the training


@warm.rounds
def train(state):
    log("enter")
    cover.begin()
    heartbeat()
    try:
        join(Place("init", 0), lambda: dist.init_process_group("gloo"))
        source = join(Place("sync", 0), state.sync).source
        log("begin", state.step, source)
        batches = batches_from(state.step + 1)
        checkpointer = Checkpointer(FOLDER / "checkpoints")
        while state.step < STEPS:
            number = state.step + 1
            heartbeat(step=number)
            settle()
            save(state, number)
            checkpoint(state, checkpointer, number)
            batch = load(batches, number)
            received = pass_on(torch.rand(4, WIDTH) + random.random() + float(np.random.rand()), number)
            compute(state, batch, received, number)
            add_up(state, number)
            state.optimizer.step()
            state.step = number
            state.commit()
            log("commit", number)
        print(json.dumps(result(state, checkpointer)), flush=True)
    except BaseException:
        note("over")
        raise


def result(state, checkpointer):
    found = {name: hashlib.sha256() for name in ("weights", "optimizer", "random")}
    for tensor in state.model.state_dict().values():
        found["weights"].update(tensor.numpy().tobytes())
    described = state.optimizer.state_dict()
    found["optimizer"].update(json.dumps(described["param_groups"]).encode())
    for number, values in sorted(described["state"].items()):
        for name, value in sorted(values.items()):
            found["optimizer"].update(f"{number} {name}".encode() + value.numpy().tobytes())
    found["random"].update(torch.get_rng_state().numpy().tobytes())
    found["random"].update(repr((random.getstate(), np.random.get_state(legacy=False))).encode())
    saved = checkpointer.latest() if any(fault["activity"] == "checkpoint" for fault in FAULTS) else None
    return {"rank": rank(), "step": state.step, "saved": saved} | {
        name: each.hexdigest() for name, each in found.items()
    }


def main():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(100 + rank())  # each rank draws numbers of its own
    train(warm.State(model=model, optimizer=optimizer, step=0, partner=True))


if __name__ == "__main__":
    main()
