"""File systems that do not answer: a pipe in a log file's place, and calls that don't return while a file is there."""

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

    def numbers(self):
        """Return the numbers of the whole lines that were read so far."""
        return [int(n) for n in re.findall(rb"^line +(\d+) x{4000}$", self.taken, re.M)]

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
    a.told("has not responded for 2 s")
    began_s = time.monotonic()
    wait_for(lambda: time.monotonic() - began_s > 3 * LEASE_S, what="three leases with a stalled disk")
    stalls.answers.set()
    a.told("responds again")
    redis_run.all_end(a, b)
    assert [line["pid"] for line in a.says()] == [pid], a.agent.err
    assert b.agent.err == "", b.agent.err
    assert len([line for line in a.agent.err.splitlines() if "logs are in" not in line]) == 2, a.agent.err
    count = int((redis_run.shared / f"lines-{pid}").read_text())
    wait_for(lambda: stalls.taken.endswith(b"\n") and len(stalls.numbers()) >= count, what=f"{count} lines")
    assert stalls.numbers() == list(range(count))


def test_a_stop_is_acted_upon_while_the_log_disk_is_stalled(elastic, script, stalls, tmp_path):
    chatty = script(CHATTER + "import signal\nsignal.pause()")
    run = elastic(
        *("--tee", "1", "--run-dir", stalls.run_dir, "--shutdown-timeout", "3", chatty),
        env={"TEST_SHARED": str(tmp_path)},
    )
    wait_for(lambda: stalls.taken, what="output")
    stalls.answers.clear()
    wait_for(lambda: "has not responded for 2 s" in run.err, what="a line about the disk")
    run.signal(signal.SIGTERM)
    wait_for(lambda: not run.survivors(), within_s=10, what="the workers' end")
    assert run.wait(30) == 128 + signal.SIGTERM
    lacks = rf"^elastic: '{stalls.run_dir}/attempt_0/0/stdout.log' lacks its last \d+ bytes: its file system does not"
    assert re.search(lacks, run.err, re.M), run.err


HELD_CALLS = """
import os, sys, time
if "elastic_core.run" in sys.orig_argv:
    place, mark = os.environ["STALLED_PLACE"], os.environ["STALLED_MARK"]
    real_stat = os.stat

    def held(path):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(place):
            while True:
                try:
                    real_stat(mark)
                except FileNotFoundError:
                    return
                time.sleep(0.01)

    EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.link", "os.scandir", "os.listdir", "os.rmdir")
    sys.addaudithook(lambda event, arguments: held(arguments[0]) if event in EVENTS else None)

    def wrapped(call):
        def call_held(path, *arguments, **more):
            held(path)
            return call(path, *arguments, **more)
        return call_held

    for name in ("stat", "lstat", "access", "statvfs"):
        setattr(os, name, wrapped(getattr(os, name)))
"""


@pytest.fixture
def held(tmp_path):
    """A place in which an agent's calls do not return while `held.mark` exists."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HELD_CALLS)
    place = tmp_path / "place"
    place.mkdir(mode=0o700)
    yield place
    mark_of(place).unlink(missing_ok=True)


def mark_of(held):
    return held.with_name("mark")


def environment(held):
    """What an agent must have for its calls to be held."""
    return {
        "PYTHONPATH": str(held.parent / "site"),
        "STALLED_PLACE": str(held),
        "STALLED_MARK": str(mark_of(held)),
    }


def options(held):
    return ("--run-dir", str(held / "run"), "--log-dir", str(held / "logs"), "--redirects", "3")


def test_a_failure_while_the_disk_of_all_files_is_stalled_does_not_cost_the_lease(redis_run, held):
    a = redis_run.node("a", "2", *options(held), "--max-restarts", "1", env=environment(held))
    b = redis_run.node("b", "2", "--max-restarts", "1")
    b.said(world=2)
    # The worker of `a` writes elsewhere. What follows is about a failure, not about a start.
    wait_for(lambda: len(list(redis_run.shared.glob("alive-*"))) == 2, what="the workers of both")
    mark_of(held).touch()
    redis_run.exit_rank(0, 0, 3)
    redis_run.exit_rank(1, 0, 3)
    a.told("has not responded for 2 s")
    began_s = time.monotonic()
    wait_for(lambda: time.monotonic() - began_s > 3 * LEASE_S, what="three leases with a stalled disk")
    mark_of(held).unlink()
    a.told("responds again")
    b.said(world=2, gen=1, restarts=1)
    redis_run.all_end(a, b)
    for node in (a, b):
        for word in ("lost", "cut off", "store unreachable"):
            assert word not in node.agent.err, node.agent.err


def test_a_stop_is_acted_upon_while_the_next_round_waits_for_its_directory(elastic, script, held):
    run = elastic(
        *options(held), "--max-restarts", "1", "--shutdown-timeout", "3",
        script("import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nsys.exit(3)"),
        str(mark_of(held)), env=environment(held),
    )  # fmt: skip
    wait_for(run.survivors, what="a worker")
    wait_for(lambda: (held / "run" / "status.json").exists(), what="a run that is under way")
    mark_of(held).touch()
    wait_for(lambda: "restart 1 of 1 now" in run.err, what="a restart")
    wait_for(lambda: "has not responded for 2 s" in run.err, what="a line about the disk")
    run.signal(signal.SIGTERM)
    assert run.wait(30) == 128 + signal.SIGTERM, run.err
