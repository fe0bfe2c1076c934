"""What the workers of a node did in a part of a round, from the progress that they report. No I/O, no clock."""

from collections.abc import Iterator, Mapping
from typing import Final

from elastic_core.api import Record, decode_json
from elastic_report.ledger.states import LedgerState as S

OFFERS: Final = ("planned-stops-progress", "heartbeats-progress")
"""The requests by which elastic-train's hook and elastic-watch's return their workers' progress."""
_KINDS: Final = {"save": S.SAVING, "restore": S.RESTORING}
_BUSY: Final = (S.STARTING, S.RESTORING, S.SAVING, S.REDONE)
"""The states of workers that don't train, in the published order."""


class WorkerProgress(Record, frozen=True, kw_only=True):
    """How far one worker is. Times are monotonic seconds of this host; `None` means none yet."""

    alive_s: float | None = None
    """The time of its first sign of life."""
    first_step: int | None = None
    first_step_s: float | None = None
    step: int | None = None
    """Its last step."""
    step_s: float | None = None
    above_s: float | None = None
    """When it reported the first step above the number that the request has named."""
    marks: tuple[tuple[str, float, float | None], ...] = ()
    """`save` or `restore`, begin and end."""
    marks_dropped: int = 0


class _Answer(Record, frozen=True, kw_only=True):
    workers: Mapping[int, WorkerProgress] = {}


def progress_of(content: str) -> Mapping[int, WorkerProgress]:
    """Return an answer's workers by local rank; empty if the hook's version has other fields."""
    try:
        return decode_json(content, _Answer).workers
    except ValueError:
        return {}


def merged(one: WorkerProgress, other: WorkerProgress) -> WorkerProgress:
    """Return the progress of a worker that reports by two ways."""
    first = min((each for each in (one, other) if each.first_step_s is not None), key=_first_s, default=one)
    last = max((each for each in (one, other) if each.step_s is not None), key=_last_s, default=one)
    marks = sorted({*one.marks, *other.marks}, key=lambda mark: (mark[1], mark[0], mark[2] or 0.0))
    return WorkerProgress(
        alive_s=_least(one.alive_s, other.alive_s),
        first_step=first.first_step,
        first_step_s=first.first_step_s,
        step=last.step,
        step_s=last.step_s,
        above_s=_least(one.above_s, other.above_s),
        marks=tuple(marks),
        marks_dropped=one.marks_dropped + other.marks_dropped,
    )


def _first_s(worker: WorkerProgress) -> float:
    return worker.first_step_s or 0.0


def _last_s(worker: WorkerProgress) -> float:
    return worker.step_s or 0.0


def _least(one: float | None, other: float | None) -> float | None:
    return min((each for each in (one, other) if each is not None), default=None)


class Known(Record, frozen=True, kw_only=True):
    """What is known about the signs of a node's workers.

    `final`: the round's workers have ended. `steps`: they reported steps in an earlier round. `signs`: they reported
    any sign of life in an earlier round. `waited`: no sign for so long that none is expected. `silent`: some have given
    no sign yet, which may come soon.
    """

    final: bool = False
    steps: bool = False
    signs: bool = False
    waited: bool = False
    silent: bool = False
    high_step: int | None = None
    """The highest step of the run before this round."""


def worked(
    workers: Mapping[int, WorkerProgress],
    ends: Mapping[int, float],
    begin_s: float,
    end_s: float,
    known: Known,
) -> tuple[list[tuple[S, float, float]], float]:
    """Return what the node's least advanced worker did, and the moment from which on that is not determined yet.

    Args:
        workers: The progress of the workers that report any, or have done so in an earlier round.
        ends: When workers ended, by local rank.
        begin_s: The begin of the time in question.
        end_s: Its end.
        known: What is known about the workers' signs.
    """
    if not workers:
        return _without_signs(begin_s, end_s, known)
    changes: list[tuple[float, S | None, int]] = [(begin_s, None, 1)] if known.silent else []
    for rank, worker in workers.items():
        until_s = min(end_s, ends.get(rank, end_s))
        for state, from_s, to_s in _intervals(worker, until_s, known):
            low_s, high_s = max(from_s, begin_s), min(to_s, until_s)
            if high_s > low_s:
                changes += [(low_s, state, 1), (high_s, state, -1)]
    changes.sort(key=lambda change: change[0])
    found: list[tuple[S, float, float]] = []
    counts: dict[S | None, int] = {}
    at_s = begin_s
    for moment_s, state, by in [*changes, (end_s, S.PRODUCTIVE, 0)]:
        if moment_s > at_s:
            now = next((each for each in _BUSY if counts.get(each)), S.PRODUCTIVE)
            if counts.get(None) and now is not S.STARTING:
                return found, at_s
            if found and found[-1][0] is now:
                found[-1] = (now, found[-1][1], moment_s)
            else:
                found.append((now, at_s, moment_s))
            at_s = moment_s
        counts[state] = counts.get(state, 0) + by
    return found, end_s


def _without_signs(begin_s: float, end_s: float, known: Known) -> tuple[list[tuple[S, float, float]], float]:
    if end_s <= begin_s:
        return [], end_s
    if known.steps or known.signs:
        return [(S.STARTING, begin_s, end_s)], end_s
    if known.final or known.waited:
        return [(S.PRODUCTIVE, begin_s, end_s)], end_s
    return [], begin_s


def _intervals(worker: WorkerProgress, until_s: float, known: Known) -> Iterator[tuple[S | None, float, float]]:
    """Yield the intervals in which a worker does not train; `None` is for those that are not determined.

    A save or a restore counts before the worker's start: a script loads its checkpoint before its first step.
    """
    marks = []
    for kind, from_s, to_s in worker.marks:
        if kind in _KINDS:
            mark = _KINDS[kind], from_s, until_s if to_s is None or to_s <= 0 else to_s
            marks.append(mark)
            yield mark
    started_s: float
    if worker.first_step_s is not None:
        started_s = worker.first_step_s
        if known.high_step is not None and (worker.first_step or 0) <= known.high_step:
            yield S.REDONE, worker.first_step_s, _above_s(worker, known.high_step, until_s)
    elif known.steps:
        started_s = until_s
    else:
        started_s = until_s if worker.alive_s is None else worker.alive_s
        if not (known.final or known.waited):
            yield from _outside(marks, None, started_s, until_s)
    yield from _outside(marks, S.STARTING, float("-inf"), started_s)


def _above_s(worker: WorkerProgress, high_step: int, until_s: float) -> float:
    if worker.above_s is not None:
        return worker.above_s
    # The number may have been named when a step above it had been reported already.
    later = worker.step is not None and worker.step > high_step and worker.step_s is not None
    return worker.step_s if later and worker.step_s is not None else until_s


def _outside(
    marks: list[tuple[S, float, float]], state: S | None, from_s: float, to_s: float
) -> Iterator[tuple[S | None, float, float]]:
    for _, begin_s, end_s in sorted(marks, key=lambda mark: mark[1]):
        if end_s > from_s and begin_s < to_s:
            if begin_s > from_s:
                yield state, from_s, begin_s
            from_s = max(from_s, end_s)
    if from_s < to_s:
        yield state, from_s, to_s
