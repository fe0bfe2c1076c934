"""All workers of this node: started together, watched, and stopped together with everything that they started."""

import os
import select
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import assert_never

from elastic_core.errors import IllegalEventError
from elastic_core.logger import Logger
from elastic_core.processes import ladder
from elastic_core.processes.errors.record_pipe import RecordPipes
from elastic_core.processes.output.disk import Disk, Lane
from elastic_core.processes.output.sink import Console
from elastic_core.processes.process import OomCounter, WorkerProcess, remnants_exist, spawn
from elastic_core.processes.procfs import ProcessStat
from elastic_core.processes.signals import UserSignals, catches
from elastic_core.processes.spec import WorkerLaunch
from elastic_core.processes.sweep import Sweeper, kill
from elastic_core.starters import LeavingWorker, WorkerStarter
from elastic_core.system.clock import SYSTEM_CLOCK
from elastic_core.system.reactor import Reactor, Timer
from elastic_core.types import WorkerExit


class _PendingExit:
    # The end of a worker or of a stop that must be reported in order.
    def __init__(self, report: Callable[[], None]) -> None:
        self.report = report
        self.ready = False


class WorkerGroup:
    """The workers of this node, with the stop ladder's actions.

    Args:
        reactor: The loop that watches the workers.
        console: The console of tee'd output.
        sweeper: Finds the processes that workers leave behind; it spares the processes of the starters.
        log: Prints lines for users.
        starters: The starters, called in this order before the group starts a worker itself; the caller closes them.
        disk: Writes log files; the caller closes it. `None` means that the group makes and closes its own.
        sent_to_all: As for `UserSignals`.
        read_ahead: Reads the files of an ended worker before its end is reported, and then calls its second argument.

    It can be started once it is attached, and again after a stop was reported. Threading: the reactor's thread.
    """

    def __init__(
        self,
        reactor: Reactor,
        *,
        console: Console,
        sweeper: Sweeper,
        log: Logger,
        starters: Sequence[WorkerStarter] = (),
        disk: Disk | None = None,
        sent_to_all: Callable[[int], bool] | None = None,
        read_ahead: Callable[[WorkerExit, Callable[[], None]], None] = lambda _, done: done(),
    ) -> None:
        self._reactor = reactor
        self._sinks = (console.stdout, console.stderr)
        self._disk = Disk(reactor, log=log) if disk is None else disk
        self._owns_disk = disk is None
        self._read_ahead = read_ahead
        self._log = log
        self._sweeper = sweeper
        self._starters = starters
        self._state = ladder.LadderState()
        self._workers: dict[int, WorkerProcess] = {}
        self._lost: list[WorkerProcess] = []
        self._left: dict[int, WorkerProcess] = {}
        """Workers that have left a round and have no place, by pid. The starter that keeps them reaps them."""
        self._placed: list[WorkerProcess] = []
        """The same with a place, as they were in an earlier round, whose streams may have open ends."""
        self._unswept = False  # a kept worker has ended since the last sweep
        self.kept_ranks: tuple[int, ...] = ()
        """The local ranks of this round's workers that have left an earlier one."""
        self._oom = OomCounter()
        self._timer: Timer | None = None
        self._poll: Timer | None = None
        self._looked: Timer | None = None
        self._finished = False  # a stop is done, and its end not reported yet
        self._denied: set[int] = set()
        self._record_pipes = RecordPipes(reactor, self._disk, self._on_record)
        self._user_signals = UserSignals(
            reactor,
            running=self._ready_for_signals,
            send=lambda pid, signum: self._permitted(pid, partial(self._workers[pid].send, signum)),
            log=log,
            sent_to_all=sent_to_all,
        )
        self._unreported: deque[_PendingExit] = deque()
        self._blind_noticed = False
        self._mixed: Mapping[int, tuple[ProcessStat, ...]] = {}

    def attach(
        self,
        *,
        on_exit: Callable[[WorkerExit], None],
        on_stopped: Callable[[], None],
        on_recorded: Callable[[WorkerExit], None] = lambda _: None,
    ) -> None:
        """Report to a supervisor, which is built after the group. Called: once, before the first `start`.

        Args:
            on_exit: Called once for each worker that ended, in the order in which the kernel reported them. The output
                that passed through the agent is in the worker's files by then, unless these are held up.
            on_stopped: Called once, however often a stop was ordered, when nothing is left of any worker; never from
                inside `stop`.
            on_recorded: Called once if a worker has recorded an uncaught exception, with an end as if it had ended
                then. The worker's own end may be reported before.
        """
        self._on_exit, self._on_stopped, self._on_recorded = on_exit, on_stopped, on_recorded

    # --- the workers

    @property
    def pids(self) -> Mapping[int, int]:
        """The pid of each worker that was started, by local rank."""
        return {worker.launch.local_rank: worker.pid for worker in self._workers.values()}

    @property
    def alive(self) -> frozenset[int]:
        """The local ranks of the workers that have not ended."""
        return frozenset(worker.launch.local_rank for worker in self._running())

    @property
    def raised_s(self) -> Mapping[int, float]:
        """When each live worker recorded an uncaught exception, by local rank; workers without one are left out."""
        return {each.launch.local_rank: each.raised_s for each in self._running() if each.raised_s is not None}

    @property
    def left_pids(self) -> frozenset[int]:
        """The pids of workers that have left a round and have no place in another."""
        return frozenset(pid for pid, worker in self._left.items() if not worker.given_up)

    def _running(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers.values() if not worker.ended and not worker.given_up]

    # --- start

    def prepare(self, error_files: Iterable[str]) -> None:
        """Make the record pipes beside these error files. Called: in a job of the disk, before `start`."""
        self._record_pipes.open_ahead(error_files)

    def start(self, launches: Iterable[WorkerLaunch]) -> None:
        """Start all workers.

        Raises:
            WorkerError: A worker could not be started. Those before it run until `stop`.
            IllegalEventError: The group was not stopped before.
        """
        if self._state.leaders or self._state.order is not None:
            raise IllegalEventError("workers of an earlier round are still there")
        if self._sweeper.blind and not self._blind_noticed:
            self._blind_noticed = True
            self._log.notice(
                "no /proc of this process namespace is mounted: what workers leave behind can't be found, and may "
                "survive them; Try: mount one"
            )
        self._forget_round()
        self._oom = OomCounter()
        launches = tuple(launches)
        if self._unswept:
            self._unswept = bool(self._kill_strays())
        try:
            for launch in launches:
                self._start_one(launch)
        finally:
            self._disk.forget_opened()
            self._record_pipes.forget_ahead()
            self._kill_left()  # beside their successors they would hold devices
        self._user_signals.begin_round()
        for starter in self._starters:
            starter.round_started()

    def _start_one(self, launch: WorkerLaunch) -> None:
        self._record_pipes.open(launch)
        with self._sweeper.marking():
            worker = spawn(
                launch,
                reactor=self._reactor,
                sinks=self._sinks,
                disk=self._disk,
                log=self._log,
                starters=self._starters,
            )
        self._sweeper.started(worker.pid)
        if (earlier := self._left.pop(worker.pid, None)) is not None:
            worker.follow(earlier)
            self.kept_ranks = (*self.kept_ranks, launch.local_rank)
            self._placed.append(earlier)
        self._workers[worker.pid] = worker
        self._advance(ladder.LeaderStarted(pid=worker.pid, group=worker.leads_group))
        if not worker.watch(self._reactor, partial(self._collect, worker, self._on_exit)):
            self._poll_unless_signalled(worker)

    def _on_record(self, pid: int, local_rank: int) -> None:
        worker = self._workers.get(pid)
        if worker is not None and worker.launch.local_rank == local_rank:
            worker.raised_s = self._reactor.now_s()
            at_ns, at_s = SYSTEM_CLOCK.wall_ns(), SYSTEM_CLOCK.monotonic_s()
            exit_ = self._exit_of(worker, 1, at_s=at_s, at_ns=at_ns)
            self._read_ahead(exit_, partial(self._on_recorded, exit_))

    def _forget_round(self) -> None:
        # A worker that was given up is still reaped if it ends later.
        self._record_pipes.close()
        self._lost = [worker for worker in (*self._lost, *self._workers.values()) if not worker.ended]
        self._workers.clear()
        self._denied.clear()
        self._placed = [worker for worker in self._placed if worker.streams]
        self.kept_ranks = ()

    def _poll_unless_signalled(self, worker: WorkerProcess) -> None:
        # Without pidfds the loop calls `reap` on SIGCHLD. Only the main thread gets signals, and only for our own
        # children; otherwise the group polls.
        in_main = threading.current_thread() is threading.main_thread()
        if self._poll is None and not (in_main and worker.signals_end):
            self._poll = self._reactor.call_later(_POLL_S, self._on_poll)

    def _on_poll(self) -> None:
        self._poll = None
        self.reap()
        for worker in self._running():
            if worker.pidfd is None:
                self._poll_unless_signalled(worker)

    # --- ends

    def reap(self) -> None:
        """Reap ended workers. Called: on SIGCHLD; needed only if the kernel has no pidfds."""
        for worker in (*self._workers.values(), *self._lost):
            if worker.pidfd is None and not worker.ended:
                self._collect(worker, self._on_exit)

    def _collect(self, worker: WorkerProcess, report: Callable[[WorkerExit], None]) -> None:
        at_ns, at_s = SYSTEM_CLOCK.wall_ns(), SYSTEM_CLOCK.monotonic_s()
        code = worker.reap()
        if code is None:
            return
        # At once: the kernel can give the number of an empty group to a new process.
        remnants = worker.has_remnants()
        if worker.leads_group:
            self._sweeper.ended(worker.pid)
        worker.unwatch(self._reactor)
        # The ladder gave this worker up, and its end was reported then: it left the kernel only now.
        if worker.given_up:
            return
        worker.drain()
        exit_ = self._exit_of(worker, code, at_s=at_s, at_ns=at_ns)
        self._advance(ladder.LeaderEnded(pid=worker.pid, remnants=remnants))
        self._once_written(worker.lanes, exit_, partial(report, exit_))

    def _once_written(self, lanes: list[Lane], exit: WorkerExit | None, report: Callable[[], None]) -> None:
        # Reports when these lanes are empty or held up, the files of `exit` are read, and earlier ends are reported.
        end = _PendingExit(report)
        self._unreported.append(end)

        def written() -> None:
            if exit is None:
                self._report_in_order(end)
            else:
                self._read_ahead(exit, partial(self._report_in_order, end))

        self._disk.when_written(lanes, written, within_s=WRITTEN_S)

    def _report_in_order(self, end: "_PendingExit") -> None:
        end.ready = True
        while self._unreported and self._unreported[0].ready:
            self._unreported.popleft().report()

    def _exit_of(
        self, worker: WorkerProcess, code: int, *, at_s: float, at_ns: int, unreapable: bool = False
    ) -> WorkerExit:
        return WorkerExit(
            local_rank=worker.launch.local_rank,
            global_rank=worker.launch.global_rank,
            pid=worker.pid,
            code=code,
            at_s=at_s,
            at_ns=at_ns,
            runtime_s=self._reactor.now_s() - worker.started_s,
            stop_signal=worker.stop_signal,
            stop_sent_ns=worker.stop_sent_ns,
            oom_kills=self._oom.kills() if code == -signal.SIGKILL else 0,
            unreapable=unreapable,
        )

    def _post_exit(self, exit_: WorkerExit) -> None:
        self._reactor.post(partial(self._on_exit, exit_))

    # --- stop

    def stop(self, signum: int, *, grace_s: float, may_leave: bool = False, planned: bool = False) -> None:
        """Signal all workers' process groups, KILL them after `grace_s`, reap them, and end what they left behind.

        With `may_leave`, a worker that a starter asks to leave is not signalled before it stays, or half of that time
        is over. One that has left is no worker any more: its process runs on, and its end is not reported. `planned` is
        for starters: no worker has failed.
        Without a live worker, only the last step remains. A second call can shorten the grace period. If no process is
        left, it has no effect, and `on_stopped` is called soon.
        """
        asks = may_leave and grace_s > 0 and bool(self._starters) and self._state.order is None
        if self._order_stop(ladder.StopBegun(signum=signum, grace_s=grace_s, may_leave=asks)) and asks:
            running = self._running()
            within_s = max(0.0, grace_s) * ladder.LEAVE_SHARE
            asked = {worker.pid for worker in running if self._ask_to_leave(worker, within_s, planned)}
            self._advance(ladder.LeadersStay(pids=frozenset(worker.pid for worker in running) - asked))
            for pid in asked & self._workers.keys():
                self._workers[pid].note_stop(signum)  # an end from here on is the stop's

    def _ask_to_leave(self, worker: WorkerProcess, within_s: float, planned: bool) -> bool:
        # One that has recorded an exception is ending, and a function's process serves one call.
        if worker.raised_s is not None or not worker.leads_group or worker.launch.function:
            return False
        leaving = LeavingWorker(
            worker.process,
            worker.launch.local_rank,
            left=partial(self._leave, worker),
            stays=lambda: self._advance(ladder.LeadersStay(pids=frozenset({worker.pid}))),
            ended=partial(self._left_ended, worker),
        )
        return any(starter.keep(leaving, within_s=within_s, planned=planned) for starter in self._starters)

    def _leave(self, worker: WorkerProcess) -> bool:
        if worker.pid in self._workers and not worker.ended:
            self._collect(worker, self._post_exit)
        if not any(le.pid == worker.pid and le.leave_by_s is not None for le in self._state.leaders):
            return False
        worker.unwatch(self._reactor)
        self._left[worker.pid] = self._workers.pop(worker.pid)
        self._advance(ladder.LeaderLeft(pid=worker.pid))
        return True

    def _left_ended(self, worker: WorkerProcess) -> None:
        self._left.pop(worker.pid, None)
        self._unswept = True
        worker.drain()
        worker.finish()

    def forbid_leaving(self) -> None:
        """Signal the workers that were asked to leave and have not left."""
        self._advance(ladder.LeadersStay())

    def kill(self) -> None:
        """KILL all workers now. If no stop was ordered, this is one."""
        self._order_stop(ladder.KillOrdered())

    def _order_stop(self, order: ladder.StopBegun | ladder.KillOrdered) -> bool:
        if self._finished:
            return False
        for starter in self._starters:
            starter.round_stopping()
        # A worker that has ended by itself must not count as stopped by the agent.
        for worker in self._running():
            self._collect(worker, self._post_exit)
        self._advance(order)
        return True

    def forward(self, signum: int) -> None:
        """Pass a user's signal on to each worker process, not to its group (`signals`)."""
        self._user_signals.forward(signum)

    def suspend(self) -> None:
        """Stop all workers with their process groups: by SIGSTOP, or by SIGTSTP if the worker catches that.

        The kernel ignores the default action of SIGTSTP in a session without a shell, such as a worker's.
        """
        for worker in self._running():
            signum = signal.SIGTSTP if catches(worker.pid, signal.SIGTSTP) else signal.SIGSTOP
            self._send_to_own_group(worker, signum)

    def resume(self) -> None:
        """Continue suspended workers."""
        for worker in self._running():
            self._send_to_own_group(worker, signal.SIGCONT)

    def _send_to_own_group(self, worker: WorkerProcess, signum: int) -> None:
        if worker.leads_group:  # if not, the worker gets the signals of the terminal itself
            self._permitted(worker.pid, partial(worker.send_group, signum))

    def _ready_for_signals(self) -> dict[int, int]:
        return {} if self._state.order is not None else {w.pid: w.launch.local_rank for w in self._running()}

    def send(self, local_rank: int, signum: int) -> None:
        """End one live worker with a signal to its process alone; its end counts as ordered, as in a stop of all."""
        for worker in self._running():
            if worker.launch.local_rank == local_rank:
                worker.note_stop(signum)
                self._permitted(worker.pid, partial(_send_and_continue, worker.send, signum))

    def _advance(self, event: ladder.LadderEvent) -> None:
        step = ladder.advance(self._state, event, now_s=self._reactor.now_s())
        self._state = step.state
        self._mixed = self._sweeper.mixed_groups(
            {action.pid for action in step.actions if isinstance(action, ladder.SignalLeader) and action.group}
            | {action.pgid for action in step.actions if isinstance(action, ladder.SignalRemnants)}
        )
        for action in step.actions:
            self._perform(action)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._state.due_s
        if due_s is not None:
            self._timer = self._reactor.call_later(due_s - self._reactor.now_s(), self._on_due)

    def _on_due(self) -> None:
        self._timer = None
        self._advance(ladder.Woke())

    def _perform(self, action: ladder.LadderAction) -> None:
        match action:
            case ladder.SignalLeader(pid=pid, signum=signum, group=group):
                self._signal_leader(self._workers[pid], signum, group=group)
            case ladder.SignalRemnants(pgid=pgid, signum=signum):
                # The group can have emptied since, and its number can be another process's by now.
                if remnants_exist(pgid):
                    self._permitted(pgid, lambda: _send_and_continue(partial(self._send_group, pgid, None), signum))
            case ladder.SignalStray(found=found, signum=signum):
                _send_and_continue(partial(self._sweeper.send, found), signum)
            case ladder.GiveUpLeader(pid=pid):
                self._give_up(self._workers[pid])
            case ladder.GiveUpStray(found=found):
                self._log.notice(f"process {found.pid}, started by a worker, {_UNKILLABLE}")
            case ladder.Look():
                self._look()
            case ladder.Finished():
                self._finish()
            case _ as never:
                assert_never(never)

    def _signal_leader(self, worker: WorkerProcess, signum: int, *, group: bool) -> None:
        worker.note_stop(signum)
        send = partial(self._send_group, worker.pid, worker) if group else worker.send
        self._permitted(worker.pid, lambda: _send_and_continue(send, signum))

    def _send_group(self, pgid: int, leader: WorkerProcess | None, signum: int) -> None:
        # The whole group, unless some of its processes are to be kept.
        others = self._mixed.get(pgid)
        if others is None:
            os.killpg(pgid, signum)
            return
        for stat in others:
            kill(stat.pid, stat.start_ticks, signum)
        if leader is not None:
            leader.send(signum)

    def _permitted(self, pid: int, send: Callable[[], None]) -> None:
        try:
            send()
        except ProcessLookupError:
            return
        except PermissionError:
            if pid not in self._denied:
                self._denied.add(pid)
                self._log.notice(
                    f"may not signal worker process {pid}: it runs as another user now; Try: end it yourself"
                )

    def _give_up(self, worker: WorkerProcess) -> None:
        worker.given_up = True
        rank = worker.launch.local_rank
        self._log.notice(f"worker with local rank {rank} (pid {worker.pid}) {_UNKILLABLE}")
        at_ns, at_s = SYSTEM_CLOCK.wall_ns(), SYSTEM_CLOCK.monotonic_s()
        self._post_exit(self._exit_of(worker, -signal.SIGKILL, at_s=at_s, at_ns=at_ns, unreapable=True))

    # --- sweep

    def _look(self) -> None:
        workers = [worker.pid for worker in self._workers.values() if worker.leads_group and not worker.ended]
        abandoned = [*(found.pid for found in self._state.abandoned), *self._left]
        # As an event of its own, at the next turn: an answer inside the step that requested it would nest steps.
        found = self._sweeper.look(workers=workers, abandoned=abandoned)
        if self._looked is not None:
            self._looked.cancel()
        self._looked = self._reactor.call_later(0.0, partial(self._advance, ladder.Looked(found=found)))

    def _kill_strays(self) -> bool:
        # Whether there was anything to kill.
        found = self._sweeper.look(workers=(), abandoned=tuple(self.left_pids))
        for each in found:
            self._sweeper.send(each, signal.SIGKILL)
        return bool(found)

    def _kill_left(self) -> None:
        # Only signalled: their starter waits for their status, and until it has it, their numbers are not reused.
        self._unswept = self._unswept or bool(self._left)
        for worker in self._left.values():
            worker.given_up = True
            self._permitted(worker.pid, partial(worker.send_group, signal.SIGKILL))

    def end_left(self) -> None:
        """KILL workers that have left a round, and what such workers left behind. Called: after the starters' `close`.

        Blocks for a second at the most.
        """
        self._kill_left()
        if not self._unswept:
            return
        end_s, clear_looks = SYSTEM_CLOCK.monotonic_s() + _LAST_SWEEP_S, 0
        while clear_looks < ladder.CLEAR_LOOKS and SYSTEM_CLOCK.monotonic_s() < end_s:
            clear_looks = 0 if self._kill_strays() else clear_looks + 1
            select.poll().poll(_LAST_LOOKS_MS)
        self._unswept = False
        for worker in self._left.values():
            worker.reap()  # no starter is left that would

    def _finish(self) -> None:
        self._unswept = False
        self._record_pipes.close()
        for worker in self._workers.values():
            worker.finish()
        self.reap_adopted()
        lanes = [lane for worker in self._workers.values() for lane in worker.lanes]
        self._finished = True
        # As an event of its own: ends of workers that this stop has posted are reported before it.
        self._once_written(lanes, None, lambda: self._reactor.post(self._report_stopped))

    def _report_stopped(self) -> None:
        self._finished = False
        self._on_stopped()

    def left_running(self) -> tuple[str, ...]:
        """Return the processes that workers left on purpose (`ELASTIC_KEEP=1`) and that run, as number and name."""
        return self._sweeper.left_running()

    def reap_adopted(self) -> None:
        """Reap ended orphans that workers left to us as a subreaper. Called: on SIGCHLD, if at all."""
        self._sweeper.reap_adopted(workers=[*self._workers, *self._left])

    def close(self) -> None:
        """Close every descriptor. A worker that still runs gets KILL, and is not waited for."""
        self._record_pipes.close()
        self._record_pipes.forget_ahead()
        if self._looked is not None:
            self._looked.cancel()
        for worker in (*self._left.values(), *self._placed):
            worker.finish()
        for worker in (*self._workers.values(), *self._lost):
            if worker.reap() is None:
                send = worker.send_group if worker.leads_group else worker.send
                self._permitted(worker.pid, partial(send, signal.SIGKILL))
                worker.reap()
                worker.disown()
            worker.unwatch(self._reactor)
            worker.finish()
        self._unreported.clear()
        if self._owns_disk:
            self._disk.close()
        self._workers.clear()
        self._lost.clear()
        self._state = ladder.LadderState()
        self._set_timer()
        if self._poll is not None:
            self._poll.cancel()


_POLL_S = 0.1
_LAST_SWEEP_S = 1.0
_LAST_LOOKS_MS = 5
WRITTEN_S = 1.0
"""How long the report of a worker's end waits for its output to be in its files, which are read then."""
_UNKILLABLE = "does not end after SIGKILL (a hung device or file system holds it in the kernel); the run continues"


def _send_and_continue(send: Callable[[int], None], signum: int) -> None:
    # A stopped process must continue to act on a signal.
    send(signum)
    if signum != signal.SIGKILL:
        send(signal.SIGCONT)
