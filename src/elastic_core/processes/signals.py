"""What other processes do about signals, and those that are the workers' to have: one gets each when ready for it.

SIGUSR1 and SIGUSR2 end a process that neither catches nor awaits them, as every worker until it has come to
that line of its script.
"""

import signal
from collections.abc import Callable, Mapping
from functools import partial

from elastic_core.logger import Logger
from elastic_core.processes.procfs import read_file, thread_ids
from elastic_core.system.reactor import Reactor, Timer

SENDER_S = 0.2
"""How long whoever signals us may take to signal our other processes, too."""
FIRST_LOOK_S = 0.05
LAST_LOOK_S = 1.0


class UserSignals:
    """Passes them on.

    Args:
        reactor: The loop; nothing is looked at while nothing is kept.
        running: Returns the workers that run and are not being stopped: local ranks by pid.
        send: Signals one worker.
        log: Takes lines for people.
        sent_to_all: Returns whether whoever sent the agent a signal sent it to all its processes, and forgets that.
            None: nobody can know.
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
        """Keep nothing yet."""
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
        """Pass a signal on that the agent has got: one that comes again meanwhile counts once, as in the kernel."""
        if self._sent_to_all is None:
            self._pass_on(signum)
        elif signum not in self._arrived:
            self._arrived.add(signum)
            self._reactor.call_later(SENDER_S, partial(self._pass_on, signum))

    def begin_round(self) -> None:
        """Have what came while no worker ran for those that have just been started."""
        self._kept.clear()
        for signum in (signal.SIGUSR1, signal.SIGUSR2):
            if self._sent_to_all is not None and signum not in self._arrived:
                self._sent_to_all(signum)  # what our other processes got by now is no word about one to come
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
        # A step of Slurm or a control group was signalled as a whole: passed on, workers would get the signal twice.
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
    """Return whether a process has a handler for a signal, or keeps it from all its threads: to wait for it in one."""
    if catches(pid, signum):
        return True
    # The kernel takes a signal out of the mask of a thread for as long as that waits for it.
    blocked = {tid: _is_in(f"/proc/{pid}/task/{tid}/status", b"SigBlk:", signum) for tid in thread_ids(pid)}
    return any(blocked.values()) and all(held or "sigtimedwait" in _wait_of(pid, tid) for tid, held in blocked.items())


def is_pending(pid: int, signum: int) -> bool:
    """Return whether a signal that was sent to a process as a whole still waits for it."""
    return _is_in(f"/proc/{pid}/status", b"ShdPnd:", signum)


def _is_in(path: str, name: bytes, signum: int) -> bool:
    for line in (read_file(path) or b"").splitlines():
        if line.startswith(name):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def _wait_of(pid: int, tid: int) -> str:
    name = (read_file(f"/proc/{pid}/task/{tid}/wchan") or b"").decode("ascii", "replace").strip()
    return "" if name == "0" else name
