"""Calls the hooks of a run one by one on one thread: moments, refusals and changes, the feed, and their own calls."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeGuard

from msgspec.structs import replace

from elastic_core.hooks.arguments import is_seconds
from elastic_core.hooks.handle import RunActions, RunHandle
from elastic_core.hooks.members import (
    CATCH_ALL,
    CLOSED,
    FEED,
    LINES_WITHIN_S,
    METHODS,
    MOST_LINES,
    HoldTask,
    NamedHook,
    RunningHook,
    Task,
)
from elastic_core.logger import Logger
from elastic_core.moments import (
    LaunchChange,
    Launches,
    Moment,
    Power,
    Refuse,
    RoundJoining,
    WorkersStarting,
    merged_changes,
)
from elastic_core.plugin_faults import Fault, PluginFaults, wrong_answer
from elastic_core.reports import RunEvent
from elastic_core.starters import RunTimer
from elastic_core.system.clock import SYSTEM_CLOCK, Clock

MOST_WAITING: Final = 1_000
"""How many moments may wait, so that a slow hook does not fill the memory."""
MOST_EVENTS: Final = 10_000
"""How many events of the feed may wait."""
STRIKES: Final = 3
"""A hook that raises so often in a row receives no more of the feed."""
# Seconds until a thread that the system has refused is started again.
_THREAD_RETRY_S: Final = 0.5
OnJoin = Callable[[Refuse | None, str], None]
OnStart = Callable[[tuple[LaunchChange, ...], Refuse | None, str], None]


class HookRunner:
    """Calls hooks one by one on one thread, which is started with the first call.

    A hook that raises is logged and counted. A hook that exceeds the deadline is abandoned and disabled for the rest of
    the run; a new thread goes on with the others. The moments that hooks can answer (`ask_join`, `ask_start`) wait for
    the moments before them; each call of each hook has the deadline. Events of the feed wait for all else.

    If no hook can answer, the answer is delivered before the method returns.

    `post` may be called from any thread. `deadline_s` is how many seconds one call of one hook may take. `actions`
    executes requests by the run's handle; `None` means that no hook gets a handle. Without `faults`, exceptions are
    kept for this runner alone.

    Threading: the public methods, except `publish`, are called on the reactor's thread; only `close` blocks. Answers
    and log lines arrive on that thread too.
    """

    def __init__(
        self,
        hooks: Sequence[NamedHook],
        *,
        post: Callable[[Callable[[], None]], None],
        call_later: Callable[[float, Callable[[], None]], RunTimer],
        log: Logger,
        deadline_s: float = 5.0,
        clock: Clock = SYSTEM_CLOCK,
        actions: RunActions | None = None,
        faults: PluginFaults | None = None,
    ) -> None:
        self._members = [RunningHook(named) for named in hooks]
        self._post = post
        self._call_later = call_later
        self._log = log
        self._deadline_s = deadline_s
        self._clock = clock
        self._changed = threading.Condition()
        # The rest is guarded by the condition's lock.
        self._tasks: deque[Task] = deque()
        # Events of the feed.
        self._events: deque[Task] = deque()
        self._event_count = 0
        self._calling: tuple[Task, RunningHook] | None = None
        self._called_s = 0.0
        # The number of the newest thread: only that one may change the state. Abandoned threads have lower numbers.
        self._generation = 0
        self._has_thread = False
        self._closing = False
        self._left_out = 0
        self._lines: deque[str] = deque()
        # Whether a timer is pending. Threading: the reactor's thread only.
        self._watched = False
        self._faults = PluginFaults() if faults is None else faults
        if actions is not None:
            for member in self._members:
                if Power.RUN in member.powers:
                    member.named.hook.run = self._handle(member, actions)

    def _handle(self, member: RunningHook, actions: RunActions) -> RunHandle:
        def post(call: Callable[[], None]) -> None:
            self._post(lambda: None if self._closing or member.abandoned else call())

        return RunHandle(
            member.named.name,
            actions,
            post=post,
            notice=lambda text: self._notice(member, text),
            call_later=self._call_later,
            call=lambda call: self._put_call(Task(None, [member], call=call)),
            record=lambda name, values: self.publish(name, values, source=member.named.name),
        )

    def _put_call(self, task: Task) -> Callable[[], bool]:
        def due() -> bool:
            with self._changed:
                return task in self._tasks

        self._put(task)
        return due

    def _notice(self, member: RunningHook, text: str) -> None:
        # Threading: any. Also between the end of the loop and `close`.
        with self._changed:
            if member.abandoned:
                return
            shown = member.lines.takes(self._clock.monotonic_s())
            if shown:
                self._lines.append(text)
            elif member.lines.left_out > 1:
                return
        self._post(self._flush if shown else self._count_later)

    def _count_later(self) -> None:
        self._call_later(LINES_WITHIN_S, self._flush_counts)

    # --- the feed

    @property
    def feeds(self) -> bool:
        """Whether any hook receives the feed."""
        return any(member.feeds for member in self._members)

    def publish(self, name: str, values: Mapping[str, object], *, source: str = "") -> None:
        """Number an event, and pass it to all hooks that receive it, except its source. Threading: any."""
        with self._changed:
            takers = [each for each in self._members if each.takes_event(name) and each.named.name != source]
            if self._closing or not takers:
                return
            self._event_count += 1
            if len(self._events) >= MOST_EVENTS and name != CLOSED:
                self._left_out += 1
                return
            at_s, at_ns = self._clock.monotonic_s(), self._clock.wall_ns()
            event = RunEvent(name=name, number=self._event_count, at_s=at_s, at_ns=at_ns, values=values, source=source)
            self._events.append(Task(event, takers))
            self._changed.notify_all()
            served = self._watched and self._has_thread
        if not served:
            self._post(self._run_calls)

    # --- on the reactor's thread

    def observe(self, what: object) -> None:
        """Pass a moment of the feed to every hook, unless it is one that hooks can answer."""
        if isinstance(what, Moment) and not isinstance(what, (RoundJoining, WorkersStarting)):
            self._enqueue(what, None)

    def ask_join(self, moment: RoundJoining, on_answer: OnJoin) -> None:
        """Call the hooks before this node joins; `on_answer` gets the first refusal, if any, and its hook."""
        self._enqueue(moment, lambda task: on_answer(task.refusal, task.refused_by))

    def ask_start(self, moment: WorkersStarting, on_answer: OnStart) -> None:
        """Call the hooks before workers start.

        `on_answer` gets their changes by local rank (empty if there are none), or the first refusal and its hook.
        """

        def answer(task: Task) -> None:
            ranks = range(moment.round.local_world_size) if task.changes else ()
            changes = tuple(task.changes.get(rank, LaunchChange()) for rank in ranks)
            on_answer(changes, task.refusal, task.refused_by)

        self._enqueue(moment, answer)

    def ask_holds(self, on_answer: Callable[[Mapping[str, float]], None]) -> None:
        """Report the hooks that delay a planned stop that begins now, and the most seconds of each.

        The request precedes moments that still wait, because the stop waits for it.
        """
        with self._changed:
            holding = [each for each in self._members if Power.HOLDS in each.powers and not each.abandoned]
        holds: dict[str, float] = {}
        self._put(HoldTask(holding, lambda task: on_answer(holds), holds), first=True)

    def close(self, timeout_s: float | None = None, *, run_dir_kept: Callable[[], bool] = lambda: False) -> None:
        """Make the waiting calls, close the feed, and end the thread; idempotent.

        The calls and the feed take at most `timeout_s` each; `None` means the deadline. The feed's last event contains
        the result of `run_dir_kept`: whether the run directory stays.
        """
        limit_s = self._deadline_s if timeout_s is None else timeout_s
        self._finish(limit_s)
        self.publish(CLOSED, {"run_dir_kept": run_dir_kept()})
        self._finish(limit_s)
        with self._changed:
            self._closing = True
            if self._left_out:
                self._lines.append(f"hooks were not called for {self._left_out} moments: they were too slow")
                self._left_out = 0
            self._changed.notify_all()
        self._flush_counts()

    def _enqueue(self, moment: Moment, answer: Callable[[Task], None] | None) -> None:
        again = isinstance(moment, WorkersStarting) and moment.asked_again
        with self._changed:
            members = [
                member
                for member in self._members
                if member.takes(METHODS[type(moment)]) and (not again or Power.REFUSAL in member.powers)
            ]
            stuck = [member for member in self._members if member.stuck and member.overrides(METHODS[type(moment)])]
            watchers = [] if again else [each for each in self._members if each.catches(METHODS[type(moment)])]
        task = Task(moment, members, answer)
        for member in stuck:
            task.fail(member, f"its {member.stuck} has not returned yet")
        self._put(task)
        if watchers:
            self._put(Task(moment, watchers, method=CATCH_ALL))

    def _put(self, task: Task, *, first: bool = False) -> None:
        with self._changed:
            queued = bool(task.waiting) and task.refusal is None and not self._closing
            if queued and task.answer is None and len(self._tasks) >= MOST_WAITING:
                self._left_out += 1
                return
            if queued:
                self._tasks.insert(0 if first else len(self._tasks), task)
                self._changed.notify_all()
        if queued:
            self._run_calls()
        elif task.answer is not None:
            task.answer(task)

    def _run_calls(self) -> None:
        if not self._watched:  # before the thread starts, as it may keep the interpreter's lock
            self._look_later(self._deadline_s)
        self._start_thread()

    def _start_thread(self) -> None:
        with self._changed:
            if self._has_thread or self._closing:
                return
            self._has_thread = True
            self._generation += 1
            generation = self._generation
        try:
            threading.Thread(target=self._serve, args=(generation,), name="elastic-hooks", daemon=True).start()
        except RuntimeError:  # the system has no thread now: calls wait
            with self._changed:
                self._has_thread = False
            self._call_later(_THREAD_RETRY_S, self._start_thread)

    def _look_later(self, delay_s: float) -> None:
        self._watched = True
        self._call_later(delay_s, self._look)

    def _look(self) -> None:
        # Called again while calls are waiting or running.
        abandoned = self._abandon_if_due()
        self._watched = False
        if abandoned:
            self._start_thread()
        with self._changed:
            calling, busy = self._calling, bool(self._tasks or self._events)
            left_s = self._called_s + self._deadline_s - self._clock.monotonic_s()
        if calling is not None or busy:
            self._look_later(max(left_s, 0.0) if calling is not None else self._deadline_s)

    def _abandon_if_due(self, *, cut: bool = False) -> bool:
        # With `cut`, the running call is abandoned in any case.
        with self._changed:
            taken_s = self._clock.monotonic_s() - self._called_s
            if self._calling is None or (taken_s < self._deadline_s and not cut):
                return False
            task, member = self._calling
            member.abandoned = True
            self._calling = None
            self._has_thread = False
            self._generation += 1
            method, fate = task.method, "the run ends without it" if cut else "it is off for the rest of the run"
            if member.fail_closed and not cut:
                fate, member.stuck = "it refuses until it has", method
                task.fail(member, f"{method} has not returned after {taken_s:.1f} s")
            self._lines.append(f"{member.label}: {method} has not returned after {taken_s:.1f} s; {fate}")
        self._flush()
        return True

    def _finish(self, limit_s: float) -> None:
        end_s = self._clock.monotonic_s() + limit_s
        if self._tasks or self._events:
            self._start_thread()
        while self._drain(end_s):
            self._start_thread()

    def _drain(self, end_s: float) -> bool:
        # True means that the caller starts a new thread and calls again.
        with self._changed:
            while self._tasks or self._events:
                now_s = self._clock.monotonic_s()
                if now_s >= end_s:
                    break
                due_s = self._called_s + self._deadline_s if self._calling is not None else end_s
                if now_s >= due_s:
                    break
                self._changed.wait(min(due_s, end_s) - now_s)
            if not (self._tasks or self._events):
                return False
            late = self._clock.monotonic_s() >= end_s
        self._abandon_if_due(cut=late)
        if late:
            with self._changed:
                self._skip_rest()
        return not late

    def _skip_rest(self) -> None:
        missed = sorted({member.named.name for task in self._tasks for member in task.waiting if task.takes(member)})
        if missed:
            self._lines.append(f"hooks {', '.join(missed)}: not notified of the end, because other hooks took too long")
        self._left_out += len(self._events)
        self._tasks.clear()
        self._events.clear()

    def _flush_counts(self) -> None:
        with self._changed:
            for member in self._members:
                if left_out := member.lines.take_left_out():
                    bound = f"more than {MOST_LINES} within {LINES_WITHIN_S:g} s"
                    self._lines.append(f"{member.label}: {left_out} lines were left out: {bound}")
        self._flush()

    def _flush(self) -> None:
        while True:
            with self._changed:
                if not self._lines:
                    return
                line = self._lines.popleft()
            self._log.notice(line)

    # --- on the hook thread

    def _serve(self, generation: int) -> None:
        while (call := self._take(generation)) is not None:
            task, member = call
            fault, answer = None, None
            try:
                answer = task.make(member)
            except BaseException as err:  # noqa: BLE001  # plugin code on its own thread: every exception is reported
                fault = self._faults.raised(member.label, task.method, err)
            self._settle(generation, task, member, answer, fault)

    def _take(self, generation: int) -> tuple[Task, RunningHook] | None:
        # `None` means that this thread must end.
        with self._changed:
            while generation == self._generation:
                if (task := self._unfinished(self._tasks) or self._unfinished(self._events)) is not None:
                    self._calling, self._called_s = (task, task.waiting.popleft()), self._clock.monotonic_s()
                    return self._calling
                self._changed.notify_all()
                if self._closing:
                    return None
                self._changed.wait()
        return None

    def _unfinished(self, tasks: deque[Task]) -> Task | None:
        # The first task with a hook still to be called; finished tasks before it are removed.
        while tasks:
            task = tasks[0]
            while task.waiting and not task.takes(task.waiting[0]):
                member = task.waiting.popleft()
                if member.stuck:
                    task.fail(member, f"its {member.stuck} has not returned yet")
            if task.waiting and task.refusal is None:
                return task
            tasks.popleft()
            if task.answer is not None:
                self._post(partial(task.answer, task))
        return None

    def _settle(self, generation: int, task: Task, member: RunningHook, answer: object, fault: Fault | None) -> None:
        with self._changed:
            if member.stuck and generation != self._generation:
                member.stuck, member.abandoned = "", False
            if generation != self._generation:
                return  # abandoned: the answer is late
            self._calling = None
            before = len(self._lines)
            if task.method == FEED:
                self._settle_event(member, fault)
            elif fault is not None:
                self._complain(member, task, f"raised {fault.text}", again=fault.again)
                task.fail(member, f"{task.method} raised {fault.text}")
            elif isinstance(task, HoldTask) or (task.answer is not None and answer is not None):
                self._take_answer(member, task, answer)
            has_lines = len(self._lines) > before
        if has_lines:
            self._post(self._flush)

    def _settle_event(self, member: RunningHook, fault: Fault | None) -> None:
        member.strikes = 0 if fault is None else member.strikes + 1
        member.feeds = member.strikes < STRIKES
        if fault is not None and not (fault.again and member.feeds):
            fate = "" if member.feeds else "; it gets no more of the feed"
            self._lines.append(member.label.line(f"{FEED} raised {fault.text}{fate}"))

    def _complain(self, member: RunningHook, task: Task, fault: str, *, again: bool | None = None) -> None:
        # A fault that was reported before is not reported again.
        text = f"{task.method} {fault}"
        if not (self._faults.again(member.label, text) if again is None else again):
            self._lines.append(member.label.line(text))

    def _take_answer(self, member: RunningHook, task: Task, answer: object) -> None:
        if isinstance(task, HoldTask):
            if not is_seconds(answer):
                self._complain(member, task, f"is {answer!r}; expected a number of seconds")
            elif seconds := float(answer):
                task.holds[member.named.name] = seconds
            return
        starting = task.moment if isinstance(task.moment, WorkersStarting) else None
        if isinstance(answer, Refuse) and isinstance(answer.reason, str):
            if self._may(member, task, Power.REFUSAL, answer):
                if answer.again_s is not None and not is_seconds(answer.again_s):
                    self._complain(member, task, f"wants to be asked again in {answer.again_s!r} s; expected a number")
                    answer = Refuse(reason=answer.reason)
                reason = answer.reason if answer.reason.strip() else "without a reason"
                task.refusal, task.refused_by = replace(answer, reason=reason), str(member.label)
        elif starting is not None and _is_change(answer):
            if self._may(member, task, Power.LAUNCHES, answer):
                from elastic_core.hooks.launches import CheckedChanges  # few hooks change launches

                checked = CheckedChanges(answer, starting.round.local_world_size)
                for fault in checked.faults:
                    self._complain(member, task, fault)
                for rank, change in checked.by_rank.items():
                    task.changes[rank] = merged_changes((task.changes.get(rank, LaunchChange()), change))
        else:
            needed = "Refuse or None" if starting is None else "Launches, Refuse or None"
            self._complain(member, task, wrong_answer(answer, needed))
            task.fail(member, f"{task.method} answered {type(answer).__name__}")

    def _may(self, member: RunningHook, task: Task, power: Power, answer: object) -> bool:
        if power in member.powers:
            return True
        needed = f"powers = frozenset({{Power.{power.name}}})"
        self._complain(member, task, f"answered {type(answer).__name__}, which takes {needed} in its class")
        return False


def _is_change(answer: object) -> TypeGuard[Launches]:
    return (
        isinstance(answer, Launches) and isinstance(answer.workers, Mapping) and isinstance(answer.environment, Mapping)
    )
