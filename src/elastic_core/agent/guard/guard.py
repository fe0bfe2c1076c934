"""The guard: a process that outlives its agent until it has killed the processes that the agent's workers left running.

`guardian` starts it with no variable but `TZ`, in its own session, with every signal blocked. It reads lines from its
standard input; the latest line of each kind counts:

- `agent PID`, `incarnation TEXT`;
- `workers [PID ...]`: the workers that are not yet reaped;
- `fence SECONDS`: when the workers must be dead even if the agent lives, by CLOCK_MONOTONIC; `inf` means never;
- `times FORMAT`: the local time before each line, as for `logger.local_time`;
- `last TEXT`: the input of `last_act`, which acts once the agent and the workers are dead; `-` means none;
- `forget SIGNAL`: the agent has seen that this signal is pending;
- `farewell`: the agent ends normally, and the guard has nothing to do.

Descriptor 3 is the agent's stderr. If the agent died without a farewell, the guard writes one line there after it has
killed the workers. The guard ignores unknown lines. The hunt begins when the pipe or the agent's process ends without a
farewell.

The guard stays small: it imports only `os`, `select`, `sys` and `time`, and what every interpreter imports.
docs/explanation/no-orphans.md describes its limits.
"""

from __future__ import annotations

import os
import select
import sys
import time

from elastic_core.logger import local_time
from elastic_core.processes import procfs
from elastic_core.processes.lineage import Lineage

TYPE_CHECKING = False  # as in procfs
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LAST_ACT_MARK = "elastic-last-act"
SIDECAR_ENTRY = b"ELASTIC_SIDECAR=1"
"""The mark of the agent's own servers, besides its incarnation. A fence spares them; the agent's end does not."""
NEVER_S = float("inf")
_GIVE_UP_S = 30.0
_SETTLE_S = 0.1
"""The shortest hunt, in seconds: a worker that is being started shows its environment only after its exec."""
_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_NEWCOMER_LOOKS = 20
_CHUNK_BYTES = 65536
_LAST_ACT_WAIT_S = 12.0
_LONGEST_POLL_MS = 86_400_000.0
_PEOPLE = 3
"""The descriptor of the agent's stderr."""
_SIGKILL = 9  # importing signal would double the start time and add a quarter to the memory


def main() -> None:
    """Run the guard on standard input. Called: as the only function of a new interpreter."""
    os.chdir("/")  # keep no directory in use
    for fd in procfs.numbers_in("/proc/self/fd"):
        if fd > _PEOPLE:
            _close(fd)
    try:
        os.set_inheritable(_PEOPLE, False)
    except OSError:  # no stderr was given: reserve the number, so that no other file gets it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != _PEOPLE:
            os.dup2(nowhere, _PEOPLE, inheritable=False)
    watch = AgentWatch(alone=_is_alone())
    watch.until_agent_ends(0)
    if watch.incarnation and not watch.farewell and watch.may_act():
        last_act = LastAct(watch.last_act)  # it starts during the hunt
        cleared = hunt(watch.incarnation, watch.workers)
        _report(watch.dead_agent, watch.times)
        if cleared:
            last_act.go()
    os._exit(0)  # the interpreter's own shutdown would only take time


def _is_alone() -> bool:
    """Return whether only the guard's code runs in this process. Called: before a hunt, which may leave threads."""
    return sys.gettrace() is None and len(procfs.numbers_in("/proc/self/task")) <= 1


def _report(agent_pid: int, times: str) -> None:
    """Write the line about an agent that ended without a result; 0 means that the agent lives, and writes no line."""
    what = f"agent {agent_pid} ended without a verdict, whatever its exit code: it was killed, or called os._exit"
    if agent_pid:
        _write_line(f"{what}; its guard has ended its workers", times)
    _close(_PEOPLE)  # a reader may wait for the end of the agent's output


def _write_line(what: str, times: str) -> None:
    """Write a line to the agent's stderr, unless that would block."""
    poll = select.poll()
    poll.register(_PEOPLE, select.POLLOUT)
    try:
        if any(events & select.POLLOUT for _, events in poll.poll(0)):
            os.write(_PEOPLE, f"{local_time(times)}elastic: {what}\n".encode())
    except OSError:
        return  # the stream has no reader


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        return  # the descriptor that listed the others


def _forget(signum: int) -> None:
    """Remove a blocked pending signal, so that the next one can be seen."""
    import _signal  # type: ignore[import-not-found]  # importing `signal` would add a quarter to the memory

    _signal.sigtimedwait({signum}, 0)


class AgentWatch:
    """The messages of the agent until it ends."""

    def __init__(self, *, alone: bool = True) -> None:
        """Start without any message; `alone` means that no debugger or other tool runs in this process."""
        self._alone = alone
        self.incarnation = ""
        self.farewell = False
        self.times = ""
        self.last_act = b""
        self.fence_s = NEVER_S
        self.workers: dict[int, int] = {}
        """The start time of each worker, by pid."""
        self._any_workers = False
        """Whether the agent named workers, even if they had ended before: their descendants must be killed too."""
        self._agent_pid = -1
        self._agent_fd = -1
        self._agent_gone = False
        self._fence_moved = False
        self._partial = b""

    def may_act(self) -> bool:
        """Return whether the observed end of the agent is reliable; write a line if not.

        A debugger in this process uses descriptors that can be confused with the guard's: the apparent end of the agent
        proves nothing then.
        """
        if not self._alone:
            what = "a debugger or another tool runs in the guard of this agent: the guard ends no worker"
            _write_line(what, self.times)
        return self._alone

    @property
    def dead_agent(self) -> int:
        """The agent's pid if the agent has ended; 0 if it lives and leaves the remaining work to its guard."""
        if self._agent_gone:
            return self._agent_pid
        poll = select.poll()
        if self._agent_fd >= 0:
            poll.register(self._agent_fd, select.POLLIN)
        return self._agent_pid if poll.poll(0) else 0

    def until_agent_ends(self, pipe: int) -> None:
        """Read the agent's messages until the pipe ends, the agent ends, or a farewell comes; enforce its fences.

        The agent's process is watched in addition to the pipe, because another fork of it, such as a library user's,
        may keep the pipe open.
        """
        os.set_blocking(pipe, False)
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        watched_fd = -1
        while not self.farewell:
            if self._agent_fd != watched_fd:
                watched_fd = self._agent_fd
                poll.register(watched_fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(0 if self._agent_gone else self._until_fence_ms())}
            if self._read(pipe):  # no process holds the writing end any more: the agent has ended
                return
            # The whole pipe is read: a dead agent's messages count, and so does a fence that was moved just in time.
            if self._agent_gone or watched_fd in ready:
                return
            if self._until_fence_ms() == 0:
                self._enforce(pipe, poll)

    def _until_fence_ms(self) -> float | None:
        """Return how long the workers may still live, in milliseconds; `None` means no limit."""
        # Between rounds no worker lives: the last round's fence would only wake the guard.
        if not self._any_workers or self.fence_s == NEVER_S:
            return None
        return min(max(0.0, (self.fence_s - time.monotonic()) * 1000), _LONGEST_POLL_MS)

    def _enforce(self, pipe: int, poll: select.poll) -> None:
        """Kill the workers of an agent that lives but did not move its fence in time: it is stopped, or hangs.

        If the agent continues and moves its fence, it may start other workers: so the new fence ends the hunt.
        """
        # A fence is enforced once: a stopped agent does not move it, and each turn would start another hunt.
        self.fence_s = NEVER_S
        self._fence_moved = False

        def unchanged() -> bool:
            ended = self._read(pipe) or any(fd != pipe for fd, _ in poll.poll(0))
            return not (ended or self.farewell or self._fence_moved)

        if self.may_act():
            hunt(self.incarnation, self.workers, fenced_agent=self._agent_pid, still=unchanged)

    def _read(self, pipe: int) -> bool:
        """Read all messages in the pipe; return whether the pipe has ended."""
        while not self.farewell:
            try:
                chunk = os.read(pipe, _CHUNK_BYTES)
            except BlockingIOError:
                return False
            if not chunk:
                return True
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            for line in lines:
                self.take(line.decode())
        return False

    def take(self, line: str) -> None:
        """Process one line."""
        word, _, rest = line.partition(" ")
        if word == "incarnation":
            self.incarnation = rest
        elif word == "agent":
            self._attend(int(rest))
        elif word == "workers":
            stats = [procfs.read_stat(int(pid)) for pid in rest.split()]
            self._any_workers = bool(stats)
            self.workers = {stat.pid: stat.start_ticks for stat in stats if stat is not None}
        elif word == "fence":
            self.fence_s = float(rest)
            self._fence_moved = True
        elif word == "times":
            self.times = rest
        elif word == "last":
            self.last_act = b"" if rest == "-" else rest.encode()
        elif word == "forget":
            _forget(int(rest))
        elif word == "farewell":
            self.farewell = True

    def _attend(self, agent_pid: int) -> None:
        self._agent_pid = agent_pid
        try:
            self._agent_fd = os.pidfd_open(agent_pid)
        except ProcessLookupError:
            self._agent_gone = True
            return
        except OSError:
            return  # no pidfds on this system: the pipe must suffice
        # The agent is the guard's parent until it ends. With another parent, the pid may belong to another process.
        self._agent_gone = os.getppid() != agent_pid


class LastAct:
    """A process that gives the agent's seat back. It prepares itself, and acts on request."""

    def __init__(self, instructions: bytes) -> None:
        """Start the process with the agent's instructions; empty means that there is nothing to do.

        It inherits the guard's blocked signals, session and environment, so that no guard treats it as a worker.
        """
        self._pid = self._pipe = -1
        if not instructions:
            return
        root = os.path.abspath(__file__).rpartition("/elastic_core/")[0]  # noqa: PTH100  # pathlib is too large
        code = f"import sys; sys.path.append({root!r}); from elastic_core.agent.guard.last_act import main; main()"
        try:
            reading, self._pipe = os.pipe2(os.O_CLOEXEC)
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-c", code, LAST_ACT_MARK],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)],
            )
            os.close(reading)
            os.set_blocking(self._pipe, False)
            self._write(instructions + b"\n")
        except OSError:
            return  # the lease of the seat ends on its own

    def _write(self, line: bytes) -> None:
        """Write a line to the process; if only a part fits, kill the process, because it must not act on a part."""
        if os.write(self._pipe, line) != len(line):
            os.kill(self._pid, _SIGKILL)

    def go(self) -> None:
        """Make the process act, and wait a short time until it has ended."""
        if self._pid < 0:
            return
        try:
            self._write(b"go\n")
        except OSError:
            return  # it gave up already
        poll = select.poll()
        poll.register(self._pipe, 0)  # its end closes the other end: this needs no pidfd
        poll.poll(_LAST_ACT_WAIT_S * 1000)
        os.kill(self._pid, _SIGKILL)  # it is not reaped, so no other process has its pid


def hunt(
    incarnation: str,
    workers: dict[int, int],
    *,
    fenced_agent: int | None = None,
    still: Callable[[], bool] = lambda: True,
) -> bool:
    """Kill workers and their descendants until two scans in a row find none; return whether that succeeded.

    It ends after half a minute at the latest, or when `still` returns False. `fenced_agent` is the agent's pid if the
    agent lives and only its workers must be killed.
    """
    if not procfs.is_usable():
        return False
    began_s = time.monotonic()

    def is_agents(stat: procfs.ProcessStat) -> bool:
        if fenced_agent is None:  # the agent has died: its servers are killed too
            return False
        return stat.pid == fenced_agent or procfs.has_environment_entry(stat.pid, SIDECAR_ENTRY)

    # A worker that ended with the agent left its session: the kernel reuses the number only after the session's end.
    led = [pid for pid in workers if procfs.read_stat(pid) is None]
    lineage = Lineage(incarnation, workers=workers, led=led, spared=is_agents)
    clear_looks = 0
    pause_s = _PAUSE_S
    while clear_looks < 2 or time.monotonic() - began_s < _SETTLE_S:
        alive = procfs.unblocked(lambda: look_and_kill(lineage, still))
        # A scan that failed proves nothing: continue as if a process lived.
        if alive is None or alive:
            clear_looks = 0
            _wait_for_ends(alive or (), pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)  # a process that SIGKILL has not ended is stuck in the kernel
        else:
            clear_looks += 1
            _wait_for_ends((), _PAUSE_S)
            pause_s = _PAUSE_S
        if time.monotonic() - began_s > _GIVE_UP_S or not still():
            return False
    return True


def _wait_for_ends(pids: Iterable[int], timeout_s: float) -> None:
    """Wait until these processes have ended, at most `timeout_s`; if none can be waited for, wait that long."""
    until_s = time.monotonic() + timeout_s
    waited = False
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended
            waited = True
            continue
        except OSError:  # no pidfds on this system, or no descriptor left
            continue
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(max(0.0, until_s - time.monotonic()) * 1000)
        os.close(pidfd)
        waited = True
    if not waited:
        select.poll().poll(timeout_s * 1000)


def look_and_kill(lineage: Lineage, still: Callable[[], bool]) -> list[int] | None:
    """Kill the processes of a lineage that one scan of the whole system finds.

    Return the processes that were found alive; `None` if the scan failed.
    """
    own = os.getpid()
    seen: set[int] = set()
    found: dict[int, procfs.ProcessStat] = {}
    for _ in range(_NEWCOMER_LOOKS):
        pids = procfs.list_pids()
        if own not in pids:
            return None  # for example, the system has no descriptor left
        # Only the short scans for new processes catch a process that forks faster than a full scan takes.
        stats = [stat for pid in pids if pid not in seen and pid != own and (stat := procfs.read_stat(pid)) is not None]
        seen.update(stat.pid for stat in stats)
        # The agent may have moved its fence, and started other workers. This is checked after the listing, so that the
        # listing has none of them.
        if not stats or not still():
            break
        for stat in lineage.among(stats, found):
            _kill(stat)
    return [pid for pid, stat in found.items() if stat.alive]


def _kill(stat: procfs.ProcessStat) -> None:
    now = procfs.read_stat(stat.pid)
    # A pid can be reused between the scan and the kill: compare the start time first.
    if now is None or now.start_ticks != stat.start_ticks:
        return
    try:
        os.kill(stat.pid, _SIGKILL)
    except OSError:
        return  # it has just ended, or belongs to another user, so nothing more can be done
