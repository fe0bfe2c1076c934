"""Detection of hangs as pure functions: `look(watch, sightings, now_s)` returns the next watch and a verdict.

A worker with heartbeats is judged by them. On a node without any heartbeats, all workers are judged together, by the
data that any of them reads or writes, since a rank that waits for others is silent, too. Ages count on a clock that
stops while the agent does not run, a worker is debugged, or all of several workers are stopped by a signal: no rank is
late because of a scheduler's suspend.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from elastic_core.api import Record
from elastic_watch.beat_file import OpenSection

SHORTEST_LOOK_S = 0.1
LOOKS_A_LIMIT = 10
LONGEST_GAP_LOOKS = 2
"""If a check is this many intervals later than the last one, the agent was stopped, and the rest is not counted."""
PATIENCE = 0.5
"""The part of a limit by which ranks are waited for longer if another node has a slower one."""
UNKNOWN_LIMIT_S = 60.0
"""While workers are paused and this node has no limit, the ranks of other nodes wait for this time once more."""


class Limits(Record, frozen=True, kw_only=True):
    """Limits in seconds; 0 means no limit.

    `hang_s` between two signs of life, `startup_s` from start to the first one. `most_look_s`: the longest interval
    between checks, needed if there is no limit yet; 0 means that only the limits count.
    """

    hang_s: float = 0.0
    startup_s: float = 0.0
    most_look_s: float = 0.0

    @property
    def look_s(self) -> float:
        """The interval between checks."""
        looks = [max(SHORTEST_LOOK_S, limit / LOOKS_A_LIMIT) for limit in (self.hang_s, self.startup_s) if limit]
        return min([*looks, self.most_look_s] if self.most_look_s else looks)


class Sighting(Record, frozen=True, kw_only=True):
    """The observed state of one live worker.

    `beat_s` and `sections` are on the clock of `look`; `will_beat`: it has announced heartbeats. `written` and
    `traffic` are marks that change when the worker or its child writes (reads or writes); `None` if not readable.
    `held`: by a debugger. `stopped`: by a signal, such as SIGSTOP.
    """

    will_beat: bool = False
    beat_s: float | None = None
    step: int | None = None
    sections: tuple[OpenSection, ...] = ()
    written: int | None = None
    traffic: int | None = None
    held: bool = False
    stopped: bool = False


class Elsewhere(Record, frozen=True, kw_only=True):
    """The state of ranks on other nodes of the round. `None` means no information.

    `protected_s`: how long a section stays open there; `quiet_s`: how long no rank has read or written there.
    """

    max_step: int | None = None
    min_step: int | None = None
    protected_s: float = 0.0
    quiet_s: float | None = None


class Silence(Record, frozen=True, kw_only=True):
    """The state of this node's workers, as `Elsewhere`."""

    protected_s: float
    quiet_s: float


class Watched(Record, frozen=True, kw_only=True):
    """One worker between two checks; times on the watch's own clock."""

    sighting: Sighting = Sighting()
    sign_s: float = 0.0
    """The time of its last sign of life."""
    begun: bool = False
    """Whether it has given the first sign of life: a heartbeat, or a byte of output."""
    since: Mapping[int, float] = {}
    """The start times of its open sections, by serial."""
    shown: OpenSection | None = None
    """A long operation that its stack has shown since its last sign of life; `since_s` is on the watch's clock."""


class Watch(Record, frozen=True, kw_only=True):
    """All workers of this node. `lived_s` is the watch's own clock, `looked_s` the time of the last check."""

    limits: Limits
    looked_s: float
    lived_s: float = 0.0
    workers: Mapping[int, Watched] = {}
    warned: bool = False
    reported_s: float | None = None
    suspended: bool = False
    """Whether all of several workers are stopped by a signal: by a scheduler or a person, and not by the script."""

    @property
    def paused(self) -> bool:
        """Whether the time does not count at present: the workers are suspended, or one of them is debugged."""
        return self.suspended or any(each.sighting.held for each in self.workers.values())


class Late(Record, frozen=True, kw_only=True):
    """One worker that has been silent for at least half its limit."""

    local_rank: int
    quiet_s: float
    step: int | None
    begun: bool


class Stall(Record, frozen=True, kw_only=True):
    """Late workers, the longest silent first, and the first causes among them.

    `behind` have not reached `top_step`, which others have; empty if no rank's step is lower than another's.
    `by_beats`: judged by heartbeats, else by output. `section`: their open section that is over its limit.
    """

    late: tuple[Late, ...]
    behind: tuple[int, ...] = ()
    top_step: int | None = None
    by_beats: bool = True
    section: str = ""
    hung: bool = False

    @property
    def suspects(self) -> tuple[int, ...]:
        """The local ranks for which the others wait, according to their steps."""
        return self.behind or tuple(sorted(each.local_rank for each in self.late))


class Recovered(Record, frozen=True, kw_only=True):
    """The late workers make progress again."""


Verdict = Stall | Recovered | None


def begin(limits: Limits, ranks: Iterable[int], *, now_s: float) -> Watch:
    """Return the watch of workers that were just started."""
    return Watch(limits=limits, looked_s=now_s, workers={rank: Watched() for rank in ranks})


def without(watch: Watch, rank: int) -> Watch:
    """Return the watch without a worker that has ended."""
    return replace(watch, workers={other: watched for other, watched in watch.workers.items() if other != rank})


def protect(watch: Watch, rank: int, name: str, limit_s: float) -> Watch:
    """Return the watch with a long operation that a worker's stack shows.

    It counts as an open section until the worker's next sign of life, for at most `limit_s` seconds from the first
    call.
    """
    each = watch.workers.get(rank)
    if each is None or (each.shown is not None and each.shown.name == name):
        return watch
    shown = OpenSection(serial=0, name=name, since_s=watch.lived_s, limit_s=limit_s)
    return replace(watch, workers={**watch.workers, rank: replace(each, shown=shown)})


def has_open_section(watch: Watch) -> bool:
    """Return whether any worker has an open section, or is in a long operation that its stack has shown."""
    return any(each.sighting.sections or each.shown for each in watch.workers.values())


def look(
    watch: Watch, sightings: Mapping[int, Sighting], *, now_s: float, elsewhere: Elsewhere | None = None
) -> tuple[Watch, Verdict]:
    """Return the watch after a check, and a verdict, once for each time that workers stop making progress.

    A `Stall` that is `hung` is returned again after another limit, if there is still no progress.

    Args:
        watch: The result of the last check.
        sightings: The current observations, by local rank; a missing worker is unchanged.
        now_s: On the clock of the sightings.
        elsewhere: The state of the other nodes.
    """
    gap_s = max(0.0, now_s - watch.looked_s)
    # While a rank is debugged, the others wait for it. A single worker that is stopped may be a hang.
    held = any(sighting.held for sighting in sightings.values())
    suspended = len(sightings) > 1 and all(sighting.stopped for sighting in sightings.values())
    counted_s = 0.0 if held or suspended else min(gap_s, LONGEST_GAP_LOOKS * watch.limits.look_s)
    lived_s = watch.lived_s + counted_s
    workers = {
        rank: _seen(watched, sightings[rank], now_s=now_s, lived_s=lived_s, counted_s=counted_s)
        if rank in sightings
        else watched
        for rank, watched in watch.workers.items()
    }
    watch = replace(watch, looked_s=now_s, lived_s=lived_s, workers=workers, suspended=suspended)
    return _judge(watch, elsewhere or Elsewhere())


def silence(watch: Watch) -> Silence:
    """Return the data, besides steps, by which other nodes judge their own ranks.

    While the workers of this node are paused, the other nodes wait as for an open section, for another limit.
    """
    signs = [each.sign_s for each in watch.workers.values()]
    pause_s = (watch.limits.hang_s or watch.limits.startup_s or UNKNOWN_LIMIT_S) if watch.paused else 0.0
    return Silence(
        protected_s=max(pause_s, _protected_until(watch) - watch.lived_s),
        quiet_s=watch.lived_s - max(signs, default=watch.lived_s),
    )


# --- what a look changes


def _seen(watched: Watched, now: Sighting, *, now_s: float, lived_s: float, counted_s: float) -> Watched:
    before = watched.sighting
    sign_s, begun = watched.sign_s, watched.begun
    if now.beat_s is not None and now.beat_s != before.beat_s:
        # Its clock is ours; but it has beaten since the last look, whatever it says.
        sign_s, begun = lived_s - min(max(0.0, now_s - now.beat_s), counted_s), True
    elif now.beat_s is None and (now.written, now.traffic) != (before.written, before.traffic):
        sign_s, begun = lived_s, begun or bool(now.written)
    if now.will_beat and now.beat_s is None:
        begun = False  # the first output does not stand for the first beat
    since = {
        section.serial: watched.since.get(section.serial, lived_s - min(max(0.0, now_s - section.since_s), counted_s))
        for section in now.sections
    }
    shown = watched.shown if sign_s == watched.sign_s else None
    return Watched(sighting=now, sign_s=sign_s, begun=begun, since=since, shown=shown)


# --- judgement


def _judge(watch: Watch, elsewhere: Elsewhere) -> tuple[Watch, Verdict]:
    by_beats = any(each.sighting.will_beat or each.sighting.beat_s is not None for each in watch.workers.values())
    due = _due_by_beats(watch) if by_beats else _due_by_output(watch, elsewhere)
    open_until_s = max(_protected_until(watch), watch.lived_s + elsewhere.protected_s if elsewhere.protected_s else 0.0)
    late, hung = [], []
    for rank, (deadline_s, limit_s) in due.items():
        end_s = max(deadline_s, open_until_s)
        if watch.lived_s >= end_s - limit_s / 2:
            late.append(rank)
        if watch.lived_s >= end_s + (limit_s * PATIENCE if _slower_elsewhere(watch, elsewhere) else 0.0):
            hung.append(rank)
    if not late:
        verdict = Recovered() if watch.warned else None
        return replace(watch, warned=False, reported_s=None), verdict
    if hung:
        again_s = max(watch.limits.hang_s, watch.limits.startup_s)
        if watch.reported_s is not None and watch.lived_s - watch.reported_s < again_s:
            return watch, None
        stall = _stall(watch, late, elsewhere, by_beats=by_beats, hung=True)
        return replace(watch, warned=True, reported_s=watch.lived_s), stall
    if watch.warned:
        return watch, None
    return replace(watch, warned=True), _stall(watch, late, elsewhere, by_beats=by_beats, hung=False)


def _due_by_beats(watch: Watch) -> dict[int, tuple[float, float]]:
    """Return the time at which it counts as hung, and its limit, for each worker with a limit now."""
    limits, due = watch.limits, {}
    for rank, each in watch.workers.items():
        if each.sighting.beat_s is not None:
            if limits.hang_s:
                due[rank] = (each.sign_s + limits.hang_s, limits.hang_s)
        elif limits.startup_s and not each.begun:
            due[rank] = (limits.startup_s, limits.startup_s)
    return due


def _due_by_output(watch: Watch, elsewhere: Elsewhere) -> dict[int, tuple[float, float]]:
    limits = watch.limits
    visible = {rank: each for rank, each in watch.workers.items() if _visible(each.sighting)}
    if any(each.begun for each in visible.values()):
        sign_s = max(each.sign_s for each in visible.values())
        if elsewhere.quiet_s is not None:
            sign_s = max(sign_s, watch.lived_s - elsewhere.quiet_s)
        return dict.fromkeys(visible, (sign_s + limits.hang_s, limits.hang_s)) if limits.hang_s else {}
    if not limits.startup_s:
        return {}
    return dict.fromkeys(visible, (limits.startup_s, limits.startup_s))


def _visible(sighting: Sighting) -> bool:
    return sighting.written is not None or sighting.traffic is not None


def _protected_until(watch: Watch) -> float:
    """Return when the last open section of any worker reaches its limit; 0 if none is open."""
    ends = [
        each.since[section.serial] + section.limit_s
        for each in watch.workers.values()
        for section in each.sighting.sections
    ]
    ends += [each.shown.since_s + each.shown.limit_s for each in watch.workers.values() if each.shown is not None]
    return max(ends, default=0.0)


def _slower_elsewhere(watch: Watch, elsewhere: Elsewhere) -> bool:
    steps = [each.sighting.step for each in watch.workers.values() if each.sighting.step is not None]
    return bool(steps) and elsewhere.min_step is not None and elsewhere.min_step < min(steps)


def _stall(watch: Watch, late: Iterable[int], elsewhere: Elsewhere, *, by_beats: bool, hung: bool) -> Stall:
    workers = signs = watch.workers
    if not by_beats:  # a sign of one is a sign of all
        last = Watched(
            sign_s=max(each.sign_s for each in workers.values()), begun=any(each.begun for each in workers.values())
        )
        signs = dict.fromkeys(workers, last)
    steps = [each.sighting.step for each in workers.values() if each.sighting.step is not None]
    if elsewhere.max_step is not None:
        steps.append(elsewhere.max_step)
    top = max(steps, default=None)
    told_late = sorted(
        (
            Late(
                local_rank=rank,
                quiet_s=watch.lived_s - (signs[rank].sign_s if signs[rank].begun else 0.0),
                step=workers[rank].sighting.step,
                begun=signs[rank].begun,
            )
            for rank in late
        ),
        key=lambda each: (-each.quiet_s, each.local_rank),
    )
    behind = tuple(
        sorted(each.local_rank for each in told_late if top is not None and each.step is not None and each.step < top)
    )
    return Stall(
        late=tuple(told_late),
        behind=behind,
        top_step=top,
        by_beats=by_beats,
        section=_expired(watch, behind or [each.local_rank for each in told_late]),
        hung=hung,
    )


def _expired(watch: Watch, ranks: Iterable[int]) -> str:
    for rank in ranks:
        each = watch.workers[rank]
        for section in each.sighting.sections:
            if watch.lived_s >= each.since[section.serial] + section.limit_s:
                return section.name
        if each.shown is not None and watch.lived_s >= each.shown.since_s + each.shown.limit_s:
            return each.shown.name
    return ""


def odd_ones_out(places: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks that are at another place than the majority; none without a majority.

    Use it for ranks at the same step: those in the collective wait for the ones that are not in it.
    """
    known = {rank: place for rank, place in places.items() if place}
    for place in set(known.values()):
        there = [rank for rank, own in known.items() if own == place]
        if 2 * len(there) > len(places) and len(there) < len(known):
            return tuple(sorted(rank for rank in known if known[rank] != place))
    return ()
