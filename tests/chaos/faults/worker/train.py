"""The training that the faults are done to. It is told what to do by files in its shared folder, and tells there.

`job.json` says how; `finish` has the step at which to end; `order-<pid>` how this worker is to fail; `seen-<pid>` has
when this worker last did something, and its step.
"""

import ctypes
import json
import os
import sys
import threading
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import softmax  # beside this script

from elastic_core.worker import heartbeat

SHARED = Path(os.environ["TEST_SHARED"])


class Ranks(Protocol):
    """How ranks add."""

    def sum(self, part: softmax.Floats) -> softmax.Floats: ...
    def close(self) -> None: ...


def main() -> None:
    env = os.environ
    began_s = time.monotonic()
    how = json.loads((SHARED / "job.json").read_text())
    rank, world_size, gen = int(env["RANK"]), int(env["WORLD_SIZE"]), int(env["ELASTIC_ROUND"])
    train_set, held_out = softmax.Data.read(SHARED / "digits.npy")
    found = softmax.checkpoints(SHARED)
    model = softmax.load(found[-1])[0] if found else softmax.Model.new()
    seen = os.open(SHARED / f"seen-{os.getpid()}", os.O_CREAT | os.O_WRONLY, 0o600)
    mark(seen, model.step)
    says = {
        "node": env["ELASTIC_NODE_ID"],
        "rank": rank,
        "world": world_size,
        "gen": gen,
        "restarts": int(env["TORCHELASTIC_RESTART_COUNT"]),
        "changes": int(env["ELASTIC_MEMBERSHIP_CHANGES"]),
        "pid": os.getpid(),
        "at": began_s,
        "from": model.step,
    }
    os.write(1, (json.dumps(says) + "\n").encode())
    ranks = meet(how["ranks"])
    pause, last = threading.Event(), False
    while not last:
        obey()
        heartbeat(step=model.step)
        part = model.gradient(train_set, rank=rank, world_size=world_size)
        ends = float(rank == 0 and told_to_end(model.step + 1))
        total = ranks.sum(np.concatenate([part.ravel(), [ends, model.step]]))
        if total[-1] != model.step * world_size:
            raise RuntimeError(
                f"ranks are at different steps: {total[-1] / world_size:g} on average, {model.step} here"
            )
        last = bool(total[-2])
        model = model.moved(total[:-2].reshape(part.shape))
        mark(seen, model.step)
        if rank == 0:
            if last or model.step % how["checkpoint_steps"] == 0:
                softmax.save(SHARED, model, gen=gen, pid=os.getpid(), at=time.monotonic(), last=last)
            pause.wait(how["pace_s"])
    ranks.close()
    if rank == 0:
        print(f"held-out accuracy: {model.accuracy(held_out):.1%}", flush=True)


def meet(kind: str) -> Ranks:
    """Return how the ranks of this round add."""
    if kind == "gloo":
        from gloo import Gloo

        return Gloo()
    spec = spec_from_file_location("star", SHARED / "torch/distributed/star.py")
    assert spec is not None
    assert spec.loader is not None
    star: Any = module_from_spec(spec)
    spec.loader.exec_module(star)
    made: Ranks = star.Star()
    return made


def mark(seen: int, step: int) -> None:
    """Leave a sign of life."""
    os.pwrite(seen, b"%020.6f %010d" % (time.monotonic(), step), 0)


def told_to_end(step: int) -> bool:
    """Return whether this step is to be the last."""
    path = SHARED / "finish"
    return path.exists() and step >= int(path.read_text())


def obey() -> None:
    """Fail, if that is wanted."""
    path = SHARED / f"order-{os.getpid()}"
    if not path.exists():
        return
    order = path.read_text()
    if order == "exception":
        raise ValueError("label 11 is not a digit")
    if order == "segfault":
        ctypes.string_at(0)
    sys.exit(int(order))


if __name__ == "__main__":
    main()
