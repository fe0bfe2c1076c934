"""Records one agent's ledger: reads the workers' progress, writes the file, publishes fields and metrics."""

import os
import threading
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, Clock, HookSettings, Round, RunHandle, RunTimer
from elastic_core.api.feed import RunEvent
from elastic_report.ledger.accounting import Accounting
from elastic_report.ledger.document import Alive, Begin, Line
from elastic_report.ledger.facts import machine, process_age_s, versions
from elastic_report.ledger.hook import LEDGER
from elastic_report.ledger.progress import OFFERS, WorkerProgress, merged, progress_of
from elastic_report.ledger.states import LedgerState as S
from elastic_report.ledger.totals import Totals
from elastic_report.ledger.writer import LedgerFile

TOPIC: Final = "ledger-high-step"
"""The number on which the nodes of a round agree: one more than the highest step that they know."""
SOON_S: Final = 10.0
"""When the progress of a round is read first: users look at a run that has just begun, and it may be killed early."""
TICK_S: Final = 60.0
"""The interval of reading the progress while workers run."""
CLOSE_S: Final = 2.5
MOST_OPTIONS: Final = 400
MOST_AGE_S: Final = 60.0
"""If the process is older at the agent's start, another program ran in it before: its time is not the agent's."""
_VALUE_CHARS: Final = 400
_GROUP: Final = "elastic"


def begin_line(settings: HookSettings, run: RunHandle, first: RunEvent, *, high_step: int | None = None) -> Begin:
    """Return the first line of the ledger of this process, whose first event is given."""
    node_id, pid = str(first.values.get("node_id") or settings.node_id), first.values.get("pid")
    age_s = process_age_s() if settings.own_process else 0.0
    age_s -= max(0.0, SYSTEM_CLOCK.monotonic_s() - first.at_s)  # read last: an age must never be too large
    age_s = age_s if 0 < age_s < MOST_AGE_S else 0.0
    return Begin(
        run_id=settings.run_id,
        node_id=node_id,
        host=os.uname().nodename,
        incarnation=settings.incarnation,
        pid=pid if isinstance(pid, int) else os.getpid(),
        started_s=first.at_s - age_s,
        started_ns=first.at_ns - round(age_s * 1e9),
        backend=settings.backend,
        script=settings.entry_point,
        role=settings.role,
        local_world_size=settings.local_world_size,
        high_step=high_step,
        options=tuple(
            (each.name, each.value[:_VALUE_CHARS], each.origin[:_VALUE_CHARS]) for each in run.options()[:MOST_OPTIONS]
        ),
        versions=versions(),
        machine=machine(),
    )


class Recorder:
    """The ledger of one agent. Threading: any; calls wait for each other, and for no disk.

    Args:
        begin: The ledger's first line.
        run: The run's handle.
        clock: This node's.
    """

    def __init__(self, begin: Begin, run: RunHandle, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._run = run
        self._clock = clock
        self._lock = threading.RLock()
        self._file = LedgerFile(
            begin,
            run_dir=run.run_dir,
            record_dir=run.record_dir,
            notice=lambda text: run.notice(text, named=False),
            changed=self.publish,
        )
        # The rest is guarded by the lock.
        self._accounting = Accounting(started_s=begin.started_s, started_ns=begin.started_ns, high_step=begin.high_step)
        self._accounting.tally.add(begin)
        self._stopped = False
        self._timer: RunTimer | None = None
        self._soon: RunTimer | None = None
        self._shown: tuple[S, int | None] | None = None
        self._published: dict[str, float] = {}
        self._above: int | None = None
        # Progress that was read before its hook prepared the next round, by the round's number.
        self._kept: dict[int, Mapping[int, WorkerProgress]] = {}
        self._read_round: int | None = None
        self._rate: float | None = None
        self._last: tuple[int, float] | None = None

    def warm(self) -> None:
        """Have other hooks load what they need for their workers' progress, so that the run's end does not wait."""
        self._progress()

    # --- the feed

    def observe(self, events: Iterable[RunEvent], *, late: bool = False) -> None:
        """Apply the next events. `late` means that they were kept for a while: the agent may have ended since."""
        with self._lock:
            for event in events:
                self._observe(event)
                if event.name == "agent_stopped":
                    self._stopped = True
                    if not late:
                        # The agent executes no request any more, but its feed is open: readers get the final values.
                        self._run.record("fields_published", {"hook": LEDGER, "fields": self._fields()})
                        self._record_metrics()
            self._write()

    def _observe(self, event: RunEvent) -> None:
        accounting = self._accounting
        accounting.observe(event)
        match event.name, event.values:
            case "workers_started", {"round": Round()}:
                self._start_round()
            case "agreed", {"topic": topic, "value": int(value)} if topic == TOPIC:
                accounting.agreed(value - 1 if value > 0 else None)
                self._set_above()
            case "queued", {"since_ns": int(since_ns), **more} if since_ns > 0:
                self._set_queued(since_ns, str(more.get("job", "")))
        if accounting.wants_progress and accounting.round is not None:
            self._finish_round(accounting.round)

    def _write(self) -> None:
        """Have new lines written; a change of the state is published by the same thread."""
        lines: list[Line] = self._accounting.take()
        shown = (self._accounting.state, self._accounting.round)
        if lines or shown != self._shown:
            self._shown = shown
            self._file.add(lines)

    def _set_queued(self, since_ns: int, job: str) -> None:
        begin = self._file.begin
        if not begin.queued_ns and since_ns < begin.started_ns:
            begin = replace(begin, queued_ns=since_ns, job=job)
            self._file.set_begin(begin)
            self._accounting.tally.add(begin)

    # --- rounds

    def before_start(self, previous: int) -> None:
        """Read the progress of a round's workers before it is overwritten by that of the next round."""
        with self._lock:
            if self._read_round != previous:
                self._kept = {previous: self._progress()}

    def _start_round(self) -> None:
        self._last, self._rate, self._above = None, None, None
        self._set_above()
        high = self._accounting.high_step
        self._run.agree(TOPIC, 0 if high is None else high + 1)
        self._stop_timers()
        self._soon = self._run.call_later(SOON_S, self.tick)
        self._timer = self._run.call_every(TICK_S, self.tick)

    def _set_above(self) -> None:
        high = self._accounting.high_step
        if high is not None and high != self._above:
            self._above = high
            self._progress(above=high)

    def _stop_timers(self) -> None:
        for timer in (self._soon, self._timer):
            if timer is not None:
                timer.cancel()
        self._soon = self._timer = None

    def _finish_round(self, index: int) -> None:
        self._stop_timers()
        self._read_round = index
        workers = self._kept.pop(index, None)
        self._accounting.read(self._progress() if workers is None else workers, self._clock.monotonic_s(), final=True)

    def tick(self) -> None:
        """Count the time so far, and write a sign of life. Called: 10 s after their start, and once a minute."""
        with self._lock:
            if not self._accounting.has_workers:
                return
            self._read()
            self._accounting.alive()
            self._write()

    def _read(self) -> Mapping[int, WorkerProgress]:
        if not self._accounting.has_workers:
            return {}
        workers = self._progress()
        self._accounting.read(workers, self._clock.monotonic_s())
        step, step_s = self._accounting.step, self._accounting.step_s
        if step is not None and step_s is not None:
            firsts = [(each.first_step, each.first_step_s) for each in workers.values()]
            first = min(((n, at_s) for n, at_s in firsts if n is not None and at_s is not None), default=None)
            before = self._last or first
            if before is not None and step_s > before[1]:
                self._rate = (step - before[0]) / (step_s - before[1])
            self._last = (step, step_s)
        return workers

    def _progress(self, *, above: int | None = None) -> Mapping[int, WorkerProgress]:
        found: dict[int, WorkerProgress] = {}
        offers = self._run.offers()
        for name in OFFERS:
            if name not in offers:
                continue
            try:
                content = offers[name]({} if above is None else {"above": str(above)}).content
            except Exception:  # noqa: BLE001  # another hook's fault: the ledger goes on without its figures
                continue
            for rank, worker in progress_of(content).items():
                found[rank] = merged(found[rank], worker) if rank in found else worker
        return found

    # --- what others get

    def publish(self) -> None:
        """Publish the fields, and the metrics that have changed. Nothing follows the agent's end."""
        with self._lock:
            if self._stopped:
                return
            self._run.publish(self._fields())
            self._record_metrics()

    def _record_metrics(self) -> None:
        metrics = dict(self._metrics(self._accounting.totals()))
        changed = {name: value for name, value in metrics.items() if self._published.get(name) != value}
        self._published |= changed
        for name, value in changed.items():
            self._run.record("metric", {"group": _GROUP, "name": name, "value": value})

    def answer(self, *, lines: bool) -> str:
        """Return the fields as of now as JSON, with `lines`, the text of the file as of now, if they are requested."""
        with self._lock:
            workers = self._read()
            self._write()
            fields = self._fields()
            if not lines:
                return msgspec.json.encode(fields).decode()
            tail = self._accounting.tail(self._clock.monotonic_s())
            last = Alive(at_s=tail[-1].end_s, state=tail[-1].state, round=tail[-1].round)
            more: list[Line] = [*tail, *self._accounting.live_workers(workers), last]
            content = self._file.content()
        text = content.decode() + "".join(msgspec.json.encode(line).decode() + "\n" for line in more)
        return msgspec.json.encode({**fields, "lines": text}).decode()

    def _fields(self) -> dict[str, str | int | float | bool | None]:
        accounting = self._accounting
        now_s = self._clock.monotonic_s()
        tail = accounting.tail(now_s)
        totals = accounting.totals(now_s)
        since_ns = self._clock.wall_ns() - round((tail[-1].end_s - tail[-1].begin_s) * 1e9)
        fields: dict[str, str | int | float | bool | None] = {"state": tail[-1].state.value, "since_ns": since_ns}
        if totals.goodput is not None:
            low, high = totals.goodput
            fields["goodput"] = round(low, 4)
            if high - low >= 0.0001:
                fields["goodput_at_most"] = round(high, 4)
        if accounting.step is not None:
            fields["step"] = accounting.step
        if self._rate is not None and accounting.has_workers:
            fields["steps_per_s"] = float(f"{self._rate:.4g}")
        fields["present_s"] = round(totals.present_s, 1)
        return fields | {f"{_word(state)}_s": round(seconds, 1) for state, seconds in totals.states.items()}

    def _metrics(self, totals: Totals) -> Iterable[tuple[str, float]]:
        for name, ratio in (("google", totals.goodput), ("nvidia", totals.goodput_nvidia)):
            if ratio is not None:
                yield f'elastic_goodput_ratio{{formula="{name}"}}', round(ratio[0], 4)
        counted = self._accounting.tally.totals()
        for state in S:
            seconds = round(counted.states.get(state, 0.0), 1)
            name = f'elastic_lost_seconds_total{{cause="{_word(state)}"}}'
            # A counter never falls, even if a correction has reclassified its seconds.
            if state is not S.PRODUCTIVE and seconds > self._published.get(name, 0.0):
                yield name, seconds

    # --- the end

    def close(self, at_s: float, *, kept: bool) -> None:
        """End the ledger, and wait for the file, with a time limit. `kept`: the run directory stays."""
        with self._lock:
            self._stop_timers()
            accounting = self._accounting
            workers: Mapping[int, WorkerProgress] = {}
            if accounting.has_workers:
                kept_workers = self._kept.pop(accounting.round or 0, None)
                workers = self._progress() if kept_workers is None else kept_workers
            accounting.close(workers, max(at_s, self._clock.monotonic_s()))
            self._file.add(accounting.take())
        self._file.close(kept=kept, within_s=CLOSE_S)


def _word(state: S) -> str:
    return state.value.replace(" ", "_")
