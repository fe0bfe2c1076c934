"""What becomes of a worker whose timer has run down: its stacks are kept, the policy is told, and it is signalled."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from elastic_core.agent.watch.hang_detector import Late, Stall
from elastic_core.agent.watch.hang_report import HangReport, RankReport
from elastic_core.agent.watch.stack_collector import StackFile, StackRequest
from elastic_core.agent.watch.stack_files import write_stacks
from elastic_core.agent.watch.timer_watch import Overdue
from elastic_core.failure.report import ranges
from elastic_core.processes import vitals
from elastic_core.reactor import Reactor, Timer
from elastic_core.reports import WorkerStack
from elastic_core.timer.file_request import FileTimerRequest
from elastic_core.types import Round

STACKS_WITHIN_S: Final = 2.0
"""A worker that can't say where it is is not waited for any longer."""
AGAIN_S: Final = 0.2
_LONGEST_SCOPE: Final = 120

EXPIRED: Final = "timer expired"
KILLED: Final = "kill worker process"


class TimerExpiry:
    """Takes overdue timers, and ends their workers unless they ask for no signal.

    Args:
        reactor: The loop.
        folder: Where stacks go, into a folder for each time.
        sources: Returns for each live worker its pid, that of the process to look at, and where it writes its stacks.
        on_hang: Gets what makes the report, and what signals the workers, and calls both before anything is decided.
            False: something else is being decided, neither was called, and it may be asked again.
        send: Signals a worker, by local rank.
        heard: Takes what happens, by torch's names, and the request that it is about.
        notice: Takes one line for people.

    Threading: the reactor's thread.
    """

    def __init__(
        self,
        reactor: Reactor,
        *,
        folder: Path,
        sources: Callable[[], Mapping[int, tuple[int, int, StackFile | None]]],
        on_hang: Callable[[Callable[[], HangReport], Callable[[], None]], bool],
        send: Callable[[int, int], None],
        heard: Callable[[str, FileTimerRequest], None],
        notice: Callable[[str], None],
    ) -> None:
        """Wait for nothing yet."""
        self._reactor = reactor
        self._folder = folder
        self._sources = sources
        self._on_hang = on_hang
        self._send = send
        self._heard = heard
        self._notice = notice
        self._round: Round | None = None
        self._began_s = 0.0
        self._late: dict[int, tuple[Overdue, float]] = {}
        self._request: StackRequest | None = None
        self._timer: Timer | None = None
        self._episode = 0

    def begin(self, round_: Round) -> None:
        """Take the round whose workers were just started."""
        self.end()
        self._round, self._began_s = round_, self._reactor.now_s()

    def ended(self, local_rank: int) -> None:
        """Forget a worker that has ended."""
        self._late.pop(local_rank, None)

    def end(self) -> None:
        """Leave all workers alone; they are being stopped."""
        self._late = {}
        self._cancel()

    def helpers(self) -> frozenset[int]:
        """Return the pids of what was started to get stacks."""
        return frozenset() if self._request is None else self._request.helpers()

    def take(self, found: tuple[Overdue, ...]) -> None:
        """Take timers that have run down, the earliest first; of each worker, the first with a signal counts."""
        for each in found:
            if each.local_rank in self._late:
                continue
            self._heard(EXPIRED, each.request)
            if each.request.signal > 0:
                self._late[each.local_rank] = (each, self._reactor.now_s() - each.late_s)
            else:
                rank = self._global(each.local_rank)
                scope = _shown(each.request)
                self._notice(f"rank {rank} is over its time for {scope}, and goes on: it has asked for no signal")
        if self._late and self._request is None and self._timer is None:
            self._request = StackRequest(self._reactor, self._sources(), on_done=self._end_all)
            self._timer = self._reactor.call_later(STACKS_WITHIN_S, lambda: self._end_all({}))

    def _end_all(self, stacks: Mapping[int, WorkerStack]) -> None:
        self._cancel()
        if self._late and not self._on_hang(lambda: self._report(stacks), self._signal_all):
            self._timer = self._reactor.call_later(AGAIN_S, lambda: self._end_all(stacks))

    def _signal_all(self) -> None:
        late, self._late = self._late, {}
        for rank, (each, _) in late.items():
            self._send(rank, each.request.signal)
            self._heard(KILLED, each.request)

    def _cancel(self) -> None:
        if self._request is not None:
            self._request.cancel()
            self._request = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- the report

    def _report(self, stacks: Mapping[int, WorkerStack]) -> HangReport:
        assert self._round is not None
        now_s = self._reactor.now_s()
        late_s = {rank: now_s - due_s for rank, (_, due_s) in self._late.items()}
        ranks = tuple(
            self._seen(rank, pid, stacks.get(rank, WorkerStack()), late_s.get(rank))
            for rank, (pid, _, _) in sorted(self._sources().items())
        )
        folder, ranks = self._write(ranks, stacks)
        first = self._late[next(iter(self._late))][0]
        return HangReport(
            stall=Stall(
                late=tuple(
                    Late(local_rank=rank, quiet_s=quiet_s, step=None, begun=True) for rank, quiet_s in late_s.items()
                ),
                by_beats=False,
                section=first.request.scope_id,
                hung=True,
            ),
            round_index=self._round.index,
            uptime_s=now_s - self._began_s,
            ranks=ranks,
            blamed=tuple(late_s),
            folder=folder,
            told=self._summary(ranks, late_s),
        )

    def _summary(self, ranks: tuple[RankReport, ...], late_s: Mapping[int, float]) -> str:
        first = next(iter(late_s))
        scope = _shown(self._late[first][0].request)
        place = next((each.place for each in ranks if each.local_rank == first), "")
        several = len(late_s) > 1
        who = f"rank{'s' if several else ''} {ranges(self._global(rank) for rank in late_s)}"
        whose, verb = ("their", "are") if several else ("its", "is")
        where = f", in {place}" if place else ""
        return f"{who} {verb} over {whose} time for {scope} by {late_s[first]:.3g} s{where}"

    def _seen(self, rank: int, pid: int, stacks: WorkerStack, late_s: float | None) -> RankReport:
        seen = vitals.look_at(pid)
        return RankReport(
            local_rank=rank,
            global_rank=self._global(rank),
            pid=pid,
            quiet_s=late_s,
            state="" if seen is None else seen.state,
            wait="" if seen is None else seen.wait,
            frames=stacks.frames,
            source=stacks.source,
        )

    def _global(self, local_rank: int) -> int:
        assert self._round is not None
        return self._round.global_rank(local_rank)

    def _write(
        self, ranks: tuple[RankReport, ...], stacks: Mapping[int, WorkerStack]
    ) -> tuple[str, tuple[RankReport, ...]]:
        if not stacks or self._round is None:
            return "", ranks
        self._episode += 1
        folder = self._folder / f"round_{self._round.index}_timer_{self._episode}"
        try:
            return str(folder), write_stacks(folder, ranks, stacks)
        except OSError as err:
            self._notice(f"stacks can't be written to {str(folder)!r}: {err.strerror}")
            return "", ranks


def _shown(request: FileTimerRequest) -> str:
    scope = request.scope_id
    return repr(scope if len(scope) <= _LONGEST_SCOPE else f"…{scope[-_LONGEST_SCOPE:]}")
