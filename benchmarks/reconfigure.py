"""What `reconfigure` of torch 2.15 could save in a warm round: `python -m benchmarks.reconfigure`.

One worker of a group of gloo is killed, and a fork takes its rank. The survivors are freed by a shutdown of their
sockets. Then the ways differ, and take turns:

- destroy: they destroy the group and make another one;
- wake, destroy: the same, and the threads of gloo are woken meanwhile, as by `elastic_warm`;
- reconfigure: they keep the group, and reconfigure it. Its store must be the same in all rounds.

A process of its own hosts the store of all ways, so no rank waits for a server. With a torch that can't reconfigure,
the last way is left out.
"""

import argparse
import multiprocessing
import os
import signal
import socket
import stat
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from benchmarks.table import number
from elastic_warm import gloo_loops

DESTROY, WAKE, RECONFIGURE = "destroy", "wake, destroy", "reconfigure"
PARTS = ("free", "leave", "join", "reduce")
SIGNAL = signal.SIGRTMAX - 8
LIMIT = timedelta(seconds=60)
SETTLED_S = 0.1
PROCESSES = multiprocessing.get_context("fork")


class Place(NamedTuple):
    """A worker's place in a round; its global rank and the number of workers are those of the round."""

    number: int
    rank: int
    size: int


class Report(NamedTuple):
    """What a worker reports once it has reduced a tensor in a round."""

    at_s: float
    cpu_ms: float
    parts_ms: dict[str, float]


class Sample(NamedTuple):
    """One kill: the time until all have reduced, and medians of the survivors, all in milliseconds."""

    until_all_ms: float
    cpu_ms: float
    parts_ms: dict[str, float]


# --- the workers


class Worker:
    """A process that takes part in one round after the other until it is killed."""

    def __init__(self, agent: "Connection[Any, Any]", way: str, port: int) -> None:
        self._agent = agent
        self._way = way
        self._port = port
        self._store: Any = None
        self._total = torch.ones(1)
        self._began_s = 0.0

    def run(self) -> None:
        """Take part in a round for each place that arrives."""
        signal.signal(SIGNAL, lambda *_: None)
        self._agent.send("ready")
        place: Place = self._agent.recv()
        self._began_s = time.monotonic()
        cpu_s, moments = time.process_time(), {"free": self._began_s, "leave": self._began_s}
        while True:
            self._join(place)
            moments["join"] = time.monotonic()
            self._total.fill_(1.0)
            dist.all_reduce(self._total)
            moments["reduce"] = time.monotonic()
            if self._total.item() != place.size:
                raise ValueError(f"the sum of {place.size} ones is {self._total.item()}")
            cpu_ms = 1e3 * (time.process_time() - cpu_s)
            self._agent.send(Report(moments["reduce"], cpu_ms, _differences(self._began_s, moments)))
            cpu_s, place = time.process_time(), self._next_place(place)
            moments = {"free": time.monotonic()}
            if self._way != RECONFIGURE:
                with gloo_loops.woken(SIGNAL if self._way == WAKE else 0):
                    dist.destroy_process_group()
                self._store = None
            moments["leave"] = time.monotonic()

    def _next_place(self, place: Place) -> Place:
        """Wait in a collective that can't end, as in training, until a thread has the next place and frees it."""
        places: list[Place] = []
        has_place = threading.Event()

        def listen() -> None:
            places.append(self._agent.recv())
            self._began_s = time.monotonic()
            shut(self._port)
            has_place.set()

        threading.Thread(target=listen, daemon=True).start()
        if place.rank < place.size - 1:  # the last one is the next to be killed
            with suppress(RuntimeError):
                dist.all_reduce(self._total)
        has_place.wait()
        return places[0]

    def _join(self, place: Place) -> None:
        if self._store is None:
            self._store = dist.TCPStore("127.0.0.1", self._port, is_master=False, timeout=LIMIT)
            more: dict[str, Any] = {"enable_reconfigure": True} if self._way == RECONFIGURE else {}
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore("groups" if more else f"group {place.number}", self._store),
                rank=place.rank,
                world_size=place.size,
                timeout=LIMIT,
                **more,
            )
        if self._way == RECONFIGURE:
            c10d: Any = dist
            self._store.set(f"{place.number}/{place.rank}", c10d._get_reconfigure_handle())
            keys = [f"{place.number}/{rank}" for rank in range(place.size)]
            self._store.wait(keys)
            handles = [handle.decode() for handle in self._store.multi_get(keys)]
            c10d._reconfigure(place.number, handles, timeout=LIMIT).wait()


def shut(port_of_store: int) -> None:
    """Shut down the connections of this process but those to the store."""
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  # in a hurry
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            with socket.socket(fileno=os.dup(fd)) as connection:
                if connection.family == socket.AF_UNIX or connection.getpeername()[1] == port_of_store:
                    continue
                connection.shutdown(socket.SHUT_RDWR)


def _differences(began_s: float, moments: Mapping[str, float]) -> dict[str, float]:
    times = [began_s, *(moments[part] for part in PARTS)]
    return {part: 1e3 * (end - begin) for part, begin, end in zip(PARTS, times, times[1:], strict=False)}


def _work(agent: "Connection[Any, Any]", way: str, port: int) -> None:
    Worker(agent, way, port).run()


def _serve(agent: "Connection[Any, Any]") -> None:
    """Host the store of all groups until the process is killed."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    agent.send(store.port)
    agent.recv()


# --- their supervisor


class Process:
    """A fork of this process that calls a function with its end of a pipe. It is killed at the end."""

    def __init__(self, function: "Callable[..., None]", *arguments: object) -> None:
        self.pipe, theirs = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=function, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.first_word: Any = self.pipe.recv()

    def kill(self) -> None:
        """End it, and wait for that; idempotent."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


class Group:
    """The workers of one way, one of which is killed at a time."""

    def __init__(self, way: str, size: int, port: int) -> None:
        self._way, self._size, self._port = way, size, port
        self._number = 0
        self._workers = [Process(_work, way, port) for _ in range(size)]
        self._round()

    def _round(self) -> list[Report]:
        for rank, worker in enumerate(self._workers):
            worker.pipe.send(Place(self._number, rank, self._size))
        self._number += 1
        return [worker.pipe.recv() for worker in self._workers]

    def take(self) -> Sample:
        """Kill the last worker, and wait until the others and a fork have reduced a tensor."""
        fork = Process(_work, self._way, self._port)
        threading.Event().wait(SETTLED_S)
        victim, self._workers[-1] = self._workers[-1], fork
        began_s = time.monotonic()
        victim.kill()
        reports = self._round()
        survivors = reports[:-1]
        return Sample(
            1e3 * (max(report.at_s for report in reports) - began_s),
            statistics.median(report.cpu_ms for report in survivors),
            {part: statistics.median(report.parts_ms[part] for report in survivors) for part in PARTS},
        )

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.kill()


@contextmanager
def groups(size: int) -> Iterator[Mapping[str, Group]]:
    """Run a group for each way that this torch has, each with a store of its own."""
    with ExitStack() as stack:
        made = {}
        for way in ways():
            store = Process(_serve)
            stack.callback(store.kill)
            made[way] = Group(way, size, store.first_word)
            stack.callback(made[way].close)
        yield made


def ways() -> Sequence[str]:
    """Return the ways that this torch has."""
    return (DESTROY, WAKE, RECONFIGURE) if hasattr(dist, "_reconfigure") else (DESTROY, WAKE)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reconfigure", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8], help="sizes of the groups (2 8)")
    parser.add_argument("--kills", type=int, default=25, help="kills for each size and way (25)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, ms, medians of {asked.kills} kills (lowest to highest)")
    if RECONFIGURE not in ways():
        print("this torch can't reconfigure a group; 2.15 can")
    print(f"{'':24}{'until all have reduced':>26}{'CPU of a survivor':>24}", *(f"{part:>8}" for part in PARTS), sep="")
    for size in asked.workers:
        with groups(size) as made:
            taken: dict[str, list[Sample]] = {way: [] for way in made}
            for _ in range(asked.kills):
                for way, group in made.items():
                    taken[way].append(group.take())
        for way, samples in taken.items():
            whole, cpu = [each.until_all_ms for each in samples], [each.cpu_ms for each in samples]
            parts = (statistics.median(each.parts_ms[part] for each in samples) for part in PARTS)
            print(
                f"{size} workers, {way:<13}{interval(whole):>26}{interval(cpu):>24}",
                *(f"{number(part):>8}" for part in parts),
                sep="",
            )


def interval(values: Sequence[float]) -> str:
    """Return the median of values, and the lowest and the highest of them."""
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


if __name__ == "__main__":
    main()
