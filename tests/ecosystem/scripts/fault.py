"""The one foreign line of each script: `step(n)` writes the step down, rests a little, and once does what is asked."""

import json
import os
import signal
import time
from pathlib import Path

STEPS = int(os.environ.get("CELL_STEPS", "20"))
SAVE_EVERY = 5
AT = 7
"""The step with the fault: behind a checkpoint, and before the next."""

_FOLDER = Path(os.environ["CELL_FOLDER"])


def step(number: int) -> None:
    """Note one training step of this rank."""
    rank = os.environ.get("CELL_RANK") or os.environ["RANK"]
    told = {"step": number, "rank": int(rank), "world": int(os.environ["WORLD_SIZE"]), "pid": os.getpid()}
    with (_FOLDER / f"steps-{rank}").open("a") as file:
        file.write(json.dumps(told) + "\n")
    time.sleep(0.1)  # noqa: TID251  # a script of a user's
    order = os.environ.get("CELL_FAULT", "")
    if number == AT and rank == "1" and order in {"crash", "worker"}:
        try:
            (_FOLDER / "done-once").touch(exist_ok=False)
        except FileExistsError:
            return
        if order == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("injected: bad sample 1234")
