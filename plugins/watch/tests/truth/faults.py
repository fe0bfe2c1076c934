"""The script of the workers: plays one fault in each round, as its lane's list says. `faults.py LIST`.

LIST is a JSON file with the faults of the lane, in order: each a name and its arguments. The number of restarts says
which one is next. Each fault leaves at least one rank without progress, until the agent has reported the hang and
restarts the workers; a fault that is none ends its round by itself (`over`). After the last one the workers end.
"""

import ctypes
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from elastic_train import saving, should_stop

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS = 3
"""The number of steps without a fault, before it."""
NO_HANG = 77
"""The exit code of rank 0 after a round in which no rank hangs."""
HANG_S = float(os.environ["TRUTH_HANG_S"])
FAULTS: dict[str, Callable[..., None]] = {}


def fault(play: Callable[..., None]) -> Callable[..., None]:
    """Add a fault under its function's name."""
    FAULTS[play.__name__] = play
    return play


# --- steps, and what ranks do in them


def heartbeat(**step: int) -> None:
    """Send a heartbeat. The import announces heartbeats, so a script that sends none must not import it."""
    from elastic_core.worker import heartbeat as send

    send(**step)


def section(name: str, limit_s: float) -> AbstractContextManager[None]:
    """Return a section."""
    from elastic_core.worker import section as opened

    return opened(name, limit_s=limit_s)


def announce() -> None:
    """Announce heartbeats. Until the first one, the agent has no limit: it does not judge this rank by its output."""
    from elastic_core.worker import heartbeat  # noqa: F401


def join(**options: object) -> None:
    """Create the default group, and train until the fault.

    The first heartbeat follows an operation of all ranks, so it counts only once all have created the group. On a busy
    machine that takes seconds, in which they are silent: they would hang before the fault.
    """
    announce()
    dist.init_process_group("gloo", **options)
    for step in range(STEPS):
        all_reduce()
        heartbeat(step=step)


def join_unannounced() -> None:
    """Create the default group in a script that announces no heartbeats, and train one step.

    Its ranks are judged by their output from their first byte on, so one rank of each node prints meanwhile.
    """
    joined = threading.Event()

    def report() -> None:
        while not joined.wait(0.1):
            os.write(1, b"joins\n")

    reporter = threading.Thread(target=report, daemon=True)
    if os.environ["LOCAL_RANK"] == "0":
        reporter.start()
    dist.init_process_group("gloo")
    all_reduce()
    joined.set()
    if reporter.ident is not None:
        reporter.join()


def all_reduce(group: object = None, size: int = 10) -> None:
    dist.all_reduce(torch.ones(size), group=group)


def all_gather(group: object = None, size: int = 10) -> None:
    dist.all_gather([torch.ones(size) for _ in range(dist.get_world_size(group))], torch.ones(size), group=group)


def all_gather_object() -> None:
    dist.all_gather_object([None] * WORLD, {"rank": RANK})


def broadcast(src: int = 0, size: int = 10) -> None:
    dist.broadcast(torch.ones(size), src=src)


def reduce_scatter() -> None:
    dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * WORLD))


def all_to_all() -> None:
    dist.all_to_all_single(torch.ones(WORLD), torch.ones(WORLD))


def reduce() -> None:
    dist.reduce(torch.ones(10), dst=0)


def gather() -> None:
    dist.gather(torch.ones(2), [torch.ones(2) for _ in range(WORLD)] if RANK == 0 else None, dst=0)


def wait_of_async() -> None:
    """Enter, and wait by the handle: no frame of torch is on the stack."""
    work = dist.all_reduce(torch.ones(10), async_op=True)
    work.wait()


def backward() -> None:
    """Wait in the C++ code of autograd."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()


COLLECTIVES = {
    each.__name__: each
    for each in (all_reduce, all_gather, all_gather_object, broadcast, reduce_scatter, all_to_all, reduce, gather)
} | {"barrier": dist.barrier, "wait_of_async": wait_of_async}


# --- how ranks hang


def sleep() -> None:
    while True:
        time.sleep(0.1)


def spin() -> None:
    while True:
        sum(range(1000))


def lock() -> None:
    held = threading.Lock()
    held.acquire()
    held.acquire()


def empty_queue() -> None:
    queue.Queue().get()


def pipe() -> None:
    reader, writer = os.pipe()
    os.read(reader, 1)
    os.close(writer)


def subprocess_() -> None:
    subprocess.run(["sleep", "600"], check=True)


def held_interpreter() -> None:
    """Call C code that keeps the interpreter's lock and does not return."""
    reader, _ = os.pipe()
    ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)


def regex() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def compute() -> None:
    """Run operations of torch without end: code in C++ that releases the interpreter's lock."""
    matrix = torch.ones(400, 400)
    while True:
        matrix = matrix @ matrix


class Stuck(torch.utils.data.Dataset):
    """A data set whose third sample never comes."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        while index == 2:
            time.sleep(0.1)
        return index


def data_loader() -> None:
    for _ in torch.utils.data.DataLoader(Stuck(), num_workers=1, collate_fn=list):
        pass


def save() -> None:
    with section("save", limit_s=0.2), saving():
        sleep()


def expired_section() -> None:
    with section("checkpoint", limit_s=0.2):
        sleep()


def condition() -> None:
    threading.Event().wait()


def exit_handler() -> None:
    """End, and hang in a handler of the interpreter's end."""
    import atexit

    atexit.register(sleep)
    sys.exit(0)


HOWS: dict[str, Callable[[], None]] = {
    each.__name__.rstrip("_"): each
    for each in (
        *(sleep, spin, lock, empty_queue, pipe, subprocess_, held_interpreter, regex, stop, compute, data_loader, save),
        *(expired_section, condition, exit_handler),
    )
}


def over() -> None:
    """End a round in which no rank hangs."""
    if RANK == 0:
        os._exit(NO_HANG)
    while True:
        heartbeat()
        time.sleep(0.1)


# --- faults: a rank, or several, are missing


@fault
def missing(ranks: list[int], how: str = "sleep", call: str = "all_reduce", early: bool = False) -> None:
    """Ranks hang before a collective in which the others wait; `early`: before they report the step."""
    join()
    if RANK in ranks and early:
        HOWS[how]()
    heartbeat(step=STEPS)
    if RANK in ranks:
        HOWS[how]()
    COLLECTIVES[call]()


@fault
def missing_by_should_stop(ranks: list[int]) -> None:
    """The same with `should_stop` in place of `heartbeat`."""
    join_unannounced()
    for step in range(1, STEPS):
        all_reduce()
        should_stop(step=step)
    if RANK in ranks:
        sleep()
    should_stop(step=STEPS)
    all_reduce()


@fault
def missing_without_heartbeats(ranks: list[int]) -> None:
    """The same in a script of which rank 0 prints, and no rank sends a heartbeat."""
    join_unannounced()
    for step in range(1, STEPS):
        if RANK == 0:
            os.write(1, b"step %d\n" % step)
        all_reduce()
    if RANK in ranks:
        sleep()
    all_reduce()


@fault
def missing_from_group_creation(ranks: list[int], how: str = "sleep") -> None:
    """Ranks do not call `init_process_group`."""
    heartbeat(step=0)
    if RANK in ranks:
        HOWS[how]()
    join()


@fault
def ended_before_group_creation(ranks: list[int]) -> None:
    """Ranks end with 0 before `init_process_group`."""
    heartbeat(step=0)
    if RANK in ranks:
        sys.exit(0)
    join()


@fault
def late_to_group_creation(ranks: list[int], parts: float) -> None:
    """Ranks call `init_process_group` after several limits, in which the others wait there, and all go on."""
    announce()
    if RANK in ranks:
        time.sleep(parts * HANG_S)
    join()
    over()


@fault
def missing_from_new_group(ranks: list[int]) -> None:
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    dist.new_group(list(range(WORLD)))


@fault
def ended_before_new_group(ranks: list[int]) -> None:
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        os._exit(0)
    dist.new_group(list(range(WORLD)))


@fault
def missing_key(ranks: list[int]) -> None:
    """Rank 0 waits for a key that the culprit never sets, and the others wait for rank 0."""
    join()
    store = dist.distributed_c10d._get_default_store()
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    if RANK == 0:
        store.get("never")
    all_reduce()


@fault
def key_of_no_rank() -> None:
    """Rank 0 waits for a key that no rank sets."""
    join()
    heartbeat(step=STEPS)
    if RANK == 0:
        dist.distributed_c10d._get_default_store().get("never")
    all_reduce()


@fault
def stopped_inside(ranks: list[int]) -> None:
    """The culprit is stopped while it is in the collective; the last rank enters only then."""
    join()
    pids: list[int] = [0] * WORLD
    dist.all_gather_object(pids, os.getpid())
    heartbeat(step=STEPS)
    if RANK in ranks:
        threading.Timer(0.4, stop).start()
    while WORLD - 1 == RANK and not is_stopped(pids[ranks[0]]):
        time.sleep(0.05)
    dist.all_reduce(torch.ones(100_000))


@fault
def entered_and_left(ranks: list[int]) -> None:
    """The culprit enters the operation asynchronously and hangs; the next operation lacks it."""
    join()
    heartbeat(step=STEPS)
    work = dist.all_reduce(torch.ones(10), async_op=True)
    if RANK in ranks:
        sleep()
    work.wait()
    heartbeat(step=STEPS + 1)
    all_reduce()


@fault
def ahead_by_async(ranks: list[int], ahead: int = 5) -> None:
    """Rank 0 has entered several operations, others one, the culprit none."""
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(ahead if RANK == 0 else 1)]
    for work in works:
        work.wait()


@fault
def ahead_by_broadcast(ranks: list[int]) -> None:
    """The root of broadcasts has sent three of them and waits in a barrier; the culprit has received none."""
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    for _ in range(3):
        broadcast()
    dist.barrier()


@fault
def fewer_batches(ranks: list[int], how: str = "sleep") -> None:
    """Culprits have one batch less, and go on after the loop."""
    join()
    for step in range(STEPS, STEPS + (1 if RANK in ranks else 2)):
        heartbeat(step=step)
        all_reduce()
    HOWS[how]()


@fault
def skipped_backward(ranks: list[int]) -> None:
    """Under DistributedDataParallel, culprits leave out the last backward and go on after the loop."""
    join()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(STEPS, STEPS + 3):
        heartbeat(step=step)
        loss = model(torch.ones(2, 4)).sum()
        if RANK in ranks and step == STEPS + 2:
            break
        loss.backward()
    sleep()


@fault
def unused_parameter(ranks: list[int]) -> None:
    """Under DistributedDataParallel, a layer gets no gradient on the culprit, which goes on after the backward."""
    join()

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return self.first(data) if RANK in ranks else self.first(data) + self.second(data)

    model = torch.nn.parallel.DistributedDataParallel(Two())
    heartbeat(step=STEPS)
    model(torch.ones(2, 4)).sum().backward()
    heartbeat(step=STEPS + 1)
    sleep()


@fault
def steps_without_heartbeats() -> None:
    """Ranks send no heartbeat for three limits and go on with collectives all the time."""
    join()
    heartbeat(step=STEPS)
    end_s = time.monotonic() + 3 * HANG_S
    going_on = torch.ones(1)
    while going_on.item():
        time.sleep(0.02)
        going_on[0] = time.monotonic() < end_s
        dist.all_reduce(going_on, op=dist.ReduceOp.MIN)
    over()


@fault
def collective_in_thread(ranks: list[int], polls: bool) -> None:
    """A thread of each rank calls the collective and the main thread waits for it; the culprit's thread loops."""
    join()
    heartbeat(step=STEPS)
    thread = threading.Thread(target=sleep if RANK in ranks else all_reduce, daemon=True)
    thread.start()
    while polls and thread.is_alive():
        time.sleep(0.01)
    thread.join()


@fault
def polled_handle(ranks: list[int], polling: list[int]) -> None:
    """Some ranks poll the handle of an asynchronous operation, others wait in it, the culprit has not entered."""
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    work = dist.all_reduce(torch.ones(10), async_op=True)
    while RANK in polling and not work.is_completed():
        time.sleep(0.01)
    work.wait()


@fault
def functional(ranks: list[int]) -> None:
    """The others wait for the result of a functional collective."""
    from torch.distributed import _functional_collectives as collectives

    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    collectives.all_reduce(torch.ones(10), "sum", dist.group.WORLD).sum().item()


@fault
def missing_from_store_wait(ranks: list[int]) -> None:
    """The others wait in the store for a key of the culprit."""
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    dist.distributed_c10d._get_default_store().wait(["never"])


@fault
def missing_from_monitored_barrier(ranks: list[int]) -> None:
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    dist.monitored_barrier(timeout=timedelta(minutes=10))


@fault
def traced(ranks: list[int], parts: float) -> None:
    """A debugger stops the rank for several limits, and the others wait for it."""
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        libc, parent = ctypes.CDLL(None), os.getpid()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(reader, 1)
            if libc.ptrace(16, parent, None, None):  # PTRACE_ATTACH
                os._exit(1)
            os.waitpid(parent, 0x40000000)  # __WALL
            time.sleep(parts * HANG_S)
            libc.ptrace(17, parent, None, None)  # PTRACE_DETACH
            os._exit(0)
        libc.prctl(0x59616D61, child, 0, 0, 0)  # PR_SET_PTRACER
        os.write(writer, b"x")
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == 0, "this system lets no process trace another one"
    all_reduce()
    over()


@fault
def suspended_job(parts: float) -> None:
    """All processes of the job are stopped for several limits and continue."""
    join()
    heartbeat(step=STEPS)
    pids: list[int] = [0] * WORLD
    dist.all_gather_object(pids, os.getpid())
    if RANK == 0:
        pids.append(int(os.environ["TRUTH_AGENT"]))
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            for pid in reversed(pids):
                os.kill(pid, signal.SIGSTOP)
            time.sleep(parts * HANG_S)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            os.write(writer, b"x")
            os._exit(0)
    time.sleep(0.3)
    if RANK == 0:
        os.read(reader, 1)  # on a busy machine, the other process may begin late
    all_reduce()
    over()


# --- point-to-point


@fault
def missing_sender(ranks: list[int]) -> None:
    """Rank 0 receives from the culprit, and the others wait for rank 0."""
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    if RANK == 0:
        dist.recv(torch.ones(10), src=ranks[0])
    dist.barrier()


@fault
def missing_receiver(ranks: list[int]) -> None:
    """Rank 0 sends to the culprit."""
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    if RANK == 0:
        dist.send(torch.ones(10_000_000), dst=ranks[0])
    dist.barrier()


@fault
def receiver_without_sender() -> None:
    """Rank 1 receives from rank 2, which does not send and goes on to the barrier, where all wait for rank 1."""
    join()
    heartbeat(step=STEPS)
    if RANK == 1:
        dist.recv(torch.ones(10), src=2)
    dist.barrier()


@fault
def pipeline(ranks: list[int]) -> None:
    """Each rank receives from the one before; the culprit hangs in its stage."""
    join()
    heartbeat(step=STEPS)
    if RANK:
        dist.recv(torch.ones(10), src=RANK - 1)
    if RANK in ranks:
        sleep()
    if RANK + 1 < WORLD:
        dist.send(torch.ones(10), dst=RANK + 1)
    dist.barrier()


@fault
def pipeline_with_leads(ranks: list[int]) -> None:
    """In a pipeline the first ranks are a step ahead, the culprit hangs, and the last one waits at an earlier step."""
    join()
    data, works = torch.ones(10), []
    for step in range(STEPS, STEPS + 2):
        heartbeat(step=step)
        if RANK:
            dist.recv(torch.ones(10), src=RANK - 1)
        if RANK in ranks:
            sleep()
        if RANK + 1 < WORLD:
            works.append(dist.isend(data, dst=RANK + 1))
    heartbeat(step=STEPS + 2)
    dist.barrier()


@fault
def batch_of_sends(ranks: list[int]) -> None:
    """All ranks exchange with their neighbours by `batch_isend_irecv`, but for the culprit."""
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    operations = [
        dist.P2POp(dist.isend, torch.ones(10), (RANK + 1) % WORLD),
        dist.P2POp(dist.irecv, torch.ones(10), (RANK - 1) % WORLD),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    dist.barrier()


# --- several groups


def groups_of(*members: list[int], names: str = "") -> list[dist.ProcessGroup]:
    """Create these groups on all ranks."""
    return [dist.new_group(each, group_desc=f"{names}{index}" if names else None) for index, each in enumerate(members)]


@fault
def mesh(ranks: list[int], how: str = "sleep") -> None:
    """In a mesh of two by two, the culprit is missing in its row; the other ranks wait in rows and columns."""
    join()
    grid = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = grid.get_group("tp"), grid.get_group("dp")
    for step in range(STEPS, STEPS + 3):
        heartbeat(step=step)
        if RANK in ranks and step == STEPS + 2:
            HOWS[how]()
        all_reduce(tp)
        all_reduce(dp)


@fault
def chain(ranks: list[int]) -> None:
    """Rank 0 waits for 1, 1 for 2, and 2 for the culprit 3, each in a group of two."""
    join()
    first, second, third = groups_of([0, 1], [1, 2], [2, 3])
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    if RANK == 2:
        all_reduce(third)
    if RANK in (1, 2):
        all_reduce(second)
    if RANK in (0, 1):
        all_reduce(first)


@fault
def missing_in_subgroup(ranks: list[int]) -> None:
    """The culprit is missing in a group of three; the rank outside of it waits in the barrier of all."""
    join()
    (three,) = groups_of([1, 2, 3], names="experts")
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    if RANK:
        all_reduce(three)
    dist.barrier()


@fault
def recreated_group(ranks: list[int]) -> None:
    """Groups are destroyed and created again; the culprit is missing in the last one."""
    join()
    for _ in range(3):
        (group,) = groups_of([0, 1, 2, 3], names="again")
        for _ in range(2 + RANK % 1):
            all_reduce(group)
        dist.barrier(group)
        dist.destroy_process_group(group)
    (group,) = groups_of([0, 1, 2, 3], names="again")
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    all_reduce(group)


@fault
def recreated_world(ranks: list[int]) -> None:
    """The default group is destroyed and created again; the culprit is missing in the new one."""
    join()
    for _ in range(5):
        all_reduce()
    dist.barrier()
    with section("join", limit_s=20 * HANG_S):  # these ranks have sent heartbeats
        dist.destroy_process_group()
        join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    all_reduce()


@fault
def different_order() -> None:
    """Two ranks use two groups in different orders: each waits for the other."""
    join()
    first, second = groups_of([0, 1, 2, 3], [0, 1, 2, 3])
    heartbeat(step=STEPS)
    for group in (second, first) if RANK == 1 else (first, second):
        all_reduce(group)


@fault
def circle(ahead: bool = False) -> None:
    """Each rank waits in a group with the next one, which is in its own group with the one after it.

    `ahead`: rank 0 has reported one step more.
    """
    join()
    groups = groups_of([0, 1], [1, 2], [2, 3], [0, 3])
    heartbeat(step=STEPS + (ahead and RANK == 0))
    all_reduce(groups[RANK])
    all_reduce(groups[(RANK - 1) % WORLD])


@fault
def absent_new_group() -> None:
    """Three ranks create a group while the fourth waits for them in a collective."""
    join()
    heartbeat(step=STEPS)
    if RANK == 2:
        all_reduce()
    dist.new_group(list(range(WORLD)))


# --- one group, different operations


@fault
def other_operation(ranks: list[int], call: str = "all_gather") -> None:
    """Culprits call another collective than the others."""
    join()
    heartbeat(step=STEPS)
    COLLECTIVES[call if RANK in ranks else "all_reduce"]()
    sleep()


@fault
def other_root(ranks: list[int]) -> None:
    """Culprits take themselves for the root of a broadcast; then all ranks wait in the next collective."""
    join()
    heartbeat(step=STEPS)
    broadcast(src=1 if RANK in ranks else 0)
    all_reduce()


@fault
def other_size_and_missing(ranks: list[int]) -> None:
    """Rank 0 enters with another size while the culprit has not entered: the others wait."""
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        sleep()
    broadcast(src=ranks[0], size=20 if RANK == 0 else 10)
    all_reduce()


@fault
def crossed_async(ranks: list[int]) -> None:
    """Culprits enter two asynchronous operations of one group in the other order."""
    join()
    heartbeat(step=STEPS)
    calls = [
        lambda: dist.all_reduce(torch.ones(10), async_op=True),
        lambda: dist.all_gather([torch.ones(10) for _ in range(WORLD)], torch.ones(10), async_op=True),
    ]
    works = [call() for call in (reversed(calls) if RANK in ranks else calls)]
    for work in works:
        work.wait()
    all_reduce()


# --- without torch.distributed


@fault
def plain_steps(ranks: list[int]) -> None:
    """A script without groups: culprits stay behind, the others go on by two steps and wait for a file."""
    for step in range(STEPS):
        heartbeat(step=step)
        time.sleep(0.02)
    if RANK in ranks:
        sleep()
    heartbeat(step=STEPS)
    pipe()


@fault
def plain_same_step(ranks: list[int]) -> None:
    """A script without groups, in which all ranks stop at the same step: culprits at another line."""
    for step in range(STEPS):
        heartbeat(step=step)
    if RANK in ranks:
        sleep()
    pipe()


# --- no rank hangs


@fault
def slow_rank(ranks: list[int], seconds: float = 0.6, steps: int = 8) -> None:
    """A rank is slow in each step, and the others wait for it; no step takes half of the limit."""
    join()
    for step in range(STEPS, STEPS + steps):
        heartbeat(step=step)
        if RANK in ranks:
            time.sleep(seconds)
        all_reduce()
    over()


@fault
def long_step(ranks: list[int], part: float) -> None:
    """One step of one rank takes a part of the limit, and all go on."""
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        time.sleep(part * HANG_S)
    all_reduce()
    heartbeat(step=STEPS + 1)
    all_reduce()
    over()


@fault
def long_save(ranks: list[int], parts: float) -> None:
    """A rank saves for several limits, and the others wait for it."""
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        with saving():
            time.sleep(parts * HANG_S)
    all_reduce()
    over()


@fault
def long_section(ranks: list[int], parts: float) -> None:
    """A rank is in a section for several limits, and the others wait for it."""
    join()
    heartbeat(step=STEPS)
    if RANK in ranks:
        with section("checkpoint", limit_s=20 * HANG_S):
            time.sleep(parts * HANG_S)
    all_reduce()
    over()


@fault
def after_restart(ranks: list[int]) -> None:
    """The culprit's first operation of this round never comes; the rounds before left thousands of entries."""
    announce()
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    heartbeat(step=0)
    if RANK in ranks:
        sleep()
    all_reduce()


# --- slow ranks

TRAINING_S = 8.0
"""How long a training lasts in which no rank is named: seven comparisons."""
LONGEST_TRAINING_S = 60.0
"""How long one with a slow rank lasts at most, until the rank is named."""
WORK_S = 0.012


def train(
    own_s: Callable[[int], float], work: Callable[[float], None] = time.sleep, *, until_named: bool = False
) -> None:
    """Train for some seconds, each step with own work, an operation of all ranks, and a heartbeat.

    With `until_named`, the training lasts until the agent names a straggler: on a busy machine, that takes longer.
    """
    dist.init_process_group("gloo")
    journal = Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parents[2] / "journal.jsonl"
    before = stragglers(journal)
    begin_s, step, going_on = time.monotonic(), 0, torch.ones(1)
    while going_on.item():
        heartbeat(step=step)
        work(own_s(step))
        passed_s = time.monotonic() - begin_s
        going_on[0] = passed_s < (LONGEST_TRAINING_S if until_named else TRAINING_S)
        if until_named and RANK == 0 and passed_s > TRAINING_S and stragglers(journal) > before:
            going_on[0] = False
        dist.all_reduce(going_on, op=dist.ReduceOp.MIN)
        step += 1
    over()


def stragglers(journal: Path) -> int:
    """Return how many times the agent has named a straggler."""
    return journal.read_text().count('"name":"straggler"') if journal.exists() else 0


def busy(seconds: float) -> None:
    """Use a processor for this time, as far as the kernel gives it."""
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        sum(range(100))


@fault
def slow_by_sleep(ranks: list[int], factor: float) -> None:
    """Ranks need more time in each step."""
    train(lambda step: WORK_S * (factor if RANK in ranks else 1), until_named=bool(ranks))


@fault
def slow_by_stops(ranks: list[int]) -> None:
    """Another process stops the rank for most of the time, once in each step.

    With two or three steps between two stops, a window of a second has too few stops: most of its steps are fast.
    """
    worker = os.getpid()
    if RANK in ranks and os.fork() == 0:
        while os.getppid() == worker:
            for signum, seconds in ((signal.SIGSTOP, 3 * WORK_S), (signal.SIGCONT, WORK_S)):
                os.kill(worker, signum)
                time.sleep(seconds)
        os._exit(0)
    train(lambda step: WORK_S, until_named=True)


@fault
def slow_by_neighbours(ranks: list[int]) -> None:
    """The rank computes on a processor that it shares with other programs."""
    processors = sorted(os.sched_getaffinity(0))
    worker = os.getpid()
    os.sched_setaffinity(0, processors[:1] if RANK in ranks else processors[1:] or processors)
    if RANK in ranks:
        for _ in range(4):
            if os.fork() == 0:
                while os.getppid() == worker:
                    sum(range(1000))
                os._exit(0)
    train(lambda step: 0.01, busy)


@fault
def slow_in_turns() -> None:
    """Another rank is slow in each step."""
    train(lambda step: WORK_S * (3 if step % WORLD == RANK else 1))


@fault
def slow_at_times(ranks: list[int]) -> None:
    """A rank is slow in one step of thirty."""
    train(lambda step: WORK_S * (10 if RANK in ranks and step % 30 == 29 else 1))


@fault
def slow_by_chance() -> None:
    """The work of all ranks differs by chance."""
    import random

    chance = random.Random(RANK)
    train(lambda step: WORK_S * chance.uniform(0.5, 1.5))


def main() -> None:
    """Play the fault of this round."""
    faults = json.loads(Path(sys.argv[1]).read_text())
    played = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if played < len(faults):
        name, arguments = faults[played]
        FAULTS[name](**arguments)
        over()


if __name__ == "__main__":
    main()
