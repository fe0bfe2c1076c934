"""A log file system that does not answer: a pipe in a log file's place, which takes nothing while nobody reads it."""

import fcntl
import os
import re
import signal
import threading
import time

import pytest

from chaos.multi_node import LEASE_S, WORKER
from support import wait_for

CHATTER = """
import itertools, os, pathlib, threading
def chatter():
    for number in itertools.count():
        os.write(1, b"line %6d " % number + b"x" * 4000 + b"\\n")
        (pathlib.Path(os.environ["TEST_SHARED"]) / f"lines-{os.getpid()}").write_text(str(number + 1))
        if (pathlib.Path(os.environ["TEST_SHARED"]) / "finish").exists():
            return
threading.Thread(target=chatter).start()
"""


class Stalls:
    """A named pipe that is read or not, as the test wants."""

    def __init__(self, path):
        path.parent.mkdir(mode=0o700, parents=True)
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, 4096)
        self.taken = b""
        self.answers, self._ended = threading.Event(), threading.Event()
        self.answers.set()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        while not self._ended.wait(0.005):
            if self.answers.is_set():
                try:
                    while chunk := os.read(self.fd, 1 << 20):
                        self.taken += chunk
                except BlockingIOError:
                    pass

    def close(self):
        self.answers.set()
        self._ended.set()
        self._thread.join()
        os.close(self.fd)


@pytest.fixture
def stalls(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o700)
    file = Stalls(run_dir / "attempt_0" / "0" / "stdout.log")
    file.run_dir = str(run_dir)
    yield file
    file.close()


def test_a_stalled_log_disk_costs_neither_the_lease_nor_a_line(redis_run, stalls):
    redis_run.script.write_text(CHATTER + WORKER)
    a = redis_run.node("a", "2", "--tee", "1", "--run-dir", stalls.run_dir)
    b = redis_run.node("b", "2", "--redirects", "1", "--log-dir", str(redis_run.logs))
    pid = a.said(world=2)["pid"]
    stalls.answers.clear()
    a.told("has not answered for 2 s")
    began_s = time.monotonic()
    wait_for(lambda: time.monotonic() - began_s > 3 * LEASE_S, what="three leases with a stalled disk")
    stalls.answers.set()
    a.told("answers again")
    redis_run.all_end(a, b)
    assert [line["pid"] for line in a.says()] == [pid], a.agent.err
    assert b.agent.err == "", b.agent.err
    assert len([line for line in a.agent.err.splitlines() if "logs are in" not in line]) == 2, a.agent.err
    count = int((redis_run.shared / f"lines-{pid}").read_text())
    wait_for(lambda: stalls.taken.endswith(b"\n"), what="the last line")
    assert [int(n) for n in re.findall(rb"^line +(\d+) x{4000}$", stalls.taken, re.M)] == list(range(count))


def test_a_stop_is_acted_upon_while_the_log_disk_is_stalled(elastic, script, stalls, tmp_path):
    chatty = script(CHATTER + "import signal\nsignal.pause()")
    run = elastic(
        *("--tee", "1", "--run-dir", stalls.run_dir, "--shutdown-timeout", "3", chatty),
        env={"TEST_SHARED": str(tmp_path)},
    )
    wait_for(lambda: stalls.taken, what="output")
    stalls.answers.clear()
    wait_for(lambda: "has not answered for 2 s" in run.err, what="a line about the disk")
    run.signal(signal.SIGTERM)
    wait_for(lambda: not run.survivors(), within_s=10, what="the workers' end")
    assert run.wait(30) == 128 + signal.SIGTERM
    lacks = rf"^elastic: '{stalls.run_dir}/attempt_0/0/stdout.log' lacks its last \d+ bytes: its file system does not"
    assert re.search(lacks, run.err, re.M), run.err
