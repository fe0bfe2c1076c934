"""A worker group with real processes, a loop to run it, and a console made of files or pipes."""

import ctypes
import os
import secrets
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from elastic_core.processes.group import WorkerGroup
from elastic_core.processes.output.disk import STALL_S, Disk
from elastic_core.processes.output.sink import Console
from elastic_core.processes.spec import ROUND_VARIABLES, StreamPlan, WorkerLaunch
from elastic_core.processes.sweep import Sweeper
from elastic_core.starters import ReactorLoop, WorkerStart
from elastic_core.system.reactor import Reactor
from patience import Deadline
from support import Lines, wait_for

PR_SET_CHILD_SUBREAPER = 36
DEADLINE_S = 30.0


def set_subreaper(on):
    assert ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) == 0


def open_fds():
    """Return this process's descriptors, but for the files of `/proc` that a sweep of ours may still be reading."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # what listed them
            if not os.readlink(f"/proc/self/fd/{name}").startswith("/proc/"):
                found.append(name)
    return sorted(found)


def all_closed_since(before):
    """Wait until nothing is open that was not; a thread of an earlier test may have opened something for a moment."""
    wait_for(lambda: set(open_fds()) <= set(before), within_s=5, what=f"{before} and no more to be open")


def start_of(launch, *, stdout=None, stderr=None):
    """What starters are given for a launch."""
    return WorkerStart(
        local_rank=launch.local_rank,
        global_rank=launch.global_rank,
        argv=launch.argv,
        environment=launch.env,
        round_variables=ROUND_VARIABLES,
        processors=launch.cpus,
        stdout=stdout,
        stderr=stderr,
        terminal=launch.foreground,
    )


class GroupKit:
    """One group, of programs or of a function.

    `console` is a pair of descriptors; without, what would go there goes to files.
    """

    def __init__(
        self, folder, *, subreaper=False, console=None, stall_s=5.0, disk_stall_s=STALL_S, spared=tuple, call=None,
        starters=(),
    ):  # fmt: skip
        self.folder = folder
        self.call = call
        self.functions = None if call is None else call.begin()
        self.incarnation = secrets.token_hex(8)
        self.reactor = Reactor()
        self.own_fds = []
        if console is None:
            console = tuple(
                os.open(folder / f"console.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("out", "err")
            )
            self.own_fds = list(console)
        self.console = Console(self.reactor, stdout_fd=console[0], stderr_fd=console[1], stall_s=stall_s)
        self.exits = []
        self.stopped = 0
        self.notices = Lines()
        self.disk = Disk(self.reactor, log=self.notices, stall_s=disk_stall_s)
        loop = ReactorLoop(self.reactor, log=self.notices)
        self.calls = None if self.functions is None else self.functions.on(loop)
        self.group = WorkerGroup(
            self.reactor,
            console=self.console,
            sweeper=Sweeper(
                self.incarnation,
                subreaper=subreaper,
                strangers=False,
                spared=lambda: {
                    *spared(),
                    *(() if self.calls is None else self.calls.pids()),
                    *(pid for starter in starters for pid in starter.pids()),
                },
            ),
            log=self.notices,
            starters=starters if self.calls is None else (self.calls,),
            disk=self.disk,
        )
        self.group.attach(on_exit=self.exits.append, on_stopped=self._on_stopped)

    def _on_stopped(self):
        self.stopped += 1

    def launch(self, code, rank=0, *, stdout=None, stderr=None, argv=None, **more):
        """A worker that runs `code`; its streams go to files unless said otherwise."""
        env = dict(os.environ, ELASTIC_INCARNATION=self.incarnation, FOLDER=str(self.folder), RANK=str(rank))
        return WorkerLaunch(
            local_rank=rank,
            global_rank=rank + 100,
            argv=argv or (sys.executable, "-I", "-S", "-u", "-c", code),
            env=env,
            stdout=stdout or StreamPlan(file=self.log(rank, "out"), inherit=False),
            stderr=stderr or StreamPlan(file=self.log(rank, "err"), inherit=False),
            **more,
        )

    @property
    def return_values(self):
        """What those that ended well have returned, by local rank."""
        return {exit.local_rank: self.calls.value(exit.local_rank) for exit in self.exits if exit.code == 0}

    def log(self, rank, name="out"):
        return str(self.folder / f"{rank}.{name}")

    def said(self, rank=0, name="out"):
        path = Path(self.log(rank, name))
        return path.read_text() if path.exists() else ""

    def start(self, *codes):
        self.group.start([self.launch(code, rank) for rank, code in enumerate(codes)])

    def start_calls(self, count=1, **more):
        """Start workers that call the function."""
        self.group.start([self.call_launch(rank, **more) for rank in range(count)])

    def call_launch(self, rank=0, **more):
        """A worker that calls the function."""
        launch = self.launch("", rank, argv=(sys.executable, self.call.name), **more)
        return msgspec.structs.replace(launch, function=self.call.name)

    def run_until(self, condition, *, within_s=DEADLINE_S):
        """Turn the loop until the condition holds; return how long it took."""
        began_s, end = time.monotonic(), Deadline(within_s)
        while not condition():
            assert not end.passed(), f"not within {within_s} s; exits so far: {self.exits}"
            self.reactor.turn(0.02)
        return time.monotonic() - began_s

    def run_until_exits(self, count, **more):
        return self.run_until(lambda: len(self.exits) >= count, **more)

    def run_until_said(self, text, rank=0, **more):
        return self.run_until(lambda: text in self.said(rank), **more)

    def stop(self, signum=15, *, grace_s=10.0, within_s=DEADLINE_S, **more):
        """Stop, run to the end of the stop; return how long it took."""
        before, began_s = self.stopped, time.monotonic()
        self.group.stop(signum, grace_s=grace_s, **more)
        self.run_until(lambda: self.stopped > before, within_s=within_s)
        return time.monotonic() - began_s

    def pid_in(self, name):
        """Wait for a file in which a worker wrote a pid; return the pid."""
        path = self.folder / name
        self.run_until(lambda: path.exists() and path.read_text().endswith("\n"))
        return int(path.read_text())

    def close(self):
        self.group.close()
        self.disk.close()
        if self.functions is not None:
            self.calls.close()
            self.functions.close()
        self.console.close()
        self.reactor.close()
        for fd in self.own_fds:
            os.close(fd)
