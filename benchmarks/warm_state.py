"""How long a newcomer's state takes: `State.sync` of one rank that has it and one that has just made its objects.

The floor is one broadcast of as many bytes in one piece, from and into memory that was written before, over the same
group in the same processes, in turns with it. The time of either ends when all ranks know that all others have it, too.
"""

import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks import standby
from benchmarks.bench import Bench
from benchmarks.measure import Figure, MeasureError, Take
from benchmarks.stats import FLOOR, Budget
from benchmarks.warm import WARM, need_warm

LAYERS, WIDTH = 30, 2048
MEGABYTES = round(LAYERS * WIDTH * WIDTH * 4 / 1e6)

RANKS = """
import sys, time
import torch
import torch.distributed as dist
import elastic_warm as warm

layers, width = map(int, sys.argv[2:])

def made(value):
    blocks = [torch.nn.utils.skip_init(torch.nn.Linear, width, width, bias=False) for _ in range(layers)]
    for block in blocks:
        torch.nn.init.constant_(block.weight, value)
    return torch.nn.Sequential(*blocks)

dist.init_process_group("gloo")
has_it = dist.get_rank() == 0
model = made(float(has_it))
state = warm.State(model=model, step=int(has_it))
if has_it:
    state.commit()
    state.commit()

piece = torch.full([layers * width * width], float(has_it))
print("ready", flush=True)
for order in map(str.strip, sys.stdin):
    if order == "sync" and not has_it:
        del model, state  # a newcomer's state is new each time
        model = made(0.0)
        state = warm.State(model=model, step=0)
    dist.barrier()
    began = time.monotonic()
    if order == "sync":
        result = state.sync()
        assert result.received is not has_it and state.step == 1
    else:
        dist.broadcast(piece, 0)
    dist.barrier()
    print(time.monotonic() - began, flush=True)
    if order == "sync":
        assert all(each[0, 0] == 1.0 == each[-1, -1] for each in model.parameters())
    else:
        assert piece[0] == 1.0 == piece[-1]
"""

FIGURES = {
    "warm-state": Figure(
        f"a state of {MEGABYTES} MB to a rank that was started anew", "ms", {WARM: Budget(times_floor=1.5)}
    )
}


def takes(bench: Bench) -> Mapping[str, Take]:
    """Return the takes: both are orders to the same two ranks.

    Raises:
        MissingError: there is no torch, or no elastic-warm.
    """
    need_warm(bench)
    script = Path(bench.script("warm_state", RANKS))
    ranks = bench.stack.enter_context(standby.group(script, bench.folder, 2, 0, str(LAYERS), str(WIDTH)))
    _lines(ranks)
    return {FLOOR: partial(_take, ranks, "broadcast"), WARM: partial(_take, ranks, "sync")}


def _take(ranks: list[subprocess.Popen[str]], order: str) -> float:
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write(f"{order}\n")
        rank.stdin.flush()
    return 1e3 * max(map(float, _lines(ranks)))


def _lines(ranks: list[subprocess.Popen[str]]) -> list[str]:
    """Return the next line of each rank.

    Raises:
        MeasureError: one has ended.
    """
    lines = []
    for rank in ranks:
        assert rank.stdout is not None
        line = rank.stdout.readline()
        if not line:
            raise MeasureError("a rank has ended")
        lines.append(line)
    return lines
