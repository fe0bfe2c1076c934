"""How long the survivors of a failure stand still: kill -9 of one worker until all ranks have reduced a tensor again.

With warm rounds the survivors keep their process, and the killed worker is forked. The floor is a supervisor of a few
lines: its survivors shut the sockets of their gloo group and form another one, with an interpreter that has torch. It
has started a torch store for that group before the kill, so no rank waits for the server of rank 0.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from select import poll

from benchmarks import standby
from benchmarks.bench import Bench
from benchmarks.launchers import Launcher
from benchmarks.measure import Figure, MissingError, Take
from benchmarks.standby import STANDBY
from benchmarks.stats import FLOOR, OURS, Budget

WARM = f"{OURS}, warm"

SURVIVOR = """
import os, socket, stat, sys, threading, time
import torch
import torch.distributed as dist

folder, attempt = sys.argv[1], 0
if sys.argv[2:] == ["waits"]:
    print("waits", flush=True)
    os.environ |= {"MASTER_PORT": sys.stdin.readline().strip(), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    attempt = 1

def train():
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    at = time.monotonic()
    path = f"{folder}/{attempt}.{os.environ['RANK']}"
    with open(path + ".part", "w") as file:
        file.write(f"{os.getpid()} {at}")
    os.rename(path + ".part", path)
    while True:
        dist.all_reduce(total)
        time.sleep(0.002)

asked, port = threading.Event(), []

def leave():
    port.append(sys.stdin.readline().strip())
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                connected = socket.socket(fileno=os.dup(fd))
                connected.getpeername()  # not a socket that listens: gloo ends the process if that fails
                connected.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    asked.set()

threading.Thread(target=leave, daemon=True).start()
try:
    train()
except RuntimeError:
    asked.wait()
dist.destroy_process_group()
os.environ |= {"MASTER_PORT": port[0], "TORCHELASTIC_USE_AGENT_STORE": "True"}
attempt = 1
try:
    train()
except RuntimeError:  # the measurement is over, and the others are being killed
    os._exit(0)  # torch would abort, as the thread that reads its input is still there
"""

STORE = """
import sys
from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""

WORKER = """
import os, sys, time
import torch
import torch.distributed as dist
import elastic_warm as warm

state = warm.State(weights=torch.zeros(int(sys.argv[2])), step=0)

@warm.rounds
def train(state):
    dist.init_process_group("gloo")
    state.sync()
    total = torch.ones(1)
    dist.all_reduce(total)
    at = time.monotonic()
    assert total.item() == dist.get_world_size()
    path = f"{sys.argv[1]}/{os.environ['TORCHELASTIC_RESTART_COUNT']}.{os.environ['RANK']}"
    with open(path + ".part", "w") as file:
        file.write(f"{os.getpid()} {at}")
    os.rename(path + ".part", path)
    while True:  # until it is killed: all wait for each other in a collective, as in training
        state.step += 1
        state.commit()
        dist.all_reduce(total)
        time.sleep(0.002)

train(state)
"""


def figures(group_size: int, budget: Budget) -> dict[str, Figure]:
    """Return the figures of a measure."""
    title = f"kill -9 of one of {group_size} workers until all have reduced a tensor again"
    return {f"warm-{group_size}": Figure(title, "ms", {WARM: budget})}


def need_warm(bench: Bench) -> None:
    """Raise MissingError if torch or elastic-warm is not there."""
    bench.need_torch()
    if subprocess.run([sys.executable, "-c", "import elastic_warm"], capture_output=True, check=False).returncode:
        raise MissingError("elastic-warm is not installed")


def takes(group_size: int, *, numbers: int = 1000) -> Callable[[Bench], Mapping[str, Take]]:
    """Return the takes of a measure; `numbers` are how many float32 the state has."""

    def launchers(bench: Bench) -> Mapping[str, Take]:
        need_warm(bench)
        script, cold_script = bench.script("warm", WORKER), bench.script("cold", standby.WORKER)
        floor_script, serial = Path(bench.script("warm_floor", SURVIVOR)), count()

        def fresh() -> Path:
            folder = bench.folder / f"warm-{group_size}-{next(serial)}"
            folder.mkdir()
            return folder

        def take(launcher: Launcher, program: str, options: tuple[str, ...], arguments: list[str]) -> float:
            folder = fresh()
            command = launcher(group_size, 1, [program, str(folder), *arguments], options)
            return 1e3 * killed(command, folder, group_size)

        options = ("--restart-backoff", "0", "--standby")
        found: dict[str, Take] = {
            FLOOR: lambda: 1e3 * floor(floor_script, fresh(), group_size),
            WARM: partial(take, bench.launchers[OURS], script, options, [str(numbers)]),
            STANDBY: partial(take, bench.launchers[OURS], cold_script, options, []),
        }
        return found

    return launchers


def killed(command: list[str], folder: Path, workers: int) -> float:
    """Return the seconds from the kill of rank 1 until all ranks are ready again."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agent = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        (_, (victim, _), *_) = standby.ready(folder, 0, workers, agent)
        standby.settle()
        began_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        return max(at for _, at in standby.ready(folder, 1, workers, agent)) - began_s
    finally:
        agent.terminate()
        agent.wait(standby.DEADLINE_S)


def floor(script: Path, folder: Path, workers: int) -> float:
    """Return the seconds of one round where nothing is done but the needed."""
    with (
        standby.group(script, folder, workers, 0) as old,
        standby.group(script, folder, workers, 1, "waits") as new,
        store() as port,
    ):
        newcomer = new[1]
        for process in new:
            assert process.stdout is not None
            process.stdout.readline()
        standby.ready(folder, 0, workers)
        watch = poll()
        watch.register(os.pidfd_open(old[1].pid))
        standby.settle()
        began_s = time.monotonic()
        old[1].kill()
        watch.poll()
        for process in (old[0], newcomer, *old[2:]):
            assert process.stdin is not None
            process.stdin.write(port)
            process.stdin.flush()
        return max(at for _, at in standby.ready(folder, 1, workers)) - began_s


@contextmanager
def store() -> Iterator[str]:
    """Run a torch store in a process of its own; gives a line with its port."""
    command = [sys.executable, "-c", STORE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.kill()
