"""One worker process: its start, its watch and its end; and the count of out-of-memory kills."""

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from elastic_core.errors import WorkerError
from elastic_core.logger import Logger
from elastic_core.processes.output.disk import Disk, Lane
from elastic_core.processes.output.log_file import LogFile, QueuedLog
from elastic_core.processes.output.sink import Sink
from elastic_core.processes.spec import ROUND_VARIABLES, StreamPlan, WorkerLaunch
from elastic_core.starters import StartedProcess, WorkerStart, WorkerStarter
from elastic_core.system.clock import SYSTEM_CLOCK
from elastic_core.system.reactor import Reactor

if TYPE_CHECKING:
    from elastic_core.processes.output.tee import Tee

STATUS_LOST = 1
"""The code of a worker whose exit status other code in this process has read."""

_HINTS = {
    errno.ENOENT: "check the program's name and PATH (or the interpreter in the script's first line)",
    errno.EACCES: "make the program executable",
    errno.ENOEXEC: "give the script a first line like #!/bin/sh, or name its interpreter",
    errno.E2BIG: "pass fewer or shorter arguments, or a smaller environment",
    errno.EAGAIN: "raise the limit on processes (ulimit -u, or pids.max of the cgroup)",
    errno.ENOMEM: "free some memory, or start fewer workers",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit on open files (fs.file-max)",
}


class WorkerProcess:
    """A started worker, with what is needed to watch, signal and reap it."""

    def __init__(
        self,
        launch: WorkerLaunch,
        process: StartedProcess,
        tees: "list[Tee]",
        started_s: float,
        starter: WorkerStarter | None = None,
    ) -> None:
        # `starter` has started the process; `None` means the group itself.
        self.launch = launch
        self.process = process
        self.pid = process.pid
        self.tees = tees
        self.started_s = started_s
        self.pidfd: int | None = None
        self.stop_signal: int | None = None
        self.stop_sent_ns: int | None = None
        self.raised_s: float | None = None
        """When its uncaught exception was recorded, on the reactor's clock."""
        self.given_up = False
        self.code: int | None = None
        """Its exit code, -N for death by signal N. `None` if it was not reaped."""
        self._reap = process.reap
        self._starters = () if starter is None else (starter,)  # those that have started or kept the process

    def follow(self, earlier: "WorkerProcess") -> None:
        """Note that the process was a worker of an earlier round."""
        self._starters = tuple(dict.fromkeys((*earlier._starters, *self._starters)))

    @property
    def leads_group(self) -> bool:
        """Whether the worker has a session and process group of its own."""
        return not self.launch.foreground

    @property
    def ended(self) -> bool:
        """Whether it was reaped."""
        return self.code is not None

    @property
    def signals_end(self) -> bool:
        """Whether its end causes a SIGCHLD: not if it is no child of this process."""
        return self._reap is None

    def watch(self, reactor: Reactor, callback: Callable[[], None]) -> bool:
        """Call back when the process ends; False if there is no pidfd, so that SIGCHLD is needed."""
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not built in; ENOSYS, EPERM in sandboxes, EMFILE
            return False
        reactor.add_reader(self.pidfd, callback)
        return True

    def unwatch(self, reactor: Reactor) -> None:
        """Close the pidfd; idempotent."""
        if self.pidfd is not None:
            reactor.remove_reader(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = None

    def reap(self) -> int | None:
        """Return the exit code, -N for death by signal N, or `None` while it runs. Never blocks."""
        if self.code is not None:
            return self.code
        if self._reap is not None:
            self.code = self._reap()
        else:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # An embedding program has waited for any child, and taken this one's status.
                self.code = STATUS_LOST
            else:
                self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def note_stop(self, signum: int) -> None:
        """Record a signal that stops the worker; only the first counts."""
        # SIGKILL after the grace period belongs to the same stop.
        if self.stop_signal is None:
            self.stop_signal, self.stop_sent_ns = signum, SYSTEM_CLOCK.wall_ns()

    def send(self, signum: int) -> None:
        """Signal the process alone. It is not reaped, so its pid cannot be reused."""
        if not self.ended:
            os.kill(self.pid, signum)

    def send_group(self, signum: int) -> None:
        """Signal its whole process group, if the leader is not reaped."""
        os.killpg(self.pid, signum)

    def has_remnants(self) -> bool:
        """Return whether its process group still has members. Called: directly after it was reaped."""
        return self.leads_group and remnants_exist(self.pid)

    @property
    def lanes(self) -> list[Lane]:
        """The lanes that write its output to files, if it passes through the agent."""
        return [lane for tee in self.tees for lane in tee.lanes]

    @property
    def streams(self) -> bool:
        """Whether a process can still write to a pipe of the agent."""
        return any(tee.open for tee in self.tees)

    def drain(self) -> None:
        """Read the rest of its streams after it has ended."""
        for tee in self.tees:
            tee.drain()
        for starter in self._starters:
            starter.worker_ended(self.pid)

    def finish(self) -> None:
        """Read the rest of its streams, and close them."""
        for tee in self.tees:
            tee.finish()

    def disown(self) -> None:
        """Give up a process that cannot be reaped."""
        if self.code is None:
            self.code = -signal.SIGKILL


def remnants_exist(pgid: int) -> bool:
    """Return whether the process group of a reaped leader has members.

    While it has some, the kernel gives its number to no new process. So if a process has that number, the group has
    ended, and the process is unrelated.
    """
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        os.kill(pgid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def spawn(
    launch: WorkerLaunch,
    *,
    reactor: Reactor,
    sinks: tuple[Sink, Sink],
    disk: Disk,
    log: Logger,
    starters: Sequence[WorkerStarter] = (),
) -> WorkerProcess:
    """Start one worker by one of `starters`, or else directly. A function is always started by a starter.

    The worker leads its own session and process group, unless it keeps the terminal. Its stdin is ours, as under
    torchrun: in its own session, a worker can read a terminal without being stopped, so a debugger works in a single
    worker.

    Raises:
        WorkerError: It could not be started. The message has the program and the reason.
    """
    tees: list[Tee] = []
    started_s = reactor.now_s()  # not later: on a busy node the worker may fail before this process has its next turn
    with ExitStack() as ours, ExitStack() as childs:
        try:
            out, out_ends = _open_stream(launch.stdout, disk, ours, childs, log)
            err, err_ends = _open_stream(launch.stderr, disk, ours, childs, log)
            process, starter = _start(launch, out, err, starters)
        except (OSError, ValueError) as error:
            raise _spawn_error(launch, error) from error
        ours.pop_all()
        for plan, sink, ends in ((launch.stdout, sinks[0], out_ends), (launch.stderr, sinks[1], err_ends)):
            if ends is not None:
                tees.append(_tee(plan, ends, sink, reactor, disk))
    return WorkerProcess(launch, process, tees, started_s, starter)


def _start(
    launch: WorkerLaunch, out: int | None, err: int | None, starters: Sequence[WorkerStarter]
) -> tuple[StartedProcess, WorkerStarter | None]:
    if starters:
        wanted = WorkerStart(
            local_rank=launch.local_rank,
            global_rank=launch.global_rank,
            argv=launch.argv,
            environment=launch.env,
            round_variables=ROUND_VARIABLES,
            processors=launch.cpus,
            stdout=out,
            stderr=err,
            terminal=launch.foreground,
        )
        for starter in starters:
            started = starter.start(wanted)
            if started is not None:
                return started, starter
    if launch.function:
        raise WorkerError(f"function {launch.function!r}: no starter is installed", hint="elastic-torchrun")
    with bound_to(launch.cpus):
        # The child is made by vfork, so no code may run in it before exec: no preexec_fn.
        process = subprocess.Popen(
            launch.argv,
            env=launch.env,
            stdout=out,
            stderr=err,
            start_new_session=not launch.foreground,
        )
    process.returncode = 0  # the group reaps it; Popen must neither wait nor warn
    return StartedProcess(pid=process.pid), None


class _Ends(NamedTuple):
    # The agent's part of a stream that passes through it.
    read_fd: int
    file: LogFile | None
    filtered: LogFile | None


def _open_stream(
    plan: StreamPlan, disk: Disk, ours: ExitStack, childs: ExitStack, log: Logger
) -> tuple[int | None, _Ends | None]:
    # The child's descriptor (None: our own stream), and the ends of a tee, if there is one.
    if plan.through_agent:
        # Imported at the first start, before a worker could be lost by a failure: few runs need it.
        from elastic_core.processes.output.tee import open_pipe

        read_fd, write_fd = open_pipe()
        childs.callback(os.close, write_fd)
        ours.callback(os.close, read_fd)
        return write_fd, _open_ends(plan, read_fd, disk, ours, log)
    if plan.file is None and plan.inherit:
        return None, None
    fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC) if plan.file is None else disk.take(plan.file)
    childs.callback(os.close, fd)
    return fd, None


def _open_ends(plan: StreamPlan, read_fd: int, disk: Disk, ours: ExitStack, log: Logger) -> _Ends:
    file, filtered = None, None
    if plan.file is not None:
        fd = disk.take(plan.file)
        file = LogFile(plan.file, log=log, max_bytes=plan.max_bytes, backups=plan.backups, fd=fd)
        ours.callback(file.close)
    if plan.filters and plan.filtered_file is not None:
        filtered = LogFile(plan.filtered_file, log=log)
        ours.callback(filtered.close)
    return _Ends(read_fd, file, filtered)


def _tee(plan: StreamPlan, ends: _Ends, sink: Sink, reactor: Reactor, disk: Disk) -> "Tee":
    from elastic_core.processes.output.tee import Tee

    filtered, line_filter = None, None
    if ends.filtered is not None:
        from elastic_core.processes.output.lines import LineFilter

        filtered = QueuedLog(ends.filtered, disk)
        line_filter = LineFilter(plan.filters, prefix=plan.prefix, file=filtered)
    return Tee(
        reactor,
        read_fd=ends.read_fd,
        file=None if ends.file is None else QueuedLog(ends.file, disk),
        sink=sink if plan.console else None,
        prefix=plan.prefix,
        line_filter=line_filter,
        filtered=filtered,
    )


def _spawn_error(launch: WorkerLaunch, error: OSError | ValueError) -> WorkerError:
    program = launch.argv[0] if launch.argv else ""
    what = f"function {launch.function!r}" if launch.function else repr(program)
    where = f"worker with local rank {launch.local_rank}: can't start {what}"
    if isinstance(error, ValueError):  # an embedded null byte
        return WorkerError(f"{where}: {error}", hint="remove null bytes from arguments and environment")
    number = error.errno or 0
    if not number:  # an error of our own server
        return WorkerError(f"{where}: {error}")
    reason = f"{errno.errorcode.get(number, str(number))}: {os.strerror(number)}"
    hint = _HINTS.get(number, "")
    files = {file for plan in (launch.stdout, launch.stderr) for file in (plan.file, plan.filtered_file)}
    if error.filename in files - {None}:  # other files are ours, such as an import without a free descriptor
        where = f"worker with local rank {launch.local_rank}: can't open log file {error.filename!r}"
        if number not in (errno.EMFILE, errno.ENFILE):
            hint = "another --log-dir, with room and write permission"
    return WorkerError(f"{where}: {reason}", hint=hint)


@contextmanager
def bound_to(cpus: frozenset[int] | None) -> Iterator[None]:
    """Bind this thread meanwhile; processes that it starts inherit this from their first instruction. `None`: no-op."""
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


_PROC_CGROUP = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


class OomCounter:
    """Counts out-of-memory kills since it was built. 0 if the kernel does not report them."""

    def __init__(self, *, proc_cgroup: Path = _PROC_CGROUP, cgroup_root: Path = _CGROUP_ROOT) -> None:
        self._file = _events_file(proc_cgroup, cgroup_root)
        self._before = self._total()

    def kills(self) -> int:
        """Return how many processes of this cgroup and those below it were killed for memory since then."""
        return max(0, self._total() - self._before)

    def _total(self) -> int:
        try:
            text = self._file.read_text() if self._file is not None else ""
        except OSError:
            return 0
        for line in text.splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
        return 0


def _events_file(proc_cgroup: Path, root: Path) -> Path | None:
    try:
        lines = proc_cgroup.read_text().splitlines()
    except OSError:
        return None
    # Version 1 first: if both are mounted, its memory controller counts.
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _first_existing(root / "memory", path, "memory.oom_control")
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            return _first_existing(root, path, "memory.events")
    return None


def _first_existing(mount: Path, path: str, name: str) -> Path | None:
    # In a container without a cgroup namespace, the path is the host's, and the mount has ours at its root.
    for candidate in (mount / path.lstrip("/") / name, mount / name):
        if candidate.exists():
            return candidate
    return None
