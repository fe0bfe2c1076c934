"""A training that ends in the same state with any number of ranks, to the bit, and stops where a test wants it to.

All values are whole numbers below a prime in float64, so sums are exact in each order. The state has the weights of a
model, a momentum, and how often each sample was used: a step that is lost, or made twice, shows.

In a round N with a file `hold-N` in the folder of the test, each rank notes `at-N-RANK` in the step of its `ACTIVITY`
and stays in it. The others wait for the worker `HOLDER` (node:local rank); without it, each waits by itself. In a save,
a rank stays until the end of its round is wanted, and longer if there is a file `linger-RANK`. Without the launcher's
variables for rounds, the program prints the digest of the state before each step and after the last.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import elastic_warm as warm

SHARED = Path(os.environ["TEST_SHARED"])
ACTIVITY = os.environ.get("ACTIVITY", "")
WORKER = f"{os.environ.get('ELASTIC_NODE_ID')}:{os.environ.get('LOCAL_RANK')}"
STEPS, STEP_OF_ACTIVITY = 8, 0 if ACTIVITY == "first step" else 3
SAMPLES, BATCH, WIDTH = 40, 12, 5
PRIME = 1_000_003
NONE = -1

pause = threading.Event()


class Life(threading.Thread):
    """Notes in `alive-PID-N` when the process came into round N, and every few milliseconds that it is there."""

    def __init__(self) -> None:
        super().__init__(name="life", daemon=True)
        self._lock = threading.Lock()
        self._note: Callable[[], None] | None = None

    def run(self) -> None:
        while True:
            with self._lock:
                if self._note is not None:
                    self._note()
            pause.wait(0.02)

    @contextmanager
    def in_round(self, index: int) -> Iterator[None]:
        path, began_s = SHARED / f"alive-{os.getpid()}-{index}", time.monotonic()
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC, 0o600)

        def note() -> None:
            os.pwrite(fd, b"%020.6f %020.6f" % (began_s, time.monotonic()), 0)

        note()
        self._note = note
        try:
            yield
        finally:
            with self._lock:
                note()
                self._note = None
            os.close(fd)
            path.with_name(f"left-{os.getpid()}-{index}").touch()


life = Life()


class Rows(Dataset):
    """Samples that are not there as long as a file is."""

    def __init__(self, rows: torch.Tensor, barrier: Path) -> None:
        self._rows, self._barrier = rows, barrier

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> list[float]:
        while index and self._barrier.exists():
            pause.wait(0.01)
        return self._rows[index].tolist()  # a tensor's way needs a socket in the folder of the test


class Place:
    """What a rank knows of its round."""

    def __init__(self, index: int, state: warm.State) -> None:
        self.rank, self.size, self._index, self._state = dist.get_rank(), dist.get_world_size(), index, state
        self.barrier = SHARED / f"hold-{index}"
        holder = torch.tensor(self.rank if os.environ.get("HOLDER") == WORKER else NONE)
        dist.all_reduce(holder, op=dist.ReduceOp.MAX)
        self._holder = int(holder)

    def here(self) -> None:
        (SHARED / f"at-{self._index}-{self.rank}").touch()

    def wait(self) -> None:
        while self.barrier.exists():
            pause.wait(0.01)

    def act(self) -> None:
        """Do what the test wants to end a round in."""
        if ACTIVITY == "save":
            self.save()
        elif not self.barrier.exists() or ACTIVITY == "data loading":
            return
        elif ACTIVITY == "compute":
            self.here()
            matrix = torch.ones(64, 64)
            while self.barrier.exists():
                matrix = torch.tanh(matrix @ matrix)
                pause.wait(0.005)  # or the agents get no turn on a busy machine
        elif self._holder in (self.rank, NONE):
            self.here()
            self.wait()
        else:
            self.here()
            values = torch.ones(1000)
            dist.recv(values, src=self._holder) if ACTIVITY == "point-to-point" else dist.all_reduce(values)

    def save(self) -> None:
        """Save in two parts, between which the round ends."""
        path = SHARED / f"saved-{self._index}-{self.rank}"
        with warm.protected():
            text = f"{self._state.step} {digest(self._state)}"
            path.with_suffix(".part").write_text(text[:20])
            self.here()
            while self.barrier.exists():
                pause.wait(0.005)
                if warm.should_stop():
                    (SHARED / f"asked-{self._index}-{self.rank}").touch()
                    if not (SHARED / f"linger-{self.rank}").exists():
                        break
            with path.with_suffix(".part").open("a") as file:
                file.write(text[20:])
            path.with_suffix(".part").rename(path)

    def rows(self, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's samples of a step: numbers [n] int64, values [n, WIDTH] float64."""
        step = self._state.step
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(step))[:BATCH]
        mine = order[self.rank :: self.size]
        if ACTIVITY != "data loading" or step != STEP_OF_ACTIVITY:
            return mine, data[mine]
        if self.barrier.exists():
            self.here()
        loaded = list(DataLoader(Rows(data[mine], self.barrier), batch_size=None, num_workers=1))
        return mine, torch.tensor(loaded, dtype=torch.float64)


@warm.rounds
def train(state: warm.State, data: torch.Tensor) -> None:
    """Train from the newest committed step to the last one."""
    index = int(os.environ.get("ELASTIC_ROUND", 0))
    with life.in_round(index):
        dist.init_process_group("gloo")
        synced = state.sync()
        place = Place(index, state)
        tell(index, synced, place)
        while state.step < STEPS:
            trace(state)
            if state.step == STEP_OF_ACTIVITY:
                place.act()
            step(state, place, data)
        trace(state)
        (SHARED / f"end-{index}-{place.rank}").write_text(digest(state))


def step(state: warm.State, place: Place, data: torch.Tensor) -> None:
    """Make a step, and commit it."""
    mine, rows = place.rows(data)
    weight = state.model.weight
    weight.grad = None
    state.model(rows).square().sum().backward()
    used = torch.zeros(SAMPLES, dtype=torch.float64)
    used[mine] = 1
    dist.all_reduce(weight.grad)
    dist.all_reduce(used)
    with torch.no_grad():
        state.momentum.mul_(3).add_(weight.grad).remainder_(PRIME)
        weight.sub_(state.momentum).remainder_(PRIME)
        state.used.add_(used)
    state.step += 1
    state.commit()


def tell(index: int, synced: object, place: Place) -> None:
    """Print one line about the begin of a round, in one piece: peers share a pipe."""
    env = os.environ
    line = {
        "node": env.get("ELASTIC_NODE_ID"), "local": int(env.get("LOCAL_RANK", 0)), "rank": place.rank,
        "world": place.size, "gen": index, "restarts": int(env.get("TORCHELASTIC_RESTART_COUNT", 0)),
        "pid": os.getpid(), "step": synced.step, "source": synced.source, "received": synced.received,
    }  # fmt: skip
    os.write(1, (json.dumps(line) + "\n").encode())


def trace(state: warm.State) -> None:
    """Print the digest of the state, if the program runs alone."""
    if "ELASTIC_ROUND" not in os.environ:
        print(f"state {digest(state)}", flush=True)


def digest(state: warm.State) -> str:
    """Return a digest of all values: equal digests, equal bits."""
    found = hashlib.sha256(str(state.step).encode())
    for tensor in (state.model.weight, state.momentum, state.used):
        found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    life.start()
    generator = torch.Generator().manual_seed(7)
    data = torch.randint(0, 10, (SAMPLES, WIDTH), generator=generator).double()
    model = torch.nn.Linear(WIDTH, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.randint(0, 1000, (1, WIDTH), generator=generator))
    momentum, used = torch.zeros(1, WIDTH, dtype=torch.float64), torch.zeros(SAMPLES, dtype=torch.float64)
    train(warm.State(model=model, momentum=momentum, used=used, step=0), data)


if __name__ == "__main__":
    main()
