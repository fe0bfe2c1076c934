"""The progress of workers as the agent reads it from their pages, and the response with it."""

from collections.abc import Mapping

from elastic_core.api import ConfigError, Record, encode_json
from elastic_core.api.feed import Answer
from elastic_train import stop_page as layout

_TRIES = 3
_MOST = (1 << 63) - 1


class WorkerProgress(Record, frozen=True, kw_only=True):
    """The progress of one worker. Times are seconds of the monotonic clock; `None` means not yet."""

    alive_s: float | None = None
    """Its first call of `should_stop`, `ready_to_stop`, `Checkpointer.save`, `.load`, `saving` or `restoring`."""
    first_step: int | None = None
    first_step_s: float | None = None
    step: int | None = None
    """The last step for which it called `should_stop`."""
    step_s: float | None = None
    above_s: float | None = None
    """The first call with a step above the one that was requested (`above`)."""
    marks: tuple[tuple[str, float, float | None], ...] = ()
    """Its saves and restores, oldest first: `save` or `restore`, begin, and end. `None` while it is open."""
    marks_dropped: int = 0
    """How many older marks were overwritten."""
    pid: int = 0
    """The process that reported this: the worker, or its child. It may have ended."""


class Progress(Record, frozen=True, kw_only=True):
    """The progress of this node's workers, by local rank."""

    workers: Mapping[int, WorkerProgress]


class LastSteps(Record, frozen=True, kw_only=True):
    """The last steps of this node's workers, by local rank: pairs of a step and its time, oldest first."""

    workers: Mapping[int, tuple[tuple[int, int], ...]]
    """The times are nanoseconds of the monotonic clock."""


def progress_of(words: memoryview) -> WorkerProgress | None:
    """Return a worker's progress. `None` if it has called no function that writes to its page."""
    if words[layout.MAGIC] != layout.MAGIC_VALUE:
        return None
    step, step_ns = _last_step(words)
    if not words[layout.ALIVE_NS] and step < 0:
        return None
    above = words[layout.HIGH] >= 0 and words[layout.ABOVE_OF] == words[layout.HIGH]
    marks, dropped = _marks(words)
    return WorkerProgress(
        alive_s=_seconds(words[layout.ALIVE_NS]),
        first_step=first if (first := words[layout.FIRST]) >= 0 else None,
        first_step_s=_seconds(words[layout.FIRST_NS]),
        step=step if step >= 0 else None,
        step_s=_seconds(step_ns) if step >= 0 else None,
        above_s=_seconds(words[layout.ABOVE_NS]) if above else None,
        marks=marks,
        marks_dropped=dropped,
        pid=words[layout.WRITER],
    )


def _last_step(words: memoryview) -> tuple[int, int]:
    """Return the last step and its time. If the worker makes steps meanwhile, they may be one step apart."""
    for _ in range(_TRIES):
        step = words[layout.STEP]
        step_ns = words[layout.TIMES_AT + (step & layout.TIMES_MASK)]
        if words[layout.STEP] == step:
            break
    return step, step_ns


def step_times(words: memoryview) -> tuple[tuple[int, int], ...]:
    """Return the last steps with their times in nanoseconds of the monotonic clock, oldest first, at most 128.

    They are the last calls with a rising step. If a script counts in strides of more than 128 steps, the numbers of all
    but the last one are only known modulo 128.
    """
    for _ in range(_TRIES):
        last = words[layout.STEP]
        times = words[layout.TIMES_AT : layout.TIMES_AT + layout.TIMES_MASK + 1].tolist()
        if words[layout.STEP] == last:
            break
    if last < 0:
        return ()
    # Older times, of steps that others have replaced in between, break the order.
    newest_first = sorted(((ns, slot) for slot, ns in enumerate(times) if ns > 0), reverse=True)
    found: list[tuple[int, int]] = []
    for ns, slot in newest_first:
        step = last - ((last - slot) & layout.TIMES_MASK)
        if step < 0 or (found and step >= found[-1][0]):
            break
        found.append((step, ns))
    return tuple(reversed(found))


def _marks(words: memoryview) -> tuple[tuple[tuple[str, float, float | None], ...], int]:
    """Return the marks that are whole and of a known kind, and how many were overwritten."""
    count = max(0, words[layout.MARK_COUNT])
    found: list[tuple[str, float, float | None]] = []
    dropped = max(0, count - layout.MARK_SLOTS)
    for number in range(dropped + 1, count + 1):
        at = layout.MARKS_AT + (number - 1) % layout.MARK_SLOTS * layout.MARK_WORDS
        before = words[at + layout.NUMBER]
        kind, begin_ns, end_ns = (words[at + word] for word in (layout.KIND, layout.BEGIN_NS, layout.END_NS))
        if before != number or words[at + layout.NUMBER] != number:
            dropped += 1  # the worker is writing, or has written, a newer one in its place
        elif kind in layout.KINDS:
            found.append((layout.KINDS[kind], begin_ns / 1e9, _seconds(end_ns)))
    return tuple(found), dropped


def _seconds(ns: int) -> float | None:
    return ns / 1e9 if ns > 0 else None


def step_above(parameters: Mapping[str, str]) -> int | None:
    """Return the step in the parameter `above`; -1 means none. `None` if it is not given.

    Raises:
        ConfigError: it is not a whole number of at least -1.
    """
    text = parameters.get("above")
    if text is None:
        return None
    try:
        step = int(text)
    except ValueError:
        step = _MOST + 1
    if not layout.NONE <= step <= _MOST:
        raise ConfigError(f"above: {text!r}; expected a step, or -1 for none")
    return step


def round_asked(parameters: Mapping[str, str]) -> int | None:
    """Return the number in the parameter `round`. `None` if it is not given.

    Raises:
        ConfigError: it is not a whole number.
    """
    text = parameters.get("round")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"round: {text!r}; expected the number of a round")
    return int(text)


def progress_answer(workers: Mapping[int, WorkerProgress]) -> Answer:
    """Return the response with the progress."""
    return Answer(content=encode_json(Progress(workers=workers)).decode() + "\n", content_type="application/json")


def steps_answer(workers: Mapping[int, tuple[tuple[int, int], ...]]) -> Answer:
    """Return the response with the last steps."""
    return Answer(content=encode_json(LastSteps(workers=workers)).decode() + "\n", content_type="application/json")
