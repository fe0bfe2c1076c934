"""An agent without a run: it starts workers that may be kept, ends their rounds, and gives them places."""

import contextlib
import ctypes
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

from patience import patience
from support import wait_for

WAIT_S = 40.0
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_the_tests():
    """A worker leaves its end to the guard of its agent. There is none here, and the tests may be killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Worker:
    """One worker process, and what it has sent."""

    def __init__(self, process, local_rank, folder):
        self.process, self.local_rank, self.folder = process, local_rank, folder
        self.pid = process.pid
        self.connection = None
        self.messages = queue.Queue()
        self.seen = []

    def attach(self, connection):
        """Read the messages of its connection from now on."""
        self.connection = connection
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            with self.connection.makefile("rb") as lines:
                for line in lines:
                    self.messages.put(json.loads(line))
        except OSError:
            pass
        self.messages.put({"kind": "gone"})

    def expect(self, kind, **fields):
        """Return the next message of this kind; others before it are kept in `seen`."""
        while True:
            try:
                message = self.messages.get(timeout=patience(WAIT_S))
            except queue.Empty:
                raise AssertionError(
                    f"no {kind!r} came from {self.local_rank}, but {self.seen}: {self.output()}"
                ) from None
            self.seen.append(message)
            if message["kind"] == kind:
                assert fields.items() <= message.items(), message
                return message
            if message["kind"] == "gone":
                raise AssertionError(f"it ended before {kind!r}: {self.seen}: {self.output()}")

    def send(self, kind, descriptors=(), **fields):
        line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        if descriptors:
            sent = socket.send_fds(self.connection, [line], list(descriptors))
            line = line[sent:]
        if line:
            self.connection.sendall(line)

    def output(self):
        return "\n".join(
            f"{path.name}: {path.read_text()}" for path in sorted(self.folder.glob(f"{self.local_rank}.*"))
        )

    def lines(self, number, stream="out"):
        """Return what it has written in a round."""
        path = self.folder / f"{self.local_rank}.{number}.{stream}"
        return path.read_text().splitlines() if path.exists() else []


class FakeAgent:
    """Starts workers, ends rounds, and gives places. Each round has a port of its own."""

    def __init__(self, folder, *, timeout_s=None, environment=None):
        self.folder = Path(folder)
        self.path = str(self.folder / "warm.sock")
        self.timeout_s = patience(10) if timeout_s is None else timeout_s
        self.environment = environment or {}
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen(64)
        self.workers = {}
        self._all = []
        self._ports = []
        self.port = 0

    def variables(self, number, rank, size):
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "ELASTIC_ROUND": str(number),
            "TORCHELASTIC_ERROR_FILE": str(self.folder / f"error.{rank}.{number}.json"),
        }

    def new_port(self):
        """Hold another port, as an agent does, so that only a worker can use it."""
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        self._ports.append(held)
        self.port = held.getsockname()[1]

    def start(self, script, number, size, local_ranks=None, **environment):
        """Start new workers with these ranks, and wait until each has entered its function, unless they are others."""
        path = self.folder / "script.py"
        path.write_text(textwrap.dedent(script))
        started = []
        for rank in range(size) if local_ranks is None else local_ranks:
            streams = self._streams(rank, number)
            process = subprocess.Popen(
                [sys.executable, "-u", str(path)],
                env={
                    **os.environ,
                    **self.variables(number, rank, size),
                    "LOCAL_RANK": str(rank),
                    "OMP_NUM_THREADS": "1",
                    "TRAINING_WARM_SOCKET": self.path,
                    "TRAINING_WARM_TIMEOUT": str(self.timeout_s),
                    "TEST_FOLDER": str(self.folder),
                    **self.environment,
                    **environment,
                },
                stdout=streams[0],
                stderr=streams[1],
                start_new_session=True,
                preexec_fn=_end_with_the_tests,
            )
            self._close(streams)
            worker = self.workers[rank] = Worker(process, rank, self.folder)
            self._all.append(worker)
            started.append(worker)
        return started

    def accept(self, count):
        """Take the connections of so many workers."""
        self._server.settimeout(patience(WAIT_S))
        for _ in range(count):
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                raise AssertionError("\n".join(worker.output() for worker in self.workers.values())) from None
            pid = int.from_bytes(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder, signed=True
            )
            next(worker for worker in self.workers.values() if worker.pid == pid).attach(connection)

    def begin(self, script, size, *, local_ranks=None, **environment):
        """Start the first round, and return its workers once they have entered."""
        self.new_port()
        workers = self.start(script, 0, size, local_ranks, **environment)
        self.accept(len(workers))
        for worker in workers:
            worker.expect("hello", version=1, round=0)
            worker.expect("entered", round=0)
        return workers

    def leave(self, worker, number, *, within_s=None, planned=False):
        limit_s = patience(10) if within_s is None else within_s
        worker.send("leave", round=number, within_s=limit_s, planned=planned)

    def place(self, worker, number, rank, size, **variables):
        """Give a place with streams of its own."""
        streams = self._streams(worker.local_rank, number)
        worker.send(
            "place",
            streams,
            round=number,
            variables={**self.variables(number, rank, size), **variables},
            fds=["stdout", "stderr"],
        )
        self._close(streams)

    def _streams(self, local_rank, number):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return [os.open(self.folder / f"{local_rank}.{number}.{name}", flags, 0o600) for name in ("out", "err")]

    def _close(self, streams):
        for stream in streams:
            os.close(stream)

    def end(self, worker, signum=signal.SIGKILL):
        """End a worker and its session, and wait for that."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signum)
        worker.process.wait(patience(WAIT_S))

    def close(self):
        for worker in self._all:
            self.end(worker)
            if worker.connection is not None:
                worker.connection.close()
        for held in self._ports:
            held.close()
        self._server.close()


def marked(worker, number, mark, stream="out"):
    """Wait until a worker has printed a line in a round."""
    return wait_for(
        lambda: any(line.startswith(mark) for line in worker.lines(number, stream)) or None, within_s=WAIT_S, what=mark
    )
