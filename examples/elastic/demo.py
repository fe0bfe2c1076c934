#!/usr/bin/env python3
"""One training run through which nodes come and go: two join, one leaves, one is killed; checks that it learned.

The digits of `examples/digits` on up to three nodes, which are three agents on this machine, each with a loopback
address of its own. They meet through a private Valkey or Redis server:

    make demo-elastic          # or: demo.py [FOLDER], for the checkpoint

What the nodes print is shown behind their name. Every wait has a deadline; all that was started is ended, by pid.
"""

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elastic_core.api import ElasticError
from elastic_rdzv_redis.server import find_program

HERE = Path(__file__).resolve().parent
TRAIN = HERE.parent / "digits" / "train.py"
CHECKPOINT = "demo.pt"
FINISH = "finish"
EPOCHS = 24
DEADLINE_S = 150.0
"""For each wait. All of it takes half a minute on an idle machine; one start of torch may on a busy one."""

BEGIN = re.compile(r"^training from (?:nothing|epoch (\d+) of \S+): (\d+) ranks on \w+, failure restarts (\d+), ")
EPOCH = re.compile(r"^epoch (\d+)/")
ACCURACY = re.compile(r"^held-out accuracy: ([\d.]+)%")


class Failed(Exception):
    """The demo did not show what it is there to show."""


class Node:
    """An agent whose lines are shown behind its name, and put into a queue; None at their end."""

    def __init__(
        self, name: str, command: list[str], folder: Path, lines: "queue.Queue[tuple[Node, str | None]]"
    ) -> None:
        """Start it in a folder, for its run directory, too: a killed agent can't remove that."""
        self.name = name
        self.process = subprocess.Popen(
            command, cwd=folder, env=os.environ | {"XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._lines = lines
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            print(f"{self.name} | {line}", end="", flush=True)
            self._lines.put((self, line))
        self._lines.put((self, None))

    def ends(self) -> int:
        """Return its exit code."""
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"node {self.name} did not end within {DEADLINE_S:g} s") from None

    def power_off(self) -> None:
        """Kill the agent, its guard and its workers before any of them can do something about it."""
        everybody = [self.process.pid]
        for pid in everybody:  # grows: who is stopped starts nobody
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                everybody += children(pid)
        for pid in everybody:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Demo:
    """The run, from its first node to its verdict."""

    def __init__(self, port: int, folder: Path) -> None:
        """Start nothing yet; `port` is the server's, on this machine."""
        self._command = ["elastic", "run", "--rdzv-backend", "redis", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        self._command += ["--rdzv-id", "digits", "--rdzv-conf", "last_call_timeout=0.5"]
        self._command += ["--nnodes", "1:3", "--omp-threads", "1"]
        self._script = [str(TRAIN), "--device", "cpu", "--epochs", str(EPOCHS), "--checkpoint", CHECKPOINT]
        self._script += ["--batch-size", "32", "--epoch-s", "0.25", "--last-when", FINISH]
        self._folder = folder
        self._lines: queue.Queue[tuple[Node, str | None]] = queue.Queue()
        self._nodes: list[Node] = []
        self._epochs_done = 0
        self.changes: list[str] = []

    def play(self) -> float:
        """Let nodes come and go; return the held-out accuracy in percent."""
        a = self._join("a", "127.0.0.1", ranks=1)
        b = self._join("b", "127.0.0.2", ranks=2)
        c = self._join("c", "127.0.0.3", ranks=3)

        say("node b gets SIGTERM, to stop")
        b.process.send_signal(signal.SIGTERM)
        self._trains_on(ranks=2, change="b left")
        expect(b.ends(), 128 + signal.SIGTERM, "node b's exit code")

        say("node a, which has rank 0 and MASTER_ADDR, is killed: agent, guard and worker, with SIGKILL")
        a.power_off()
        self._trains_on(ranks=1, change="a was killed")

        say("nobody else will come or go: the last epoch may begin")
        (self._folder / FINISH).touch()
        accuracy = float(self._wait_for(ACCURACY, "the accuracy")[1])
        expect(c.ends(), 0, "node c's exit code")
        return accuracy

    def stop(self) -> None:
        """End whatever runs."""
        for node in self._nodes:
            if node.process.poll() is None:
                node.power_off()

    def _join(self, name: str, address: str, *, ranks: int) -> Node:
        options = ["--node-id", name, "--local-addr", address]
        command = [*self._command, *options, *self._script]
        say(f"the same line with {' '.join(options)}" if self._nodes else f"$ {' '.join(command)}")
        node = Node(name, command, self._folder, self._lines)
        self._nodes.append(node)
        self._trains_on(ranks=ranks, change=f"{name} joined" if ranks > 1 else "")
        return node

    def _trains_on(self, *, ranks: int, change: str) -> None:
        """Wait until so many ranks have gone on from the last checkpoint, and trained an epoch, if one may begin."""
        begin = self._wait_for(BEGIN, f"{ranks} ranks to train")
        expect(int(begin[2]), ranks, "the number of ranks")
        expect(int(begin[3]), 0, "TORCHELASTIC_RESTART_COUNT")
        epoch = int(begin[1] or 0)
        if change:
            # The epoch that was seen last is in the checkpoint; one more may be, that ended while its line was lost.
            if not self._epochs_done <= epoch <= self._epochs_done + 1:
                raise Failed(f"the run went on from epoch {epoch}, not from {self._epochs_done}")
            self.changes.append(change)
            say(f"{change}: {ranks} ranks go on from the checkpoint of epoch {epoch}")
        if epoch < EPOCHS - 1:  # on a slow machine all others may be over, and the last one waits for the demo's end
            self._wait_for(EPOCH, "an epoch")

    def _wait_for(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Return the match of the first line from now on that fits."""
        end_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                node, line = self._lines.get(timeout=max(0.0, end_s - time.monotonic()))
            except queue.Empty:
                raise Failed(f"waited {DEADLINE_S:g} s in vain for {what}") from None
            if line is None:
                code = node.process.wait()
                if code not in (0, 128 + signal.SIGTERM, -signal.SIGKILL):
                    raise Failed(f"node {node.name} ended with exit code {code}; {what} was waited for")
                continue
            if epoch := EPOCH.match(line):
                self._epochs_done = int(epoch[1])
            if found := pattern.match(line):
                return found


def children(pid: int) -> list[int]:
    """Return the processes that this one started, its threads' among them."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found


@contextmanager
def server() -> Iterator[int]:
    """Run a Valkey or Redis server that nobody else knows of; give its port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    command = [find_program(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", "/"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            if not any("Ready to accept connections" in line for line in process.stdout):
                raise Failed(f"{command[0]} did not start")
            yield port
        finally:
            process.kill()


def expect(got: int, wanted: int, what: str) -> None:
    """Fail unless both are the same."""
    if got != wanted:
        raise Failed(f"{what} is {got}, not {wanted}")


def say(text: str) -> None:
    """Print what the demo itself does."""
    print(f"demo: {text}", flush=True)


def main() -> int:
    """Return the exit code: 0, or 1 for a demo that failed."""
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    folder = Path(sys.argv[1] if sys.argv[1:] else HERE / "runs")
    folder.mkdir(mode=0o700, exist_ok=True)
    for left in (CHECKPOINT, FINISH):
        (folder / left).unlink(missing_ok=True)
    began_s = time.monotonic()
    try:
        with server() as port:
            demo = Demo(port, folder)
            try:
                accuracy = demo.play()
            finally:
                demo.stop()
        if accuracy <= 95:
            raise Failed(f"the held-out accuracy is {accuracy}%, not above 95%")
    except (Failed, ElasticError) as failure:
        print(f"demo FAILED: {failure}")
        return 1
    print(
        f"demo passed in {time.monotonic() - began_s:.0f} s: {', '.join(demo.changes)}; {len(demo.changes)} membership "
        f"changes, TORCHELASTIC_RESTART_COUNT stayed 0, held-out accuracy {accuracy}%"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
