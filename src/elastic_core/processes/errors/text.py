"""Finds a failure in text: faulthandler dumps, and the end of a worker's stderr."""

import re
from collections.abc import Sequence

from elastic_core.processes.errors.causes import causes_in
from elastic_core.processes.errors.frames import (
    TRACEBACK_HEADER,
    Frame,
    at_top_level,
    parse_fault_frames,
    parse_frames,
    without_launcher,
)
from elastic_core.types import ErrorRecord, WorkerExit

FATAL = "Fatal Python error: "
MAX_MESSAGE_LINES = 20
LAST_LINES = 5

# torch.distributed prefixes every line of a traceback with `[rank3]: `.
_RANK_PREFIX = re.compile(r"^\[rank\d+\]:(?: |$)")
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError", *_SYNTAX_ERRORS)
_TERMINATE = re.compile(r"^terminate called after throwing an instance of '(?P<type>[^']+)'")
_WHAT = re.compile(r"^\s*what\(\):\s*(?P<message>.*)$")
_NO_SCRIPT = re.compile(r"can't open file '(?P<name>.*)': \[Errno \d+\] (?P<reason>.*)$")
_NO_MODULE = re.compile(r"^\S+: (?P<text>No module named \S+|Error while finding module specification for .*)$")


def parse_fault(text: str, *, stderr: str, at_ns: int) -> ErrorRecord | None:
    """Return the last dump of faulthandler in `text`. `None` if there is none.

    `text` may have other lines. At the end of `stderr`, the C++ runtime names the exception that aborts the
    process. `at_ns` is when the dump was written.
    """
    lines = _lines(text)
    starts = [index for index, line in enumerate(lines) if line.startswith(FATAL)]
    if not starts:
        return None
    block = lines[starts[-1] :]
    reason = block[0].removeprefix(FATAL).strip()
    thread = next((index for index, line in enumerate(block) if line.startswith("Current thread ")), None)
    frames = () if thread is None else parse_fault_frames(block[thread + 1 :])
    kind, message = _terminated(_lines(stderr)) or ("Fatal Python error", reason)
    return ErrorRecord(
        source="faulthandler",
        type=kind,
        message=message,
        timestamp_ns=at_ns,
        frames=without_launcher(frames),
        callstack="\n".join(block),
    )


def parse_stderr(text: str, *, exit: WorkerExit) -> ErrorRecord | None:
    """Return the failure at the end of a worker's stderr. If there is none, its last lines.

    The failure's time is that of the exit, because the text has none.
    """
    lines = _lines(text)
    at_ns = exit.at_ns
    if exit.code < 0 or exit.code > 128:
        # If a signal killed it, a traceback was handled by the script, or is about something else.
        return parse_fault(text, stderr=text, at_ns=at_ns) or _aborted(lines, at_ns) or _tail(lines, at_ns)
    return _unstartable(lines, at_ns) or _traceback(lines, at_ns) or _syntax_error(lines, at_ns) or _tail(lines, at_ns)


def _lines(text: str) -> list[str]:
    return [_RANK_PREFIX.sub("", line.rstrip("\r")) for line in text.split("\n")]


def _terminated(lines: Sequence[str]) -> tuple[str, str] | None:
    # The type and text of the C++ exception that ended the process.
    found = None
    for index, line in enumerate(lines):
        match = _TERMINATE.match(line)
        what = _WHAT.match(lines[index + 1]) if match and index + 1 < len(lines) else None
        if match:
            found = (match["type"], what["message"] if what else "")
    return found


def _aborted(lines: Sequence[str], at_ns: int) -> ErrorRecord | None:
    found = _terminated(lines)
    if found is None:
        return None
    return ErrorRecord(source="stderr", type=found[0], message=found[1], timestamp_ns=at_ns)


def _unstartable(lines: Sequence[str], at_ns: int) -> ErrorRecord | None:
    # An interpreter that found no program prints that as its last line.
    last = next((line for line in reversed(lines) if line.strip()), "")
    script, module = _NO_SCRIPT.search(last), _NO_MODULE.match(last)
    if script:
        kind, message = "FileNotFoundError", f"{script['reason']}: {script['name']!r}"
    elif module:
        kind, message = "ModuleNotFoundError", module["text"]
    else:
        return None
    return ErrorRecord(source="stderr", type=kind, message=message, timestamp_ns=at_ns, top_level_import=True)


def _traceback(lines: Sequence[str], at_ns: int) -> ErrorRecord | None:
    headers = [index for index, line in enumerate(lines) if line.strip() == TRACEBACK_HEADER]
    if not headers:
        return None
    begin = headers[-1] + 1
    frames, count = parse_frames(lines[begin:])
    return _exception(lines, begin + count, frames, at_ns, callstack_from=headers[-1])


def _syntax_error(lines: Sequence[str], at_ns: int) -> ErrorRecord | None:
    # If a script cannot be compiled, Python prints the place without a traceback's header.
    begin = next((index for index, line in enumerate(lines) if line.startswith('  File "')), None)
    if begin is None:
        return None
    frames, count = parse_frames(lines[begin:])
    record = _exception(lines, begin + count, frames, at_ns, callstack_from=begin)
    return record if record is not None and record.type in _SYNTAX_ERRORS else None


def _exception(
    lines: Sequence[str], index: int, frames: tuple[Frame, ...], at_ns: int, *, callstack_from: int
) -> ErrorRecord | None:
    match = _EXCEPTION.match(lines[index]) if index < len(lines) else None
    if match is None or not frames:
        return None
    following = lines[index + 1 : index + MAX_MESSAGE_LINES]
    return ErrorRecord(
        source="stderr",
        type=match["type"],
        message=match["message"] or "",
        timestamp_ns=at_ns,
        frames=without_launcher(frames),
        callstack="\n".join([*lines[callstack_from : index + 1], *following]).rstrip(),
        top_level_import=match["type"] in _IMPORT_ERRORS and at_top_level(frames),
        causes=tuple(
            causes_in("\n".join([match["message"] or "", *following]), "\n".join([*lines[: index + 1], *following]))
        ),
    )


def _tail(lines: Sequence[str], at_ns: int) -> ErrorRecord | None:
    last = [line.rstrip() for line in lines if line.strip()][-LAST_LINES:]
    return ErrorRecord(source="stderr", type="", message="\n".join(last), timestamp_ns=at_ns) if last else None
