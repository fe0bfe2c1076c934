"""The guard: a process that outlives its agent by as long as it takes to end what the agent's workers left running.

It is started by `guardian` with an empty environment, in a session of its own, every signal blocked, and reads lines
from its standard input; of each kind the latest counts:

- `agent PID`, `incarnation TEXT`;
- `workers [PID ...]`: those not yet reaped;
- `fence SECONDS`: when the workers must be dead though the agent lives, by CLOCK_MONOTONIC; `inf`: never;
- `last TEXT`: what `last_act` is told once the agent has died and the workers have; `-`: nothing;
- `forget SIGNAL`: the agent has seen that this one is pending;
- `farewell`: the agent ends in peace, there is nothing to do.

Descriptor 3 is the agent's stderr: when it died without a farewell, its workers are gone, and one line says so.

Lines that it does not know it ignores. When the pipe ends, or the agent's process does, without a farewell, the hunt
begins.

It stays tiny: `os`, `select`, `sys` and `time` are all that it imports, beside what every interpreter has. Its limits
are told in docs/explanation/no-orphans.md.
"""

from __future__ import annotations

import os
import select
import sys
import time

from elastic_core.processes import procfs
from elastic_core.processes.lineage import Lineage

TYPE_CHECKING = False  # as in procfs
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LAST_ACT_MARK = "elastic-last-act"
SIDECAR_ENTRY = b"ELASTIC_SIDECAR=1"
"""What marks the agent's own servers, beside its incarnation: a fence spares them, the end of the agent does not."""
NEVER_S = float("inf")
_GIVE_UP_S = 30.0
_SETTLE_S = 0.1
"""A worker that the agent was just starting shows its environment only after its exec: look at least this long."""
_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_NEWCOMER_LOOKS = 20
_CHUNK_BYTES = 65536
_LAST_ACT_WAIT_S = 12.0
_LONGEST_POLL_MS = 86_400_000.0
_PEOPLE = 3
"""Descriptor of what was the agent's stderr."""
_SIGKILL = 9  # importing signal would double the time and add a quarter to the memory


def main() -> None:
    """Be a guard on standard input. Called: as the only thing that a fresh interpreter does."""
    os.chdir("/")  # no directory is kept busy
    for fd in procfs.numbers_in("/proc/self/fd"):
        if fd > _PEOPLE:
            _close(fd)
    try:
        os.set_inheritable(_PEOPLE, False)
    except OSError:  # none was given: no file that is opened later may have the number
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != _PEOPLE:
            os.dup2(nowhere, _PEOPLE, inheritable=False)
    watch = AgentWatch(alone=_is_alone())
    watch.until_agent_ends(0)
    if watch.incarnation and not watch.farewell and watch.may_act():
        last_act = LastAct(watch.last_act)  # starts while we hunt
        cleared = hunt(watch.incarnation, watch.workers)
        _report(watch.dead_agent)
        if cleared:
            last_act.go()
    os._exit(0)  # nothing to clean up: the interpreter's own shutdown would only take time


def _is_alone() -> bool:
    """Return whether this process runs the guard's code alone. Called: before a hunt, whose threads may stay."""
    return sys.gettrace() is None and len(procfs.numbers_in("/proc/self/task")) <= 1


def _report(agent_pid: int) -> None:
    """Write the one line that an agent could not write, which ended without a verdict; 0: it lives."""
    what = f"agent {agent_pid} ended without a verdict, whatever its exit code: it was killed, or called os._exit"
    if agent_pid:
        _write_line(f"{what}; its guard has ended its workers")
    _close(_PEOPLE)  # somebody may wait for the end of what the agent prints


def _write_line(what: str) -> None:
    """Write a line to what was the agent's stderr, unless that would block."""
    poll = select.poll()
    poll.register(_PEOPLE, select.POLLOUT)
    try:
        if any(events & select.POLLOUT for _, events in poll.poll(0)):
            os.write(_PEOPLE, f"elastic: {what}\n".encode())
    except OSError:
        return  # nobody reads it


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        return  # the descriptor that listed the others


def _forget(signum: int) -> None:
    """Take a pending signal, which we block, so that the next one shows."""
    import _signal  # type: ignore[import-not-found]  # `signal` around it would add a quarter to the memory

    _signal.sigtimedwait({signum}, 0)


class AgentWatch:
    """What the agent has told, until it ends."""

    def __init__(self, *, alone: bool = True) -> None:
        """Know nothing yet; `alone`: no debugger or other tool runs in this process."""
        self._alone = alone
        self.incarnation = ""
        self.farewell = False
        self.last_act = b""
        self.fence_s = NEVER_S
        self.workers: dict[int, int] = {}
        """When each worker was started, by pid."""
        self._any_workers = False
        """Whether some were named, be it that they had ended before we looked: what they left must go all the same."""
        self._agent_pid = -1
        self._agent_fd = -1
        self._agent_gone = False
        self._fence_moved = False
        self._partial = b""

    def may_act(self) -> bool:
        """Return whether what is seen of the agent is to be believed; write a line if not.

        A debugger in here uses descriptors that can be confused with those that we hold: that the agent seems to have
        ended proves nothing then.
        """
        if not self._alone:
            _write_line("a debugger or another tool runs in the guard of this agent: the guard ends no worker")
        return self._alone

    @property
    def dead_agent(self) -> int:
        """The agent's process, if it is over; 0: it lives, and has its guard do what is left."""
        if self._agent_gone:
            return self._agent_pid
        poll = select.poll()
        if self._agent_fd >= 0:
            poll.register(self._agent_fd, select.POLLIN)
        return self._agent_pid if poll.poll(0) else 0

    def until_agent_ends(self, pipe: int) -> None:
        """Follow what the agent tells until the pipe ends, the agent ends, or it says farewell; keep its fences.

        The agent's process is watched beside the pipe because a fork of it may hold the pipe open: a library user's
        own, say.
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
            # All that was in the pipe is read: what a dead agent had said counts, as does a fence moved just in time.
            if self._agent_gone or watched_fd in ready:
                return
            if self._until_fence_ms() == 0:
                self._enforce(pipe, poll)

    def _until_fence_ms(self) -> float | None:
        """Return how long the workers may still live, None without limit."""
        # Between rounds no worker lives: the last round's fence would only wake the guard.
        if not self._any_workers or self.fence_s == NEVER_S:
            return None
        return min(max(0.0, (self.fence_s - time.monotonic()) * 1000), _LONGEST_POLL_MS)

    def _enforce(self, pipe: int, poll: select.poll) -> None:
        """End the workers of an agent that lives but let its fence pass: stopped, or stuck.

        One that comes back to life, and moves its fence, may start others at once: the hunt ends with its word.
        """
        # A fence is enforced once: an agent that stays stopped moves it no more, and each turn would hunt again.
        self.fence_s = NEVER_S
        self._fence_moved = False

        def unchanged() -> bool:
            ended = self._read(pipe) or any(fd != pipe for fd, _ in poll.poll(0))
            return not (ended or self.farewell or self._fence_moved)

        if self.may_act():
            hunt(self.incarnation, self.workers, fenced_agent=self._agent_pid, still=unchanged)

    def _read(self, pipe: int) -> bool:
        """Take what is in the pipe; return whether it has ended."""
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
        """Take one line."""
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
            return  # no pidfds here: the pipe must do
        # Our parent until it ends: if that is somebody else now, the number may have been given to another process.
        self._agent_gone = os.getppid() != agent_pid


class LastAct:
    """A process that gives the agent's seat back. It prepares itself, and acts when told to."""

    def __init__(self, instructions: bytes) -> None:
        """Start it with what the agent left for it; empty: there is nothing to do.

        It inherits our blocked signals, our session and our empty environment, so that no guard takes it for a worker.
        """
        self._pid = self._pipe = -1
        if not instructions:
            return
        root = os.path.abspath(__file__).rpartition("/elastic_core/")[0]  # noqa: PTH100  # pathlib is not ours to load
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
            return  # the seat's lease does without us

    def _write(self, line: bytes) -> None:
        """Write to it; what it is told in part it does not do."""
        if os.write(self._pipe, line) != len(line):
            os.kill(self._pid, _SIGKILL)

    def go(self) -> None:
        """Have it act, and wait until it has ended, a short time at most."""
        if self._pid < 0:
            return
        try:
            self._write(b"go\n")
        except OSError:
            return  # it gave up already
        poll = select.poll()
        poll.register(self._pipe, 0)  # its end closes the other end: this needs no pidfd
        poll.poll(_LAST_ACT_WAIT_S * 1000)
        os.kill(self._pid, _SIGKILL)  # not reaped: the number is still its own


def hunt(
    incarnation: str,
    workers: dict[int, int],
    *,
    fenced_agent: int | None = None,
    still: Callable[[], bool] = lambda: True,
) -> bool:
    """Kill what workers left until two looks in a row find nothing; return whether that came to pass.

    It ends after half a minute at most, and when it is `still` wanted no more. `fenced_agent`: the agent, if it exists
    and only its workers are to go.
    """
    if not procfs.is_usable():
        return False
    began_s = time.monotonic()

    def is_agents(stat: procfs.ProcessStat) -> bool:
        if fenced_agent is None:  # it has died: its servers go, too
            return False
        return stat.pid == fenced_agent or procfs.has_environment_entry(stat.pid, SIDECAR_ENTRY)

    # A worker that ended with the agent has left its session: the kernel gives the number to no process while it lasts.
    led = [pid for pid in workers if procfs.read_stat(pid) is None]
    lineage = Lineage(incarnation, workers=workers, led=led, spared=is_agents)
    clear_looks = 0
    pause_s = _PAUSE_S
    while clear_looks < 2 or time.monotonic() - began_s < _SETTLE_S:
        alive = procfs.unblocked(lambda: look_and_kill(lineage, still))
        # A look that was not possible proves nothing: as if something lived.
        if alive is None or alive:
            clear_looks = 0
            _wait_for_ends(alive or (), pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)  # what KILL has not ended is stuck in the kernel
        else:
            clear_looks += 1
            _wait_for_ends((), _PAUSE_S)
            pause_s = _PAUSE_S
        if time.monotonic() - began_s > _GIVE_UP_S or not still():
            return False
    return True


def _wait_for_ends(pids: Iterable[int], timeout_s: float) -> None:
    """Wait until these processes have ended, at most `timeout_s`; where none can be waited for, wait that long."""
    until_s = time.monotonic() + timeout_s
    waited = False
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended
            waited = True
            continue
        except OSError:  # no pidfds here, or no descriptor left
            continue
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(max(0.0, until_s - time.monotonic()) * 1000)
        os.close(pidfd)
        waited = True
    if not waited:
        select.poll().poll(timeout_s * 1000)


def look_and_kill(lineage: Lineage, still: Callable[[], bool]) -> list[int] | None:
    """Kill what is found of a lineage in one look at the whole system.

    Return the processes that were found and lived, None if the look was not possible.
    """
    own = os.getpid()
    seen: set[int] = set()
    found: dict[int, procfs.ProcessStat] = {}
    for _ in range(_NEWCOMER_LOOKS):
        pids = procfs.list_pids()
        if own not in pids:
            return None  # no descriptor left in the system, say
        # A process that forks faster than a look at all takes is caught by the short looks at newcomers alone.
        stats = [stat for pid in pids if pid not in seen and pid != own and (stat := procfs.read_stat(pid)) is not None]
        seen.update(stat.pid for stat in stats)
        # The agent may have moved its fence, and started other workers. This is asked after the listing, so that none
        # of those is in it.
        if not stats or not still():
            break
        for stat in lineage.among(stats, found):
            _kill(stat)
    return [pid for pid, stat in found.items() if stat.alive]


def _kill(stat: procfs.ProcessStat) -> None:
    now = procfs.read_stat(stat.pid)
    # A pid can be used again between the look and the kill: compare the start time first.
    if now is None or now.start_ticks != stat.start_ticks:
        return
    try:
        os.kill(stat.pid, _SIGKILL)
    except OSError:
        return  # ended this instant, or another user's: there is nothing more that we could do
