"""Frames of a traceback: which are the launcher's, and how to parse them from text."""

from __future__ import annotations

import re

# Not from typing or collections.abc: the hook in a failing worker imports this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Frame = tuple[str, int, str, str]
"""File, line, function, source line (empty if not known)."""

# Code between the interpreter and the user's code, which users cannot change.
_LAUNCHER_PATHS = (
    "torch/distributed/elastic/multiprocessing/errors/",
    "elastic_ops/control_plane/",
    "elastic_ops/recording.py",
    "elastic_standby/spare.py",
    "elastic_torchrun/store/watch.py",
    "elastic_watch/",
    "elastic_core/processes/errors/",
    "elastic_core/worker/",
    "/importlib/__init__.py",
    "/importlib/_bootstrap",
)
_LAUNCHER_FILES = ("<frozen runpy>", "<frozen importlib", "<frozen zipimport>")
_LIBRARY_MARKS = ("/site-packages/", "/dist-packages/", "/lib/python3")

TRACEBACK_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')
_FAULT_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_MARKERS = re.compile(r"^[\s^~]+$")


def is_launcher_frame(file: str) -> bool:
    """Return whether a frame of `file` belongs to the launcher, torch's recorder or the import machinery."""
    if file.startswith(_LAUNCHER_FILES) or file.endswith("/runpy.py"):
        return True
    return any(path in file for path in _LAUNCHER_PATHS)


def is_user_file(file: str) -> bool:
    """Return whether a file belongs to neither the standard library, an installed package nor generated code."""
    return not file.startswith("<") and not any(mark in file for mark in _LIBRARY_MARKS)


def place_of(places: Sequence[tuple[str, int, *tuple[str, ...]]]) -> str:
    """Return the innermost place in the user's own code, such as `train.py:12`. Empty if there are no places.

    If no place is in the user's code, it is the innermost of all.
    """
    if not places:
        return ""
    file, line = next((each for each in reversed(places) if is_user_file(each[0])), places[-1])[:2]
    return f"{file.rpartition('/')[2]}:{line}"


def without_launcher(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Return the frames without the launcher's, in the same order."""
    return tuple(frame for frame in frames if not is_launcher_frame(frame[0]))


def at_top_level(frames: Iterable[Frame]) -> bool:
    """Return whether no function was running: every frame is module code, or import machinery."""
    return all(frame[2] == "<module>" for frame in without_launcher(frames))


def parse_frames(lines: Sequence[str]) -> tuple[tuple[Frame, ...], int]:
    """Return the frames of a traceback's indented lines, outermost first, and the number of these lines."""
    frames: list[Frame] = []
    index = 0
    while index < len(lines) and (not lines[index].strip() or lines[index][0] in " \t"):
        match = _FRAME.match(lines[index])
        if match:
            frames.append((match["file"], int(match["line"]), match["function"] or "<module>", ""))
        elif frames and not frames[-1][3] and lines[index].strip() and not _MARKERS.match(lines[index]):
            frames[-1] = (*frames[-1][:3], lines[index].strip())
        index += 1
    return tuple(frames), index


def parse_fault_frames(lines: Iterable[str]) -> tuple[Frame, ...]:
    """Return the frames of one thread in a faulthandler dump, outermost first (the dump is innermost first)."""
    frames: list[Frame] = []
    for line in lines:
        match = _FAULT_FRAME.match(line)
        if match is None:
            break
        frames.append((match["file"], int(match["line"]), match["function"], ""))
    return tuple(reversed(frames))
