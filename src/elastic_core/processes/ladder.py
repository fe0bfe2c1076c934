"""The stop ladder, pure: signal, grace period, KILL, and the sweep of what workers left behind.

The shell passes events with their times to `advance`, executes the actions of each step in order, and calls with `Woke`
at `due_s`. Nothing here reads a clock, sends a signal or looks at a process.

A worker (leader of its own process group) is signalled, then killed, then given up. If another round may follow, it may
leave instead: it is signalled only if it stays, or has not left in time. When a worker has ended, the remnants of its
group get the signal at once and KILL soon after. When no leader is left, looks at the process table find strays, which
get TERM, then KILL. The stop has finished when two looks in a row find nothing: the second finds a process that was
forked during the first. Every stop ends: processes that survive KILL are reported and left.
"""

import signal
from collections.abc import Collection

from msgspec.structs import replace

from elastic_core.types import Record

REMNANT_GRACE_S = 1.0
"""Seconds between TERM and KILL for a dead worker's children, unless the grace period is shorter."""
GIVE_UP_S = 5.0
"""Seconds that the stop waits after KILL for a process in uninterruptible sleep."""
LEAVE_SHARE = 0.5
"""The part of the grace period in which a worker may leave; the rest is for one that does not."""
CLEAR_LOOKS = 2
_FIRST_LOOK_S = 0.005
_LAST_LOOK_S = 0.1
_TERM = int(signal.SIGTERM)
_KILL = int(signal.SIGKILL)


class Leader(Record, frozen=True, kw_only=True):
    """A worker that has not been reaped. `group` is False if it shares the agent's process group.

    `leave_by_s` is set while it may leave: it has got no signal yet.
    """

    pid: int
    group: bool = True
    killed_at_s: float | None = None
    leave_by_s: float | None = None


class Remnant(Record, frozen=True, kw_only=True):
    """The process group of a worker that has ended; it had members when the worker was reaped."""

    pgid: int
    kill_at_s: float


class Found(Record, frozen=True, kw_only=True):
    """A live process that a look found. `start_ticks` identifies it if its pid is reused."""

    pid: int
    pgid: int
    start_ticks: int = 0


class Stray(Record, frozen=True, kw_only=True):
    """A found process that was signalled. `killed_at_s` is `None` if it only got TERM."""

    found: Found
    killed_at_s: float | None = None


class LadderStop(Record, frozen=True, kw_only=True):
    """The order to stop. `sweep_kill_at_s` is set when the sweep begins; from then on strays get KILL at once."""

    signum: int
    grace_s: float
    kill_at_s: float
    killed: bool = False
    sweep_kill_at_s: float | None = None


class LadderState(Record, frozen=True, kw_only=True):
    """The whole state of the ladder."""

    leaders: tuple[Leader, ...] = ()
    remnants: tuple[Remnant, ...] = ()
    strays: tuple[Stray, ...] = ()
    abandoned: tuple[Found, ...] = ()
    order: LadderStop | None = None
    clear_looks: int = 0
    look_at_s: float | None = None
    look_delay_s: float = _FIRST_LOOK_S

    @property
    def due_s(self) -> float | None:
        """When the shell must call with `Woke`. `None` means no time."""
        times = [remnant.kill_at_s for remnant in self.remnants]
        times += [leader.killed_at_s + GIVE_UP_S for leader in self.leaders if leader.killed_at_s is not None]
        if self.order is not None and not self.order.killed and self.leaders:
            times.append(self.order.kill_at_s)
            times += [leader.leave_by_s for leader in self.leaders if leader.leave_by_s is not None]
        if self.look_at_s is not None:
            times.append(self.look_at_s)
        return min(times, default=None)


# --- events


class LeaderStarted(Record, frozen=True, kw_only=True):
    """A worker was started."""

    pid: int
    group: bool = True


class LeaderEnded(Record, frozen=True, kw_only=True):
    """A worker was reaped; `remnants`: its process group still has members."""

    pid: int
    remnants: bool = False


class LeaderLeft(Record, frozen=True, kw_only=True):
    """A worker that may leave has left: its process runs on, and is no longer this stop's."""

    pid: int


class LeadersStay(Record, frozen=True, kw_only=True):
    """These workers do not leave; `None` means that none may any more."""

    pids: frozenset[int] | None = None


class StopBegun(Record, frozen=True, kw_only=True):
    """Stop all workers; a second order can only shorten the first. `may_leave`: they may leave instead."""

    signum: int
    grace_s: float
    may_leave: bool = False


class KillOrdered(Record, frozen=True, kw_only=True):
    """Stop all workers now, without a grace period."""


class Woke(Record, frozen=True, kw_only=True):
    """Time has passed."""


class Looked(Record, frozen=True, kw_only=True):
    """The result of `Look`, without the abandoned processes."""

    found: tuple[Found, ...] = ()


LadderEvent = LeaderStarted | LeaderEnded | LeaderLeft | LeadersStay | StopBegun | KillOrdered | Woke | Looked


# --- actions


class SignalLeader(Record, frozen=True, kw_only=True):
    """Signal a worker that is not reaped; with `group`, its whole process group."""

    pid: int
    signum: int
    group: bool = True


class SignalRemnants(Record, frozen=True, kw_only=True):
    """Signal the rest of a process group whose leader is reaped."""

    pgid: int
    signum: int


class SignalStray(Record, frozen=True, kw_only=True):
    """Signal one process that a look found."""

    found: Found
    signum: int


class GiveUpLeader(Record, frozen=True, kw_only=True):
    """KILL had no effect on this worker: report it as ended."""

    pid: int


class GiveUpStray(Record, frozen=True, kw_only=True):
    """KILL had no effect on this process."""

    found: Found


class Look(Record, frozen=True, kw_only=True):
    """Look for processes that workers left, and answer with `Looked`."""


class Finished(Record, frozen=True, kw_only=True):
    """No process of any worker is left."""


LadderAction = SignalLeader | SignalRemnants | SignalStray | GiveUpLeader | GiveUpStray | Look | Finished


class LadderStep(Record, frozen=True, kw_only=True):
    """The state and actions after one event."""

    state: LadderState
    actions: tuple[LadderAction, ...] = ()


def advance(state: LadderState, event: LadderEvent, *, now_s: float) -> LadderStep:
    """Return the state and actions after `event` at `now_s`. Total, and without side effects."""
    match event:
        case LeaderStarted():
            leader = Leader(pid=event.pid, group=event.group)
            return LadderStep(state=replace(state, leaders=(*state.leaders, leader)))
        case LeaderEnded():
            return _ended(state, event, now_s)
        case LeaderLeft():
            left = tuple(leader for leader in state.leaders if leader.pid != event.pid)
            return _sweep_if_alone(replace(state, leaders=left), [], now_s)
        case LeadersStay():
            state, signals = _stay(state, event.pids)
            return LadderStep(state=state, actions=tuple(signals))
        case StopBegun():
            return _stop(state, event, now_s)
        case KillOrdered():
            return _kill(state, now_s)
        case Woke():
            return _woke(state, now_s)
        case Looked():
            return _looked(state, event, now_s)


def _ended(state: LadderState, event: LeaderEnded, now_s: float) -> LadderStep:
    order, actions = state.order, list[LadderAction]()
    # None: it was given up, so the ladder waits for neither it nor its group.
    ended = next((leader for leader in state.leaders if leader.pid == event.pid), None)
    state = replace(state, leaders=tuple(leader for leader in state.leaders if leader.pid != event.pid))
    if ended is not None and ended.group and event.remnants:
        if order is not None and order.killed:
            # A member that was forked during the group's KILL has missed it.
            actions.append(SignalRemnants(pgid=event.pid, signum=_KILL))
        else:
            # After a stop order the whole group has had the signal already, unless it may leave.
            grace_s = REMNANT_GRACE_S if order is None else min(REMNANT_GRACE_S, order.grace_s)
            state = replace(state, remnants=(*state.remnants, Remnant(pgid=event.pid, kill_at_s=now_s + grace_s)))
            if order is None or ended.leave_by_s is not None:
                actions.append(SignalRemnants(pgid=event.pid, signum=_TERM))
    return _sweep_if_alone(state, actions, now_s)


def _stop(state: LadderState, event: StopBegun, now_s: float) -> LadderStep:
    if event.signum == _KILL:
        # A library call ends its workers at once: after KILL a grace period is useless.
        return _kill(state, now_s)
    kill_at_s = now_s + max(0.0, event.grace_s)
    order = state.order
    if order is not None:
        # Such as a failure while the node drains. The workers have had their signal; their time can only get shorter.
        if kill_at_s < order.kill_at_s and not order.killed:
            state = replace(state, order=replace(order, kill_at_s=kill_at_s, grace_s=event.grace_s))
            state, late = _stay(state, None)  # less time is left than they were given
            return LadderStep(state=state, actions=tuple(late))
        return LadderStep(state=state)
    order = LadderStop(signum=event.signum, grace_s=max(0.0, event.grace_s), kill_at_s=kill_at_s)
    signals: list[LadderAction] = [
        SignalLeader(pid=leader.pid, signum=event.signum, group=leader.group)
        for leader in state.leaders
        if not event.may_leave
    ]
    if event.may_leave:
        leave_by_s = now_s + order.grace_s * LEAVE_SHARE
        state = replace(state, leaders=tuple(replace(leader, leave_by_s=leave_by_s) for leader in state.leaders))
    return _sweep_if_alone(replace(state, order=order), signals, now_s)


def _stay(state: LadderState, pids: Collection[int] | None) -> tuple[LadderState, list[LadderAction]]:
    """Signal those of these workers (`None`: of all) that were to leave."""
    order = state.order
    late = {le.pid for le in state.leaders if le.leave_by_s is not None and (pids is None or le.pid in pids)}
    if order is None or not late:
        return state, []
    signals: list[LadderAction] = [
        SignalLeader(pid=leader.pid, signum=order.signum, group=leader.group)
        for leader in state.leaders
        if leader.pid in late
    ]
    leaders = tuple(replace(le, leave_by_s=None) if le.pid in late else le for le in state.leaders)
    return replace(state, leaders=leaders), signals


def _kill(state: LadderState, now_s: float) -> LadderStep:
    before = state.order or LadderStop(signum=_KILL, grace_s=0.0, kill_at_s=now_s)
    state = replace(state, order=replace(before, killed=True, grace_s=0.0, kill_at_s=min(now_s, before.kill_at_s)))
    state, actions = _kill_leaders(state, now_s)
    actions += [SignalRemnants(pgid=remnant.pgid, signum=_KILL) for remnant in state.remnants]
    actions += [SignalStray(found=s.found, signum=_KILL) for s in state.strays if s.killed_at_s is None]
    strays = tuple(s if s.killed_at_s is not None else Stray(found=s.found, killed_at_s=now_s) for s in state.strays)
    return _sweep_if_alone(replace(state, remnants=(), strays=strays), actions, now_s)


def _kill_leaders(state: LadderState, now_s: float) -> tuple[LadderState, list[LadderAction]]:
    actions: list[LadderAction] = [
        SignalLeader(pid=leader.pid, signum=_KILL, group=leader.group)
        for leader in state.leaders
        if leader.killed_at_s is None
    ]
    leaders = tuple(
        leader if leader.killed_at_s is not None else replace(leader, killed_at_s=now_s, leave_by_s=None)
        for leader in state.leaders
    )
    return replace(state, leaders=leaders), actions


def _woke(state: LadderState, now_s: float) -> LadderStep:
    actions = list[LadderAction]()
    order = state.order
    if order is not None and not order.killed and state.leaders and now_s >= order.kill_at_s:
        order = replace(order, killed=True)
        state, kills = _kill_leaders(replace(state, order=order), now_s)
        actions += kills
    late = {leader.pid for leader in state.leaders if leader.leave_by_s is not None and now_s >= leader.leave_by_s}
    state, signals = _stay(state, late)
    actions += signals
    due = [remnant for remnant in state.remnants if now_s >= remnant.kill_at_s]
    actions += [SignalRemnants(pgid=remnant.pgid, signum=_KILL) for remnant in due]
    lost = [le for le in state.leaders if le.killed_at_s is not None and now_s >= le.killed_at_s + GIVE_UP_S]
    actions += [GiveUpLeader(pid=leader.pid) for leader in lost]
    state = replace(
        state,
        remnants=tuple(remnant for remnant in state.remnants if remnant not in due),
        leaders=tuple(leader for leader in state.leaders if leader not in lost),
        abandoned=(*state.abandoned, *(Found(pid=leader.pid, pgid=leader.pid) for leader in lost)),
    )
    if state.look_at_s is not None and now_s >= state.look_at_s:
        # The last worker has ended: sweep what its processes left behind.
        actions.append(Look())
        state = replace(state, look_at_s=None)
    elif lost:
        # The last worker does not end after KILL. Sweep its strays all the same.
        return _sweep_if_alone(state, actions, now_s)
    return LadderStep(state=state, actions=tuple(actions))


def _sweep_if_alone(state: LadderState, actions: list[LadderAction], now_s: float) -> LadderStep:
    # The sweep begins when a stop was ordered and no worker is left to wait for.
    order = state.order
    if order is not None and not state.leaders:
        if order.sweep_kill_at_s is None:
            grace_s = 0.0 if order.killed else min(REMNANT_GRACE_S, order.grace_s)
            order = replace(order, sweep_kill_at_s=now_s + grace_s)
        elif order.killed:
            # A user's second signal during the sweep: strays get KILL now, too.
            order = replace(order, sweep_kill_at_s=min(now_s, order.sweep_kill_at_s))
        state = replace(state, order=order, clear_looks=0, look_at_s=None, look_delay_s=_FIRST_LOOK_S)
        actions = [*actions, Look()]
    return LadderStep(state=state, actions=tuple(actions))


def _looked(state: LadderState, event: Looked, now_s: float) -> LadderStep:
    order = state.order
    if order is None or order.sweep_kill_at_s is None:
        # The look belongs to a stop that has finished meanwhile.
        return LadderStep(state=state)
    if not event.found:
        if state.clear_looks + 1 >= CLEAR_LOOKS:
            return LadderStep(state=LadderState(abandoned=state.abandoned), actions=(Finished(),))
        return LadderStep(state=replace(state, strays=(), clear_looks=state.clear_looks + 1, look_at_s=now_s))
    if now_s >= order.sweep_kill_at_s + 2 * GIVE_UP_S:  # they fork faster than they are killed, or KILL has no effect
        last_words: list[LadderAction] = [SignalStray(found=each, signum=_KILL) for each in event.found]
        last_words += [GiveUpStray(found=each) for each in event.found]
        return LadderStep(state=LadderState(abandoned=state.abandoned), actions=(*last_words, Finished()))
    state, actions = _deal_with(state, event.found, order.sweep_kill_at_s, now_s)
    delay_s = state.look_delay_s
    next_look_s = now_s + delay_s
    state = replace(state, clear_looks=0, look_at_s=next_look_s, look_delay_s=min(_LAST_LOOK_S, delay_s * 2))
    return LadderStep(state=state, actions=tuple(actions))


def _deal_with(
    state: LadderState, found: tuple[Found, ...], kill_at_s: float, now_s: float
) -> tuple[LadderState, list[LadderAction]]:
    known = {stray.found: stray for stray in state.strays}
    groups = {remnant.pgid for remnant in state.remnants}
    strays, abandoned, actions = list[Stray](), list(state.abandoned), list[LadderAction]()
    for each in found:
        stray = known.get(each, Stray(found=each))
        if stray.killed_at_s is not None:
            # A stray that was found late has at least one look's time to end after its KILL.
            if now_s >= kill_at_s + GIVE_UP_S and now_s >= stray.killed_at_s + _LAST_LOOK_S:
                actions.append(GiveUpStray(found=each))
                abandoned.append(each)
                continue
        elif now_s >= kill_at_s:
            actions.append(SignalStray(found=each, signum=_KILL))
            stray = Stray(found=each, killed_at_s=now_s)
        elif each not in known and each.pgid not in groups:  # a remnant has had the signal with its group
            actions.append(SignalStray(found=each, signum=_TERM))
        strays.append(stray)
    return replace(state, strays=tuple(strays), abandoned=tuple(abandoned)), actions
