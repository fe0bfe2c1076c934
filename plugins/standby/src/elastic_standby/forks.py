"""The agent's side of the server that forks workers: one interpreter per node, which has imported slow modules."""

import os
import resource  # imported now: later no descriptor may be free
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from elastic_core.api import RunTimer
from elastic_core.api.starters import AgentLoop, StartedProcess, WorkerStart, WorkerStarter, fault_of_variable
from elastic_standby.orders import command_for, send_orders, working_folder

READY_S: Final = 120.0
"""How long the workers' start waits for the imports and the forks."""
MAX_DEATHS: Final = 3
"""The number of servers that may end by themselves without a fork between them; after more, none is started."""
_END_WAIT_S: Final = 0.2
_LIMITS: Final = 16
"""How many resource limits the kernel has; Python has no names for some."""
_MESSAGE_BYTES: Final = 4096
_MAX_BATCH: Final = 100  # as in `spare`, which the agent never imports, and so are the next
_READY: Final = b"ready"
_COUNTED: Final = b"counted"
_FAILED: Final = b"failed "
_FORKED: Final = b"forked"
_ADOPTED: Final = b"adopted"
_THREADS: Final = "OMP_NUM_THREADS"
_STARTUP: Final = "ELASTIC_STARTUP"
"""The variable of a worker that names what runs before its script, for hooks of the agent: `module:function`, …"""
_READ_LATE: Final = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "LAST_ROUND_FILE",
    "NCCL_",
    "TORCHELASTIC_",
    "TORCH_FR_",
    "TORCH_NCCL_",
    "TORCH_WORKER_SERVER_SOCKET",
    "TRAINING_",
)
"""Variables, or their beginnings, that are read when a device or a process group is first used."""


def is_read_late(name: str) -> bool:
    """Return whether no library reads a variable at its import, so that it may differ between workers."""
    return bool(fault_of_variable(name, "")) or name.startswith(_READ_LATE)


class ForkServer(WorkerStarter):
    """Starts workers as forks of one interpreter that has imported what they import. Starts it at once.

    A fork is used if a fresh interpreter would have done its imports with the same command, directory, and variables.
    Otherwise a line says what differs, and the worker is left to the next starter. So are all if the interpreter
    reports that forks would not be like fresh interpreters.

    Forks for the next round are made as soon as the workers of a round have started, so that a restart need not wait
    for them. The interpreter imports before what the functions of hooks need that have run in workers before their
    scripts, if the hook's package has a module `ahead` for that.

    Args:
        loop: The agent's.
        command: The workers' command, as in `HookSettings`.
        environment: Their variables, as there.
        marks: The variables by which this agent's processes are found. They must not differ between workers.
        imports: The modules to import.
        ahead: Whether to make forks for a next round. If there is none, they only cost memory.
    """

    def __init__(
        self,
        loop: AgentLoop,
        *,
        command: Sequence[str],
        environment: Mapping[str, str],
        marks: Mapping[str, str],
        imports: Sequence[str],
        ahead: bool = True,
    ) -> None:
        self._loop = loop
        self._ahead = ahead
        self._command = tuple(command)
        self._environment = {name: value for name, value in environment.items() if not fault_of_variable(name, value)}
        self._folder = working_folder()
        self._processors = os.sched_getaffinity(0)
        self._marks = dict(marks)
        self._imports = tuple(imports)
        self._deaths = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = self._counted = False
        self._count = 0
        """How many processes are to wait."""
        self._done: Callable[[], None] | None = None
        self._limit: RunTimer | None = None
        self._batch: list[socket.socket] = []
        """The agent's ends of the sockets of processes that are being forked."""
        self._forking = False
        self._waiting: dict[int, socket.socket] = {}
        """Forked processes that wait for their orders, each with its socket."""
        self._packages: dict[str, None] = {}
        """Those of the functions that have run in workers before their scripts, each once."""
        self._differences: set[str] = set()
        self._forked_any, self._refused_count = False, 0
        self._begin()

    def _begin(self) -> None:
        try:
            self._start_server()
        except (OSError, ValueError) as error:
            self._give_up(f"can't start the interpreter that forks them: {error}")

    def _start_server(self) -> None:
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._server = subprocess.Popen(
                command_for(self._command, its.fileno(), self._imports, "--fork"),
                env={**self._environment, **self._marks},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                start_new_session=True,
            )
        self._control.setblocking(False)
        self._loop.add_reader(self._control.fileno(), self._on_message)

    @property
    def waiting_count(self) -> int:
        """The number of forked processes that wait for their orders."""
        return len(self._waiting)

    def pids(self) -> frozenset[int]:
        """Return the server and the processes that wait: sweeps must spare them, and only this object reaps them."""
        return frozenset(self._waiting) | ({self._server.pid} if self._server is not None else set())

    # --- before a round

    def prepare(self, count: int, done: Callable[[], None]) -> None:
        """Have so many processes forked once the imports are done, then call `done`. Workers wait `READY_S` at most."""
        self._count, self._done = count, done
        self._forked_any, self._refused_count = False, 0
        self._cancel_limit()
        self._limit = self._loop.call_later(READY_S, self._on_limit)
        self._drop_ended()
        self._go_on()

    def _drop_ended(self) -> None:
        """Forget processes that have ended while they waited: they may have waited for days."""
        if self._forking:  # the last ones are not this process's children yet
            return
        for pid in [pid for pid in self._waiting if _has_ended(pid)]:
            self._waiting.pop(pid).close()
            _reap(pid, 0.0)

    def _go_on(self) -> None:
        missing = self._count - len(self._waiting)
        if self._control is not None and (not self._ready or self._forking):
            return
        if self._control is None or missing <= 0 or not self._request(min(missing, _MAX_BATCH)):
            self._call_done()

    def _request(self, count: int) -> bool:
        theirs: list[socket.socket] = []
        try:
            for _ in range(count):
                own, its = socket.socketpair()
                theirs.append(its)
                self._batch.append(own)
            assert self._control is not None
            wanted = os.fsencode(",".join(("f", *self._packages)))
            socket.send_fds(self._control, [wanted], [its.fileno() for its in theirs])
        except OSError:  # no descriptor is left, or the server has ended, which is noticed next
            self._drop_batch()
        for its in theirs:
            its.close()
        self._forking = bool(self._batch)
        return self._forking

    def _drop_batch(self) -> None:
        for own in self._batch:
            own.close()
        self._batch.clear()

    def _on_limit(self) -> None:
        self._loop.notice(
            f"the interpreter that workers are forked from is not ready after {READY_S:g} s (--standby-imports); these "
            "workers are started by exec"
        )
        self._call_done()

    def _call_done(self) -> None:
        self._cancel_limit()
        done, self._done = self._done, None
        if done is not None:
            done()

    def _cancel_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _on_message(self) -> None:
        assert self._control is not None
        try:
            message = self._control.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message in (_READY, _COUNTED):
            self._ready, self._counted = True, message == _COUNTED
        elif message.startswith(_FORKED):
            self._adopt([int(word) for word in message.split()[1:]])
        elif message == _ADOPTED:
            self._forking = False
            self._deaths = 0
            if self._batch:  # the system refused more processes, and would again
                self._count = len(self._waiting)
            self._drop_batch()
            self._check_parent()
        elif message.startswith(_FAILED):
            self._give_up(message.removeprefix(_FAILED).decode("utf-8", "replace"))
        else:
            self._on_death()
        self._go_on()

    def _adopt(self, pids: Sequence[int]) -> None:
        assert self._control is not None
        self._waiting.update(zip(pids, self._batch, strict=False))
        del self._batch[: len(pids)]
        with suppress(OSError):
            self._control.send(b"k")

    def _check_parent(self) -> None:
        try:
            for pid in self._waiting:
                _has_ended(pid)
        except ChildProcessError:
            self._give_up("this process can't be the parent of orphans (a sandbox)")

    def _on_death(self) -> None:
        """Start another server, unless several have ended by themselves. The guard, for example, ends all processes."""
        code = self.close_server(_END_WAIT_S)
        self._deaths += 1
        if self._deaths < MAX_DEATHS:
            self._begin()
            return
        how = "its socket is closed" if code is None else f"exit code {code}" if code >= 0 else f"signal {-code}"
        self._give_up(f"{self._deaths} interpreters that fork them have ended, the last one with {how}")

    def _give_up(self, reason: str) -> None:
        self.close_server(_END_WAIT_S)
        self._loop.notice(f"workers are not forked (--standby): {reason}; they are started by exec")

    # --- a round

    def difference(self, worker: WorkerStart) -> str:
        """Return why a fork would differ from this worker freshly started; empty if it would not."""
        if worker.argv[:2] != self._command[:2] or _program(worker.argv) != _program(self._command):
            return "its command"
        if self._folder != working_folder():
            return "the working directory"
        names = {*worker.environment, *self._environment} - worker.round_variables
        changed = sorted(
            name
            for name in names
            if worker.environment.get(name) != self._environment.get(name) and not is_read_late(name)
        )
        if changed:
            return f"its environment ({', '.join(changed)})"
        bound = worker.processors is not None and worker.processors != self._processors
        if bound and self._counted and _THREADS not in worker.environment:
            return f"its number of processors, which libraries count at their import if {_THREADS} is not set,"
        return ""

    def start(self, worker: WorkerStart) -> StartedProcess | None:
        """Start this worker from a fork. `None` if there is none, or it would differ."""
        functions = worker.environment.get(_STARTUP, "").split(",")
        self._packages |= dict.fromkeys(name.partition(":")[0].partition(".")[0] for name in functions if name)
        if worker.terminal or self._forking or not self._waiting:
            return None
        if difference := self.difference(worker):
            self._refused_count += 1
            if difference not in self._differences:
                self._differences.add(difference)
                self._loop.notice(
                    f"the worker with local rank {worker.local_rank} is not forked, but started by exec: {difference} "
                    "differs from that of the interpreter with the imports"
                )
            return None
        while self._waiting:
            pid = next(iter(self._waiting))
            with self._waiting.pop(pid) as to:
                try:
                    self._bind(pid, worker)
                    send_orders(to, worker)
                except (OSError, ValueError):
                    _kill(pid)
                    _reap(pid, _END_WAIT_S)
                    continue
            self._forked_any = True
            return StartedProcess(pid=pid)
        return None

    def _bind(self, pid: int, worker: WorkerStart) -> None:
        """Give a process that waits the processors of the worker, and the resource limits of this process."""
        os.sched_setaffinity(pid, os.sched_getaffinity(0) if worker.processors is None else worker.processors)
        for limit in range(_LIMITS):
            with suppress(OSError, ValueError):  # a limit that this kernel does not have
                resource.prlimit(pid, limit, resource.getrlimit(limit))

    def round_started(self) -> None:
        """Have as many processes forked for the next round. End the server if every worker differs from it."""
        self._count = max(0, self._count - self._refused_count) if self._ahead else 0
        if self._refused_count and not self._forked_any:
            self.close_server(_END_WAIT_S)
        else:
            self._go_on()

    # --- the end

    def close_server(self, wait_s: float) -> int | None:
        """End the server and the processes that wait; idempotent.

        Args:
            wait_s: How long to wait for the end of each.

        Returns:
            The exit code of a server that had ended. `None` if it is not known.
        """
        self._drop_batch()
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        self._ready = self._forking = False
        waiting, self._waiting = self._waiting, {}
        for pid, to in waiting.items():
            to.close()
            _kill(pid)
        code = None
        if self._server is not None:
            pid, self._server.returncode = self._server.pid, 0  # Popen must neither wait nor warn
            self._server = None
            _kill(pid)  # with what its imports have started, before its number is free
            code = _reap(pid, wait_s)
        for pid in waiting:
            _reap(pid, wait_s)
        return code

    def close(self) -> None:
        """End the server and the processes that wait; idempotent."""
        self._done = None
        self._cancel_limit()
        self.close_server(0.0 if self._loop.own_process else _END_WAIT_S)


def _program(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the words that name the script or module."""
    return tuple(argv[2:4]) if argv[2:3] == ("-m",) else tuple(argv[2:3])


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended, and do not reap it.

    Raises:
        ChildProcessError: It is no child of this process.
    """
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill(pid: int) -> None:
    """Send SIGKILL to a child that leads a session, and to its children."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _reap(pid: int, within_s: float) -> int | None:
    """Return the exit code of a child that was killed or has ended.

    `None` if it takes longer, or is no child: the agent reaps orphans.
    """
    with suppress(OSError):  # no pidfds, or no such process
        pidfd = os.pidfd_open(pid)
        try:
            poll = select.poll()  # unlike `select.select`, it takes descriptors above 1023
            poll.register(pidfd, select.POLLIN)
            poll.poll(within_s * 1000)
        finally:
            os.close(pidfd)
    with suppress(ChildProcessError):
        found, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if found else None
    return None
