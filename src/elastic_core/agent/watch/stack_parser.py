"""Reads stacks: what an interpreter's faulthandler wrote, and what py-spy prints. Pure."""

import re

from elastic_core.failure.incident import IncidentFrame
from elastic_core.failure.traceback_text import is_user_frame
from elastic_core.processes.errors.frames import Frame, parse_fault_frames, without_launcher

_THREAD = re.compile(r"^(Thread|Current thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
_SPY_THREAD = re.compile(r"^Thread \S+ \(.*\)(?:: \"(?P<name>.*)\")?$")
_SPY_FRAME = re.compile(r"^ +(?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)$")


def faulthandler_frames(text: str) -> tuple[Frame, ...]:
    """Return the main thread's frames in the last of the dumps in `text`, outermost first; empty: there is none.

    An interpreter tells its threads from the youngest to the oldest, a hundred of them. Beyond that it is the thread
    that took the signal: the main one, unless that blocks it.
    """
    lines = text.splitlines()
    heads = [(index, match[1]) for index, line in enumerate(lines) if (match := _THREAD.match(line))]
    current = [index for index, kind in heads if kind == "Current thread"]
    if not heads:
        return ()
    cut = "..." in lines[heads[-1][0] :]
    begin = current[-1] if current and cut else heads[-1][0]
    return without_launcher(parse_fault_frames(lines[begin + 1 :]))


def py_spy_frames(text: str) -> tuple[Frame, ...]:
    """Return the main thread's frames of what `py-spy dump` printed, outermost first; empty: it printed none."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        thread = _SPY_THREAD.match(line)
        frame = _SPY_FRAME.match(line)
        if thread:
            threads.append((thread["name"] or "", []))
        elif frame and threads:
            threads[-1][1].append((frame["file"], int(frame["line"]), frame["function"], ""))
    if not threads:
        return ()
    frames = next((frames for name, frames in threads if name == "MainThread"), threads[0][1])
    return without_launcher(reversed(frames))


def innermost_user(frames: tuple[Frame, ...]) -> int:
    """Return which frame is the innermost line of the user's own code; -1: none."""
    found = (index for index in range(len(frames) - 1, -1, -1) if _is_user(frames[index]))
    return next(found, -1)


def _is_user(frame: Frame) -> bool:
    return is_user_frame(IncidentFrame(file=frame[0], line=0, function=""))
