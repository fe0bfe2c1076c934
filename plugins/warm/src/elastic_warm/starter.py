"""The starter that keeps workers: it asks them to leave their round, and gives them places in the next one."""

import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from elastic_core.api import SYSTEM_CLOCK, RunTimer
from elastic_core.api.starters import AgentLoop, LeavingWorker, StartedProcess, WorkerStart, WorkerStarter
from elastic_warm import places
from elastic_warm.connections import Connection, Listener, Message
from elastic_warm.places import Phase, WorkerState

COMMITS_S: Final = 5.0
"""Seconds from a worker's report about its commits until the reports of all are passed on."""
_STATUS_MS: Final = 5
"""How long the end waits for the status of a process whose end the kernel has reported, before it looks again."""
_KILLED_WAIT_S: Final = 1.0
_LOST: Final = 1
"""The exit code of a process whose status other code in the agent's process has read."""


class _Worker:
    # One connected process: its state, its connection, and, from the first request on, how to watch and reap it.
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.pid = connection.pid
        self.state = WorkerState()
        self.timer: RunTimer | None = None
        self.leaving: LeavingWorker | None = None
        self.started: WorkerStart | None = None
        self.pidfd = -1
        self.kept = False
        """Whether this object reaps the process."""
        self.explained = False
        """Whether a line says why it is kept no more."""


class WarmStarter(WorkerStarter):
    """Keeps the workers of a round that are able to leave it, and starts nothing itself.

    Args:
        loop: The agent's.
        folder: The run directory, where its socket is.
        timeout_s: How long a worker may take to leave, and to take its place.
        record: Receives, after each round's start, the local ranks that were kept, the number of all workers, and why
            others that could have been kept were not, by local rank. Not called before there is something to report.
        committed: Receives the last report of each connected worker about its commits, now and then.

    Raises:
        OSError: The socket can't be made.
    """

    def __init__(
        self,
        loop: AgentLoop,
        *,
        folder: str,
        timeout_s: float,
        record: Callable[[tuple[int, ...], int, Mapping[int, str]], None] = lambda _ranks, _count, _refused: None,
        committed: Callable[[Sequence[Message]], None] = lambda _commits: None,
    ) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._record = record
        self._committed = committed
        self._workers: dict[int, _Worker] = {}
        self._starts: dict[int, WorkerStart] = {}
        """The last start of each local rank, by whatever starter."""
        self._asked_for = 0
        self._placed: list[int] = []
        self._refusals: dict[str, list[int]] = {}
        """Those without a line yet, by reason."""
        self._refused: dict[int, str] = {}
        """Those since the last round's start, by local rank."""
        self._has_recorded = False
        self._commits: dict[int, Message] = {}
        self._commits_due: RunTimer | None = None
        self._over = False
        self._listener = Listener(loop, folder, self._take)
        self.path = self._listener.path
        """The name by which workers reach the socket."""

    @property
    def kept_pids(self) -> frozenset[int]:
        """The processes that are kept without a place."""
        return frozenset(worker.pid for worker in self._workers.values() if worker.kept)

    # --- reports of workers

    def _take(self, connection: Connection, message: Message | None) -> None:
        worker = self._workers.get(connection.pid)
        if worker is None and message is not None:
            worker = self._workers[connection.pid] = _Worker(connection)
        if worker is None or worker.connection is not connection:
            self._listener.drop(connection)  # a second one of the same process
            return
        if message is None:
            self._advance(worker, places.Disconnected())
            if not worker.kept and worker.pidfd < 0:
                self._forget(worker)
        elif message.kind == "state":
            self._commits[worker.pid] = message
            if self._commits_due is None:
                self._commits_due = self._loop.call_later(COMMITS_S, self._report_commits)
        else:
            reported = places.Reported(
                kind=message.kind,
                version=message.version,
                round=message.round,
                reason=message.reason,
                error=message.error,
            )
            self._advance(worker, reported)

    def _report_commits(self) -> None:
        self._commits_due = None
        self._committed(tuple(self._commits.values()))

    def _advance(self, worker: _Worker, event: places.Event) -> None:
        step = places.advance(worker.state, event)
        worker.state = step.state
        if not step.same_timer:
            self._cancel_timer(worker)
            if step.timer_s is not None:
                worker.timer = self._loop.call_later(step.timer_s, partial(self._advance, worker, places.Late()))
        for action in step.actions:
            self._perform(worker, action)

    def _perform(self, worker: _Worker, action: places.Action) -> None:
        match action:
            case places.Send(message=message):
                if not worker.connection.send(message):
                    self._listener.drop(worker.connection)
                    self._loop.post(partial(self._advance, worker, places.Disconnected()))
            case places.Refused(reason=reason):
                if reason and worker.leaving is not None:
                    self._note(worker.leaving.local_rank, reason)
                self._let_go(worker)
            case places.HasLeft():
                assert worker.leaving is not None
                worker.kept = worker.leaving.left()
                if worker.kept:
                    self._loop.add_reader(worker.pidfd, partial(self._reap, worker))
                else:
                    if _has_ended(worker.pidfd):
                        self._note(worker.leaving.local_rank, "it has ended")
                    self._let_go(worker)
            case places.Stays(reason=reason):
                assert worker.leaving is not None
                self._note(worker.leaving.local_rank, reason)
                worker.leaving.stays()
                self._let_go(worker)
            case places.Kill(reason=reason):
                if reason and worker.leaving is not None:
                    worker.explained = True
                    self._note(worker.leaving.local_rank, reason)
                self._kill(worker)

    def _cancel_timer(self, worker: _Worker) -> None:
        if worker.timer is not None:
            worker.timer.cancel()
            worker.timer = None

    # --- the end of a round

    def keep(self, worker: LeavingWorker, *, within_s: float, planned: bool) -> bool:
        """Ask a worker to leave if it can; otherwise a line says why, unless its script has no part in this."""
        self._listener.catch_up(worker.process.pid)
        known = self._workers.get(worker.process.pid)
        start = self._starts.get(worker.local_rank)
        if known is None or start is None or self._over or known.kept:
            return False
        known.leaving, known.started = worker, start
        if known.pidfd < 0:
            try:
                known.pidfd = os.pidfd_open(known.pid)
            except OSError:  # it has ended, or no descriptor is free
                return False
        wanted = places.LeaveWanted(
            round=_round_of(start),
            within_s=min(within_s, self._timeout_s),
            planned=planned,
            stopped=_is_stopped(known.pid),
        )
        self._advance(known, wanted)
        return known.state.phase is Phase.ASKED

    def _note(self, local_rank: int, reason: str) -> None:
        self._refused[local_rank] = reason
        # One line for all workers that stay for the same reason in the same turn.
        if not self._refusals:
            self._loop.post(self._print_refusals)
        self._refusals.setdefault(reason, []).append(local_rank)

    def _print_refusals(self) -> None:
        refusals, self._refusals = self._refusals, {}
        for reason, ranks in refusals.items():
            plural, starts = ("", "starts") if len(ranks) == 1 else ("s", "start")
            who = f"worker{plural} with local rank{plural} {', '.join(map(str, sorted(ranks)))}"
            self._loop.notice(f"{who} can't be kept, and {starts} anew: {reason}")

    # --- the next round

    def prepare(self, count: int, done: Callable[[], None]) -> None:
        """Begin another round."""
        self._asked_for, self._placed = 0, []
        done()

    def start(self, worker: WorkerStart) -> StartedProcess | None:
        """Give the kept worker with this local rank its place. `None` if there is none, or it would differ."""
        self._asked_for += 1
        self._starts[worker.local_rank] = worker
        kept = next((each for each in self._workers.values() if _is_kept_for(each, worker.local_rank)), None)
        if kept is None or kept.started is None or kept.leaving is None:
            return None
        changed = _changed(kept.started.environment, worker.environment)
        difference = _difference(kept.started, worker, changed)
        if difference or not self._give_place(kept, worker, changed):
            reason = f"{difference} has changed" if difference else "it has ended"
            self._advance(kept, places.PlaceRefused(reason=reason))
            return None
        self._loop.remove_reader(kept.pidfd)
        kept.kept, kept.started = False, worker
        self._advance(kept, places.PlaceGiven(round=_round_of(worker), within_s=self._timeout_s))
        self._placed.append(worker.local_rank)
        return kept.leaving.process

    def _give_place(self, kept: _Worker, worker: WorkerStart, changed: Mapping[str, str | None]) -> bool:
        if _has_ended(kept.pidfd):
            return False
        streams = {name: fd for name, fd in (("stdout", worker.stdout), ("stderr", worker.stderr)) if fd is not None}
        place: dict[str, object] = {
            "kind": "place",
            "round": _round_of(worker),
            "variables": changed,
            "fds": list(streams),
        }
        return kept.connection.send(place, list(streams.values()))

    def round_started(self) -> None:
        """Report how many workers were kept, and why others were not."""
        refused, self._refused = self._refused, {}
        if self._placed or refused or self._has_recorded:
            self._has_recorded = True
            self._record(tuple(sorted(self._placed)), self._asked_for, refused)

    def worker_ended(self, pid: int) -> None:
        """Forget a worker that has ended."""
        worker = self._workers.get(pid)
        if worker is not None:
            self._forget(worker)

    # --- ends

    def _kill(self, worker: _Worker) -> None:
        # A process that leads its session, and is not reaped as long as its descriptor is open here or in the group.
        if worker.pidfd >= 0 and not worker.kept:
            with suppress(OSError):
                signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
        elif worker.kept:
            with suppress(OSError):
                os.killpg(worker.pid, signal.SIGKILL)

    def _reap(self, worker: _Worker) -> None:
        """Reap a kept process if it has ended, with the rest of its group."""
        if not worker.kept or worker.leaving is None or not _has_ended(worker.pidfd):
            return
        self._kill(worker)  # its children, before its number is free
        code = _code_of(worker.leaving.process)
        if code is None:
            return
        if not worker.explained and not self._over:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._note(worker.leaving.local_rank, f"it has ended with {how}")
        leaving = worker.leaving
        self._loop.remove_reader(worker.pidfd)
        worker.kept = False
        self._forget(worker)
        leaving.ended()

    def _let_go(self, worker: _Worker) -> None:
        # The group stops it: its end is no business of ours.
        self._cancel_timer(worker)
        if worker.pidfd >= 0 and not worker.kept:
            os.close(worker.pidfd)
            worker.pidfd = -1

    def _forget(self, worker: _Worker) -> None:
        self._let_go(worker)
        self._listener.drop(worker.connection)
        self._commits.pop(worker.pid, None)
        if self._workers.get(worker.pid) is worker:
            del self._workers[worker.pid]

    def end(self) -> None:
        """Ask the kept workers to end, because no round follows; those that do not are killed. Asks no worker again."""
        self._over = True
        for worker in tuple(self._workers.values()):
            if worker.kept:
                self._advance(worker, places.EndWanted())

    def close(self) -> None:
        """End the kept workers, wait for them, and close the socket; idempotent."""
        if self._commits_due is not None:
            self._commits_due.cancel()
        self.end()
        self._wait(places.END_S)
        for worker in tuple(self._workers.values()):
            if worker.kept:
                self._kill(worker)
        self._wait(_KILLED_WAIT_S)
        for worker in tuple(self._workers.values()):
            if worker.kept:  # a device holds it in the kernel
                self._loop.remove_reader(worker.pidfd)
                worker.kept = False
            self._forget(worker)
        self._listener.close()

    def _wait(self, within_s: float) -> None:
        end_s = SYSTEM_CLOCK.monotonic_s() + within_s
        while kept := [worker for worker in self._workers.values() if worker.kept]:
            left_s = end_s - SYSTEM_CLOCK.monotonic_s()
            if left_s <= 0:
                return
            poll = select.poll()  # unlike `select.select`, it takes descriptors above 1023
            for worker in kept:
                poll.register(worker.pidfd, select.POLLIN)
            poll.poll(left_s * 1000)
            for worker in kept:
                self._reap(worker)
            if all(worker.kept for worker in kept):  # ended, but the status comes a moment later
                select.poll().poll(_STATUS_MS)


def _is_kept_for(worker: _Worker, local_rank: int) -> bool:
    at_rank = worker.leaving is not None and worker.leaving.local_rank == local_rank
    return at_rank and worker.kept and worker.state.phase is Phase.KEPT


def _round_of(worker: WorkerStart) -> int:
    return int(worker.environment.get("ELASTIC_ROUND", "-1"))


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that differ with their new values; `None` removes one."""
    removed: dict[str, str | None] = dict.fromkeys(before.keys() - now.keys())
    return removed | {name: value for name, value in now.items() if before.get(name) != value}


def _difference(before: WorkerStart, now: WorkerStart, changed: Mapping[str, str | None]) -> str:
    """Return what a process would have to change although it can't, variables among it; empty if there is nothing."""
    if before.argv != now.argv:
        return "the command"
    if before.processors != now.processors:
        return "the set of its processors"
    if now.terminal:
        return "the terminal"
    lasting = changed.keys() - now.round_variables
    return f"its environment ({', '.join(sorted(lasting))})" if lasting else ""


def _is_stopped(pid: int) -> bool:
    """Return whether a signal such as SIGSTOP has stopped a process. The stop's own signals continue it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # it has ended
        return False
    return stat.rpartition(b")")[2].split()[:1] == [b"T"]


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _code_of(process: StartedProcess) -> int | None:
    """Reap a process that may have ended; return its exit code, `None` while it runs."""
    if process.reap is not None:
        return process.reap()
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return _LOST
    return os.waitstatus_to_exitcode(status) if pid else None
