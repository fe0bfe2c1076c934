"""Formats a traceback in a few lines: the frames that a user can act on, and the number of others."""

from collections.abc import Iterator, Sequence

from elastic_core.processes.errors.frames import Frame, is_user_file

_PACKAGE_FOLDERS = ("/site-packages/", "/dist-packages/")
MAX_PATH_CHARS = 60


def frame_lines(frames: Sequence[Frame], *, count: int, width: int) -> Iterator[str]:
    """Yield at most `count` frames with source lines, outermost first; omitted frames are counted at their place.

    `frames` has no launcher frames. `count` is at least 1. Lines longer than `width` are cut.
    """
    if not frames:
        return
    yield "Traceback, innermost last:"
    previous = -1
    for index in sorted(_chosen(frames, count)):
        yield from _gap(index - previous - 1)
        file, line, function, text = frames[index]
        yield f"  {_short_path(file)}:{line} in {function}"
        if text:
            yield cut(f"    {text}", width)
        previous = index
    yield from _gap(len(frames) - previous - 1)


def _gap(count: int) -> Iterator[str]:
    if count:
        yield f"  … {count} frame{'' if count == 1 else 's'}"


def _chosen(frames: Sequence[Frame], count: int) -> set[int]:
    """Return the most useful frames: the user's innermost, the raise, the outermost, then the first one's callers."""
    last = len(frames) - 1
    innermost = _innermost_user(frames)
    callers = range(innermost - 1, -1, -1)
    wanted = dict.fromkeys((innermost, last, 0, *callers, *range(last, innermost, -1)))
    return set(list(wanted)[:count])


def _innermost_user(frames: Sequence[Frame]) -> int:
    found = (index for index in range(len(frames) - 1, -1, -1) if is_user_file(frames[index][0]))
    return next(found, len(frames) - 1)


def _short_path(path: str) -> str:
    """Return a package's file from the package name on; of another long path, the last whole components."""
    for mark in _PACKAGE_FOLDERS:
        if mark in path:
            return path.rpartition(mark)[2]
    if len(path) <= MAX_PATH_CHARS:
        return path
    parts = path.split("/")
    while len(parts) > 1 and len("/".join(parts)) > MAX_PATH_CHARS - 2:
        parts.pop(0)
    return "…/" + "/".join(parts)


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` characters; the end is cut."""
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"
