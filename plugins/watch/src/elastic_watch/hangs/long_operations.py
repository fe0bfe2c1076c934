"""Long operations that are no hang: saves and restores that the script marks, and what a stack shows. Pure.

elastic-train's page has the marks of `Checkpointer.save`, `.load`, `saving` and `restoring`, and the steps of
`should_stop(step=…)`. Another hook of the agent offers them as JSON.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from elastic_core.api import Record
from elastic_watch.beat_file import OpenSection, WorkerBeats

OFFER: Final = "planned-stops-progress"
SAVE_S: Final = 1800.0
"""The least time limit of a save or a restore."""
SAVE_FACTOR: Final = 3.0
"""The time limit of a save is at least this many times the longest one of the run."""
COMPILE_S: Final = 1800.0
"""How long a worker may compile, from the time at which its stack has shown this."""
DEBUG_S: Final = 86400.0
"""The same for a debugger inside the interpreter, which waits for a person."""

_COMPILERS: Final = (
    "/torch/_dynamo/convert_frame.py",
    "/torch/_dynamo/symbolic_convert.py",
    "/torch/_dynamo/variables/",
    "/torch/_inductor/async_compile.py",
    "/torch/_inductor/graph.py",
    "/torch/_inductor/scheduler.py",
    "/torch/_inductor/codegen/",
)
"""Files of torch whose code runs only while it compiles, and not while it calls what was compiled."""
_PEERS: Final = "/torch/distributed/"
_DEBUGGERS: Final = {
    "pdb.py": ("interaction", "cmdloop", "_cmdloop"),
    "debugger.py": ("interaction", "cmdloop"),
    "pydevd.py": ("do_wait_suspend", "_do_wait_suspend"),
}
"""Functions that wait for a person, by the names of their files: pdb, IPython's, pydevd (debugpy, PyCharm)."""


class ScriptProgress(Record, frozen=True, kw_only=True):
    """The steps of `should_stop` and the marks of one worker; times in seconds of the monotonic clock."""

    step: int | None = None
    step_s: float | None = None
    marks: tuple[tuple[str, float, float | None], ...] = ()
    """Saves and restores: `save` or `restore`, begin, and end (`None` while it is open)."""
    pid: int = 0
    """The process that reported this. 0 means not known."""


class _Response(Record, frozen=True, kw_only=True):
    workers: Mapping[int, ScriptProgress] = {}


_DECODER: Final = msgspec.json.Decoder(_Response)


def progress_of(content: str) -> Mapping[int, ScriptProgress]:
    """Return the progress by local rank; empty if the response has another form."""
    try:
        return _DECODER.decode(content).workers
    except (msgspec.DecodeError, UnicodeError):
        return {}


def longest_marks(longest_s: Mapping[str, float], workers: Iterable[ScriptProgress]) -> dict[str, float]:
    """Return the longest save and restore of the run, by kind, with those of `workers`."""
    found = dict(longest_s)
    for worker in workers:
        for kind, begin_s, end_s in worker.marks:
            if end_s is not None:
                found[kind] = max(found.get(kind, 0.0), end_s - begin_s)
    return found


def with_progress(
    beats: Mapping[int, WorkerBeats], progress: Mapping[int, ScriptProgress], longest_s: Mapping[str, float]
) -> dict[int, WorkerBeats]:
    """Return heartbeats together with the calls of `should_stop`, and with the open saves as sections.

    A worker's own sections override its saves. A restore counts after the first sign of life; the time before it is
    limited by `--startup-timeout` alone. If any worker sends steps by `heartbeat`, the steps of `should_stop` are not
    used, since both may count differently.
    """
    own_steps = any(each.step is not None for each in beats.values())
    return {
        rank: _with_progress(beats.get(rank, WorkerBeats()), progress[rank], longest_s, own_steps=own_steps)
        if rank in progress
        else beats[rank]
        for rank in beats.keys() | progress.keys()
    }


def _with_progress(
    beats: WorkerBeats, progress: ScriptProgress, longest_s: Mapping[str, float], *, own_steps: bool
) -> WorkerBeats:
    beat_s = max((time_s for time_s in (beats.beat_s, progress.step_s) if time_s is not None), default=None)
    opened: tuple[OpenSection, ...] = ()
    if progress.marks:
        kind, begin_s, end_s = progress.marks[-1]
        if beat_s is not None:  # a mark is a sign of life, but not the first one
            beat_s = max(beat_s, begin_s, end_s or 0.0)
        if end_s is None and (kind == "save" or beat_s is not None):
            limit_s = max(SAVE_S, SAVE_FACTOR * longest_s.get(kind, 0.0))
            # The serials of the worker's sections are positive.
            opened = (OpenSection(serial=-round(begin_s * 1e9), name=kind, since_s=begin_s, limit_s=limit_s),)
    return replace(
        beats,
        beat_s=beat_s,
        step=beats.step if own_steps else progress.step,
        sections=beats.sections or opened,
    )


class LongOperation(Record, frozen=True, kw_only=True):
    """An operation that a stack shows, with the time for which it is no hang."""

    name: str
    limit_s: float


def long_operation(frames: Sequence[tuple[str, int, str, str]]) -> LongOperation | None:
    """Return the long operation that the main thread's frames show, outermost first. `None` if they show none.

    A compilation that waits for other ranks in torch.distributed is none.
    """
    for file, _, function, _ in reversed(frames):
        if function in _DEBUGGERS.get(file.rpartition("/")[2], ()):
            return LongOperation(name="a debugger", limit_s=DEBUG_S)
        if _PEERS in file:
            return None
        if any(part in file for part in _COMPILERS):
            return LongOperation(name="torch.compile", limit_s=COMPILE_S)
    return None
