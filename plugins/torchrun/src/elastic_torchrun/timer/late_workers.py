"""The handling of workers with expired timers: stacks are taken, the policy decides, and the workers are signalled."""

import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from elastic_core.api import (
    SYSTEM_CLOCK,
    Clock,
    ElasticError,
    ErrorRecord,
    Failure,
    FailureClass,
    FailureReport,
    Record,
    Round,
    RunHandle,
    RunningWorker,
    RunTimer,
    WorkerFault,
    decode_json,
)
from elastic_core.api.tools import rank_ranges
from elastic_torchrun.proc import state_and_wait
from elastic_torchrun.timer.file_request import FileTimerRequest
from elastic_torchrun.timer.worker_timers import Overdue

STACKS_WITHIN_S: Final = 2.0
"""How long a worker may take to report its stack."""
AGAIN_S: Final = 0.2
MOST_RANKS: Final = 16
"""The number of ranks in the incident, the first causes first; the incident passes through the store."""
KEPT_FOLDERS: Final = 64
_LONGEST_SCOPE: Final = 120

EXPIRED: Final = "timer expired"
KILLED: Final = "kill worker process"


class Stack(Record, frozen=True, kw_only=True):
    """The Python stacks of one worker, from elastic-watch."""

    text: str = ""
    source: str = ""
    place: str = ""
    frames: tuple[tuple[str, int, str, str], ...] = ()


class Stacks(Record, frozen=True, kw_only=True):
    """The response of elastic-watch's hook, by local rank."""

    workers: Mapping[int, Stack] = {}


class LateWorkers:
    """Handles expired timers, and ends their workers unless they request no signal.

    Args:
        run: The run's handle.
        folder: Folder for stacks, with one subfolder for each time.
        clock: The host's.

    Threading: one thread, the hooks'.
    """

    def __init__(self, run: RunHandle, *, folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._run = run
        self._folder = folder
        self._clock = clock
        self._round: Round | None = None
        self._late: dict[int, tuple[Overdue, float]] = {}
        self._summaries: set[str] = set()
        """Of what was reported, and not taken yet as far as is known."""
        self._waits = False
        self._timer: RunTimer | None = None
        self._episode = 0
        self._folders: deque[Path] = deque()

    def begin(self, round_: Round) -> None:
        """Use the round whose workers were just started."""
        self.end()
        self._round = round_

    def ended(self, local_rank: int) -> None:
        """Forget a worker that has ended."""
        self._late.pop(local_rank, None)

    def end(self) -> None:
        """Ignore all workers; they are being stopped."""
        self._late = {}
        self._cancel()

    def take(self, found: tuple[Overdue, ...]) -> None:
        """Handle expired timers, the earliest first. For each worker, the first one with a signal counts."""
        running = {worker.local_rank: worker for worker in self._run.workers()}
        for each in found:
            worker = running.get(each.local_rank)
            if worker is None or each.local_rank in self._late:
                continue
            record(self._run, EXPIRED, each.request)
            if each.request.signal > 0:
                self._late[each.local_rank] = (each, self._clock.monotonic_s() - each.late_s)
            else:
                scope, rank = _shown(each.request), worker.global_rank
                self._run.notice(
                    f"rank {rank} is over its time for {scope}, and goes on: it has asked for no signal", named=False
                )
        if self._late and not self._waits:
            self._waits = True
            episode = self._episode = self._episode + 1
            self._timer = self._run.call_later(STACKS_WITHIN_S, lambda: self._report_first(episode, {}))
            threading.Thread(target=self._take_stacks, args=(episode,), name="timer-stacks", daemon=True).start()

    def _take_stacks(self, episode: int) -> None:
        """Have stacks taken, and report with them. Threading: its own thread, since it waits for the workers."""
        stacks: Mapping[int, Stack] = {}
        with suppress(ElasticError, KeyError, ValueError):  # no elastic-watch, or one of another version
            stacks = decode_json(self._run.offers()["stacks"]({}).content, Stacks).workers
        self._run.call_later(0.0, lambda: self._report_first(episode, stacks))

    def taken(self, failure: Failure) -> None:
        """Note that a failure is being decided. If it is from a timer, signal its workers."""
        if failure.summary in self._summaries:
            late, self._late = self._late, {}
            for each, _ in late.values():
                record(self._run, KILLED, each.request)
            self._cancel()

    def _cancel(self) -> None:
        self._waits = False
        self._summaries = set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- the report

    def _report_first(self, episode: int, stacks: Mapping[int, Stack]) -> None:
        """Report with the stacks, or without them if they take too long."""
        if self._waits and episode == self._episode and not self._summaries:
            self._report(stacks, self._written(stacks))

    def _report(self, stacks: Mapping[int, Stack], folder: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._late or self._round is None:
            self._cancel()
            return
        now_s = self._clock.monotonic_s()
        late_s = {rank: now_s - due_s for rank, (_, due_s) in self._late.items()}
        report = self._made(self._round, late_s, stacks, folder)
        self._summaries.add(report.summary)
        self._run.report(report)
        # Left alone while something else is being decided: what is still true is reported again.
        self._timer = self._run.call_later(AGAIN_S, lambda: self._report(stacks, folder))

    def _made(
        self, round_: Round, late_s: Mapping[int, float], stacks: Mapping[int, Stack], folder: str
    ) -> FailureReport:
        summary = self._summary(round_, late_s, stacks)
        running = sorted(self._run.workers(), key=lambda each: (each.local_rank not in late_s, each.local_rank))
        ranks = [
            _seen(each, stacks.get(each.local_rank, Stack()), late_s.get(each.local_rank), bool(folder))
            for each in running[:MOST_RANKS]
        ]
        first = self._late[next(iter(late_s))][0]
        return FailureReport(
            summary=summary,
            failure_class=FailureClass.HANG,
            workers=tuple(
                WorkerFault(
                    local_rank=rank,
                    quiet_s=quiet_s,
                    error=_stands(stacks.get(rank, Stack()), summary),
                    signal=self._late[rank][0].request.signal,
                )
                for rank, quiet_s in late_s.items()
            ),
            fields={"hang": {"ranks": ranks, "section": first.request.scope_id, "stacks": folder}},
        )

    def _summary(self, round_: Round, late_s: Mapping[int, float], stacks: Mapping[int, Stack]) -> str:
        first = next(iter(late_s))
        scope = _shown(self._late[first][0].request)
        place = stacks.get(first, Stack()).place
        several = len(late_s) > 1
        who = f"rank{'s' if several else ''} {rank_ranges(round_.global_rank(rank) for rank in late_s)}"
        whose, verb = ("their", "are") if several else ("its", "is")
        where = f", in {place}" if place else ""
        return f"{who} {verb} over {whose} time for {scope} by {late_s[first]:.3g} s{where}"

    def _written(self, stacks: Mapping[int, Stack]) -> str:
        """Write each worker's stacks to a file, and return their folder; empty if there are none."""
        if not stacks or self._round is None:
            return ""
        folder = self._folder / f"round_{self._round.index}_timer_{self._episode}"
        try:
            folder.parent.mkdir(0o700, exist_ok=True)
            folder.mkdir(0o700)
            for worker in self._run.workers():
                text = stacks.get(worker.local_rank, Stack()).text or "no stack was to be had"
                _file(folder, worker).write_text(f"{_headline(worker)}\n{text}\n\n", encoding="utf-8")
            self._forget_old(folder)
        except OSError as err:
            self._run.notice(f"stacks can't be written to {str(folder)!r}: {err.strerror}", named=False)
            return ""
        return str(folder)

    def _forget_old(self, folder: Path) -> None:
        """Keep the first folder and the last ones: a run may last for weeks."""
        self._folders.append(folder)
        if len(self._folders) > KEPT_FOLDERS:
            old = self._folders[1]
            del self._folders[1]
            with suppress(OSError):  # a cleaner was first, or something else lies in it
                for file in old.iterdir():
                    file.unlink()
                old.rmdir()


def record(run: RunHandle, name: str, request: FileTimerRequest | None = None) -> None:
    """Record the watchdog's actions as events, under torch's names and with torch's metadata, which is text."""
    fields = {"watchdog_event": name}
    if request is not None:
        fields |= {
            "worker_pid": str(request.worker_pid),
            "scope_id": request.scope_id,
            "expiration_time": str(request.expiration_time),
            "signal": str(request.signal),
        }
    run.record(name, fields)


def _seen(worker: RunningWorker, stack: Stack, late_s: float | None, has_file: bool) -> dict[str, object]:
    state, wait = state_and_wait(worker.pid)
    return {
        "global_rank": worker.global_rank,
        "blamed": late_s is not None,
        "quiet_s": late_s,
        "state": state,
        "wait": wait,
        "place": stack.place,
        "stacks": _file(Path(), worker).name if has_file else "",
    }


def _stands(stack: Stack, summary: str) -> ErrorRecord | None:
    if not stack.frames:
        return None
    return ErrorRecord(source=stack.source, type="Hang", message=summary, timestamp_ns=0, frames=stack.frames)


def _file(folder: Path, worker: RunningWorker) -> Path:
    return folder / f"rank_{worker.global_rank}.txt"


def _headline(worker: RunningWorker) -> str:
    state, wait = state_and_wait(worker.pid)
    parts = [f"rank {worker.global_rank} (local rank {worker.local_rank}), pid {worker.pid}"]
    if state:
        parts.append(f"state {state}" + (f" in {wait}" if wait else ""))
    return ", ".join(parts)


def _shown(request: FileTimerRequest) -> str:
    scope = request.scope_id
    return repr(scope if len(scope) <= _LONGEST_SCOPE else f"…{scope[-_LONGEST_SCOPE:]}")
