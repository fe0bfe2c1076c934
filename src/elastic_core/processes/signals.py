"""Passes users' signals to workers when they are ready, and reads what other processes do about signals.

SIGUSR1 and SIGUSR2 kill a process that neither catches nor awaits them, as every worker before its script does so.
"""

import signal
from collections.abc import Callable, Mapping
from functools import partial

from elastic_core.logger import Logger
from elastic_core.processes.procfs import read_file, thread_ids
from elastic_core.system.reactor import Reactor, Timer

SENDER_S = 0.2
"""Seconds within which a sender that signals the agent may signal its other processes too."""
FIRST_LOOK_S = 0.05
LAST_LOOK_S = 1.0


class UserSignals:
    """Passes users' signals on. Nothing is polled while no signal is kept.

    `running` returns the workers that run and are not being stopped: local ranks by pid. `sent_to_all` returns
    whether the sender of a signal to the agent sent it to all its processes, and resets that; `None` means that
    this is not known.
    """

    def __init__(
        self,
        reactor: Reactor,
        *,
        running: Callable[[], Mapping[int, int]],
        send: Callable[[int, int], None],
        log: Logger,
        sent_to_all: Callable[[int], bool] | None = None,
    ) -> None:
        self._reactor = reactor
        self._running = running
        self._send = send
        self._log = log
        self._sent_to_all = sent_to_all
        self._arrived: set[int] = set()
        self._early: dict[int, None] = {}
        self._kept: dict[int, set[int]] = {}
        self._timer: Timer | None = None
        self._pause_s = FIRST_LOOK_S

    def forward(self, signum: int) -> None:
        """Pass on a signal to the agent. One that is repeated meanwhile counts once, as in the kernel."""
        if self._sent_to_all is None:
            self._pass_on(signum)
        elif signum not in self._arrived:
            self._arrived.add(signum)
            self._reactor.call_later(SENDER_S, partial(self._pass_on, signum))

    def begin_round(self) -> None:
        """Send signals that arrived while no worker ran to the workers that were just started."""
        self._kept.clear()
        for signum in (signal.SIGUSR1, signal.SIGUSR2):
            if self._sent_to_all is not None and signum not in self._arrived:
                self._sent_to_all(signum)  # reset: earlier signals say nothing about the next one
        early, self._early = self._early, {}
        for number in early:
            self._deliver(number)

    def _pass_on(self, signum: int) -> None:
        self._arrived.discard(signum)
        name = signal.Signals(signum).name
        to_all = self._sent_to_all is not None and self._sent_to_all(signum)
        if not self._running():
            self._early[signum] = None
            self._log.notice(f"{name}: no worker runs; it is kept for those that are started next")
        # A Slurm step or a cgroup was signalled as a whole: workers would get the signal twice.
        elif to_all:
            self._log.notice(f"{name}: not passed on, its sender has signalled the workers, too")
        else:
            self._deliver(signum)

    def _deliver(self, signum: int) -> None:
        running = self._running()
        waiting = {pid for pid in running if not self._given(pid, signum)}
        if waiting and waiting != self._kept.get(signum):
            ranks = ", ".join(str(running[pid]) for pid in sorted(waiting, key=lambda pid: running[pid]))
            who = f"local rank {ranks} does" if len(waiting) == 1 else f"local ranks {ranks} do"
            text = f"{who} not catch it and would die of it; it is kept until then, at most for this round"
            name = signal.Signals(signum).name
            hint = f"--preemption-signal {name[3:]} to save and stop, or a handler in the script"
            self._log.notice(f"{name}: {text}. Try: {hint}")
        self._keep(signum, waiting)
        self._pause_s = FIRST_LOOK_S
        self._set_timer()

    def _given(self, pid: int, signum: int) -> bool:
        if not takes(pid, signum):
            return False
        self._send(pid, signum)
        return True

    def _keep(self, signum: int, pids: set[int]) -> None:
        if pids:
            self._kept[signum] = pids
        else:
            self._kept.pop(signum, None)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.call_later(self._pause_s, self._look) if self._kept else None
        self._pause_s = min(2 * self._pause_s, LAST_LOOK_S)

    def _look(self) -> None:
        running = self._running()
        for signum, pids in list(self._kept.items()):
            self._keep(signum, {pid for pid in pids if pid in running and not self._given(pid, signum)})
        self._set_timer()


def catches(pid: int, signum: int) -> bool:
    """Return whether a process has a handler for a signal."""
    return _is_in(f"/proc/{pid}/status", b"SigCgt:", signum)


def takes(pid: int, signum: int) -> bool:
    """Return whether a process has a handler for a signal, or blocks it in all threads to wait for it in one."""
    if catches(pid, signum):
        return True
    # While a thread waits for a signal, the kernel removes the signal from its mask.
    blocked = {tid: _is_in(f"/proc/{pid}/task/{tid}/status", b"SigBlk:", signum) for tid in thread_ids(pid)}
    return any(blocked.values()) and all(held or "sigtimedwait" in _wait_of(pid, tid) for tid, held in blocked.items())


def is_pending(pid: int, signum: int) -> bool:
    """Return whether a signal to a process as a whole is still pending."""
    return _is_in(f"/proc/{pid}/status", b"ShdPnd:", signum)


def _is_in(path: str, name: bytes, signum: int) -> bool:
    for line in (read_file(path) or b"").splitlines():
        if line.startswith(name):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def _wait_of(pid: int, tid: int) -> str:
    name = (read_file(f"/proc/{pid}/task/{tid}/wchan") or b"").decode("ascii", "replace").strip()
    return "" if name == "0" else name
