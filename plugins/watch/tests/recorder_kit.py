"""Workers with gloo that hang where a test wants, and the collector of their snapshots."""

import os
import subprocess
import sys
import threading
from contextlib import suppress

from elastic_core.api import RunningWorker
from elastic_plugin_kit.fake_run import FakeRun
from elastic_watch.beat_file import BeatFiles
from elastic_watch.beat_layout import FILE_VARIABLE
from elastic_watch.hook import STARTUP
from elastic_watch.recorder.collector import SnapshotCollector
from elastic_watch.stacks import StackCollector
from support import wait_for
from truth.forked import Forks

WITHOUT_GROUP = """
import os, sys, threading, time
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
ones = torch.ones(10)

def begin():
    dist.init_process_group("gloo", init_method="file://" + os.environ["GROUP_FILE"], rank=rank,
                            world_size=int(os.environ["WORLD_SIZE"]))

def hang():
    print("hangs", flush=True)
    time.sleep(600)
"""
PREAMBLE = WITHOUT_GROUP + "begin()\n"


class Forked:
    """A fork of the interpreter that has imported torch, as if it were a `subprocess.Popen`."""

    def __init__(self, forks, path, environment):
        (given, self.stdin), (self.stdout, out), (self.stderr, err) = (_pipe() for _ in range(3))
        self._forks, self.returncode = forks, None
        self.pid = forks.start([path], environment, [each.fileno() for each in (given, out, err)])
        for each in (given, out, err):
            each.close()

    def poll(self):
        if self.returncode is None:
            self.returncode = self._forks.reap(self.pid)
        return self.returncode

    def wait(self, timeout=60):
        wait_for(lambda: self.poll() is not None, within_s=timeout)
        return self.returncode

    def send_signal(self, signum):
        os.kill(self.pid, signum)

    def communicate(self):
        self.wait()
        for each in (self.stdin, self.stdout, self.stderr):
            with suppress(OSError):
                each.close()


def _pipe():
    reader, writer = os.pipe()
    return os.fdopen(reader), os.fdopen(writer, "w")


class Workers:
    """Processes with the recorder as `elastic run` starts them, and the agent's end.

    They are forks of the interpreter at the address `forks`, or else interpreters of their own.
    """

    def __init__(self, folder, text, *, count=2, base_rank=0, environment=None, hidden=FILE_VARIABLE, forks=""):
        self.files, self.closed = BeatFiles(), threading.Event()
        self.run = FakeRun()
        self.collector = SnapshotCollector(self.run, self.files, closed=self.closed)
        self.folder = folder / "recorder" / "round_0"
        self.processes = {}
        self._forks = Forks(forks) if forks else None
        script = folder / "script.py"
        script.write_text(text)
        for rank, path in self.files.renew(count, str(self.folder)).items():
            variables = {
                hidden: path, "ELASTIC_ROUND": "0", "ELASTIC_WORKER_HOOKS": "1",
                "ELASTIC_STARTUP": ",".join(STARTUP), "RANK": str(base_rank + rank), "WORLD_SIZE": str(count),
                "GROUP_FILE": str(folder / "group"), "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            variables = {**os.environ, **variables, **(environment or {})}
            self.processes[rank] = (
                subprocess.Popen(
                    [sys.executable, str(script)],
                    env=variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    text=True,
                )
                if self._forks is None
                else Forked(self._forks, str(script), variables)
            )
        self.run.running = tuple(
            RunningWorker(local_rank=rank, global_rank=base_rank + rank, pid=process.pid)
            for rank, process in self.processes.items()
        )

    def line(self, rank=0):
        """The next line that a worker prints."""
        return self.processes[rank].stdout.readline().strip()

    def go_on(self):
        """Send each worker a line."""
        for process in self.processes.values():
            process.stdin.write("\n")
            process.stdin.flush()

    def take(self, ready=None, **arguments):
        """Snapshots of the workers, of all of them, and as the test needs them."""

        def look():
            taken = self.collector.take(**arguments)
            complete = len(taken) == len(self.processes)
            return taken if complete and (ready is None or ready(taken)) else None

        return wait_for(look, within_s=60, what="snapshots")

    def close(self):
        self.closed.set()
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)  # its children, too
            process.communicate()
        if self._forks is not None:
            self._forks.close()
        self.files.close()


def only_worker(folder, before=""):
    """Yield a function that starts one worker with a script, after the code `before`, until it prints `ready`."""
    made = []

    def start(text):
        made.append(Workers(folder, before + text, count=1))
        assert made[0].line() == "ready"
        return made[0]

    yield start
    for each in made:
        each.close()


def group(snapshot, name="0"):
    """One group's state, by its description or name."""
    (found,) = (each for each in snapshot.groups if name in (each.group, each.description))
    return found


BUSY = """
import json, threading

def deep(n):
    return n if n == 0 else deep(n - 1)

def work():
    while True:
        json.dumps({"a": [1, 2, 3] * 5}); deep(30); sorted(map(str, range(30)), key=lambda v: v)

def busy(count):
    for _ in range(count):
        threading.Thread(target=work, daemon=True).start()
"""
"""Functions for a worker with threads that run Python code all the time."""

HOLDS_LOCK = """
import ctypes

def hold():
    mutex = ctypes.create_string_buffer(64)
    while True:
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # the second call never returns
"""
"""A function that holds the interpreter's lock in a call that no signal ends."""


def in_hold(stack):
    """Whether a stack was written by the signal, of a thread that holds the lock and is not just on its way there."""
    names = [frame[2] for frame in stack.frames]
    return stack.text.startswith("Stack (most recent call first):\n") and names == ["<module>", "hold"]


def stacks_of(node, count=1):
    """The stacks of the only worker, taken as often as that. Each response is checked to be of a worker that lives."""
    collector = StackCollector(node.run, node.files, closed=node.closed)
    found = [collector.take().get(0) for _ in range(count)]
    assert node.processes[0].poll() is None
    return found
