"""The stacks of the threads of this process, in the format of faulthandler, read under the interpreter's lock."""

import _thread
import sys

from elastic_watch import beat_layout as layout

# Not from typing: training scripts import this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_MAX_THREADS = 100
_MAX_FRAMES = 100
_MAX_NAME = 500


def taken() -> bytes:
    """Return the stacks of all other threads, from the youngest to the oldest, which is the main one.

    Of more than a hundred threads, the youngest ones and the main one are included, and of each stack the hundred
    innermost frames. If the text is too long, its beginning is left out.
    """
    # Places first, then text. While a frame is referenced, its locals exist, also after its function has returned.
    frames = sys._current_frames()
    frames.pop(_thread.get_ident(), None)
    idents = list(frames)
    shown = idents if len(idents) <= _MAX_THREADS else [*idents[: _MAX_THREADS - 1], idents[-1]]
    places = {ident: _places(frames[ident]) for ident in shown}
    frames.clear()
    blocks = [
        "\n".join((f"Thread 0x{ident:016x} (most recent call first):", *map(_line, places[ident]))) for ident in shown
    ]
    if len(shown) < len(idents):
        blocks.insert(-1, "...")
    text = "\n\n".join(blocks) + "\n"
    return text.encode("utf-8", "backslashreplace")[-layout.MAX_STACKS_BYTES :]


def _places(innermost: "FrameType") -> "list[tuple[str, int, str]]":
    """Return file, line and function of the frames, innermost first; one without a file if some are left out."""
    found: list[tuple[str, int, str]] = []
    frame: FrameType | None = innermost
    while frame is not None:
        if len(found) == _MAX_FRAMES:
            return [*found, ("", 0, "")]
        code = frame.f_code
        found.append((code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return found


def _line(place: "tuple[str, int, str]") -> str:
    file, line, function = (str(each)[:_MAX_NAME].replace("\n", "\\n") for each in place)
    return f'  File "{file}", line {line} in {function}' if function else "  ..."
