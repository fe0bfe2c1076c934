"""Whether workers hang, as pure functions: `look(watch, sightings, now_s)` gives the watch as it is then and a verdict.

A worker that beats is judged by its beats. On a node where none does, all are judged together, by what any of them
writes or reads: a rank that waits for the others is silent, too. Ages count on a clock that only runs while the agent
does, and nobody debugs a worker: no rank is late because the agent was stopped.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from elastic_core.api import Record
from elastic_watch.beat_file import OpenSection

SHORTEST_LOOK_S = 0.1
LOOKS_A_LIMIT = 10
LONGEST_GAP_LOOKS = 2
"""A look that comes later than so many intervals after the last: the agent was stopped, and the rest is not counted."""
PATIENCE = 0.5
"""How much of a limit longer ranks are waited for when another node has a slower one."""


class Limits(Record, frozen=True, kw_only=True):
    """Seconds; 0: none. `hang_s` from one sign of life to the next, `startup_s` from the start to the first."""

    hang_s: float = 0.0
    startup_s: float = 0.0

    @property
    def look_s(self) -> float:
        """How often to look."""
        return max(SHORTEST_LOOK_S, min(limit for limit in (self.hang_s, self.startup_s) if limit) / LOOKS_A_LIMIT)


class Sighting(Record, frozen=True, kw_only=True):
    """What is seen of one live worker.

    `beat_s` and `sections` are on the clock of `look`; `will_beat`: it said so. `written` and `traffic` are marks that
    change when the worker, or what it started, writes (reads or writes); None: not to be seen. `held`: by a debugger.
    """

    will_beat: bool = False
    beat_s: float | None = None
    step: int | None = None
    sections: tuple[OpenSection, ...] = ()
    written: int | None = None
    traffic: int | None = None
    held: bool = False


class Elsewhere(Record, frozen=True, kw_only=True):
    """What other nodes of the round tell of their ranks; None: nothing.

    `protected_s`: for how long a section is open there; `quiet_s`: how long nobody has read or written there.
    """

    max_step: int | None = None
    min_step: int | None = None
    protected_s: float = 0.0
    quiet_s: float | None = None


class Silence(Record, frozen=True, kw_only=True):
    """Of this node's workers, as `Elsewhere`."""

    protected_s: float
    quiet_s: float


class Watched(Record, frozen=True, kw_only=True):
    """One worker between two looks; times on the watch's own clock."""

    sighting: Sighting = Sighting()
    sign_s: float = 0.0
    """When it last gave a sign of life."""
    begun: bool = False
    """Whether it has given the first: a beat, or a byte of output."""
    since: Mapping[int, float] = {}
    """When its open sections began, by serial."""


class Watch(Record, frozen=True, kw_only=True):
    """All workers of this node; `lived_s` is the watch's own clock, `looked_s` the last look's time."""

    limits: Limits
    looked_s: float
    lived_s: float = 0.0
    workers: Mapping[int, Watched] = {}
    warned: bool = False
    reported_s: float | None = None


class Late(Record, frozen=True, kw_only=True):
    """One worker that has been silent for at least half its limit."""

    local_rank: int
    quiet_s: float
    step: int | None
    begun: bool


class Stall(Record, frozen=True, kw_only=True):
    """Workers that are late, the longest silent first, and which of them are to blame.

    `behind` have not reached `top_step`, which others have; empty: no rank's step is lower than another's. `by_beats`:
    judged by beats, else by output. `section`: one of theirs that is open and over its limit.
    """

    late: tuple[Late, ...]
    behind: tuple[int, ...] = ()
    top_step: int | None = None
    by_beats: bool = True
    section: str = ""
    hung: bool = False

    @property
    def suspects(self) -> tuple[int, ...]:
        """The local ranks that the others wait for, as far as steps tell."""
        return self.behind or tuple(sorted(each.local_rank for each in self.late))


class Recovered(Record, frozen=True, kw_only=True):
    """The workers that were late go on."""


Verdict = Stall | Recovered | None


def begin(limits: Limits, ranks: Iterable[int], *, now_s: float) -> Watch:
    """Return the watch over workers that were started just now."""
    return Watch(limits=limits, looked_s=now_s, workers={rank: Watched() for rank in ranks})


def without(watch: Watch, rank: int) -> Watch:
    """Return the watch without a worker that has ended."""
    return replace(watch, workers={other: watched for other, watched in watch.workers.items() if other != rank})


def look(
    watch: Watch, sightings: Mapping[int, Sighting], *, now_s: float, elsewhere: Elsewhere | None = None
) -> tuple[Watch, Verdict]:
    """Return the watch after a look, and what there is to say, once for each time that workers stand still.

    A `Stall` that is `hung` is said again after another limit, if they still do.

    Args:
        watch: As the last look left it.
        sightings: What is seen now, by local rank; a worker that is missing is as it was.
        now_s: On the clock of the sightings.
        elsewhere: What the other nodes say.
    """
    gap_s = max(0.0, now_s - watch.looked_s)
    # While somebody debugs a rank, the others wait for it.
    held = any(sighting.held for sighting in sightings.values())
    counted_s = 0.0 if held else min(gap_s, LONGEST_GAP_LOOKS * watch.limits.look_s)
    lived_s = watch.lived_s + counted_s
    workers = {
        rank: _seen(watched, sightings[rank], now_s=now_s, lived_s=lived_s, counted_s=counted_s)
        if rank in sightings
        else watched
        for rank, watched in watch.workers.items()
    }
    watch = replace(watch, looked_s=now_s, lived_s=lived_s, workers=workers)
    return _judge(watch, elsewhere or Elsewhere())


def silence(watch: Watch) -> Silence:
    """Return what the other nodes need, besides steps, in order to judge their own ranks."""
    signs = [each.sign_s for each in watch.workers.values()]
    return Silence(
        protected_s=max(0.0, _protected_until(watch) - watch.lived_s),
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
    return Watched(sighting=now, sign_s=sign_s, begun=begun, since=since)


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
    """Return (when it is hung, its limit) for each worker that has a limit now."""
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
    """Return when the last open section of any worker reaches its limit; 0: none is open."""
    ends = [
        each.since[section.serial] + section.limit_s
        for each in watch.workers.values()
        for section in each.sighting.sections
    ]
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
    return ""


def odd_ones_out(places: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks that stand somewhere else than most; none where there is no such majority.

    For ranks that are all at the same step: those in the collective wait for the ones that are not.
    """
    known = {rank: place for rank, place in places.items() if place}
    for place in set(known.values()):
        there = [rank for rank, own in known.items() if own == place]
        if 2 * len(there) > len(places) and len(there) < len(known):
            return tuple(sorted(rank for rank in known if known[rank] != place))
    return ()
