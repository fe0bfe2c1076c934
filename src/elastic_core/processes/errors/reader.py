"""The error of a failed worker: read from its error file, a faulthandler dump, or the end of its stderr.

Nothing here raises: if a file is missing, truncated, binary or huge, the next source is read.
"""

import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from elastic_core.processes.errors.causes import causes_in
from elastic_core.processes.errors.frames import (
    TRACEBACK_HEADER,
    Frame,
    at_top_level,
    parse_frames,
    without_launcher,
)
from elastic_core.processes.errors.text import parse_fault, parse_stderr
from elastic_core.types import ErrorRecord, WorkerExit

T = TypeVar("T")

MAX_FILE_BYTES = 1 << 20
MAX_TEXT_CHARS = 131_072
SIGNAL_CODES = 128
"""Exit codes above this are a shell's for a program that a signal has ended."""
MAX_TYPE_CHARS = 300
"""The limit of an exception's dotted name, which every node of the run reads."""


def read_error(
    error_file: Path | None, fault_file: Path | None, stderr_tail: bytes | None, *, exit: WorkerExit
) -> ErrorRecord | None:
    """Return the error that a worker left beside its exit code; None: there is none.

    Args:
        error_file: The file of the worker's recorder; may be missing.
        fault_file: The file of its faulthandler; may be missing or empty.
        stderr_tail: The end of its stderr; None: stderr was not kept.
        exit: The worker's end: it bounds the times in the files, and determines which sources can apply.
    """
    record = _from_error_file(error_file, exit) or _from_fault_file(fault_file, stderr_tail, exit)
    if record is None and stderr_tail:
        record = parse_stderr(_decode(stderr_tail), exit=exit)
    if record is not None and len(record.type) > MAX_TYPE_CHARS:
        record = replace(record, type=record.type[:MAX_TYPE_CHARS])
    return record


def _from_error_file(path: Path | None, exit: WorkerExit) -> ErrorRecord | None:
    found = read_error_file(path)
    if found is None:
        return None
    content, mtime_ns = found
    document = parse_error_file(content)
    message = document.get("message") if isinstance(document, dict) else None
    if isinstance(message, dict):
        information = message.get("extraInfo")
        return _build(message.get("message"), information if isinstance(information, dict) else {}, mtime_ns, exit)
    if isinstance(message, str) and isinstance(document, dict):
        return _build(message, document, mtime_ns, exit)
    return None


def _build(text: object, information: dict[str, Any], mtime_ns: int, exit: WorkerExit) -> ErrorRecord | None:
    if not isinstance(text, str) or (information.get("never_ran") is True and exit.code not in (1, 2)):
        # The hook also sees an interpreter that a package made leave before `__main__` began.
        return None
    if information.get("exit_code", exit.code) != exit.code:
        return None  # a call of `sys.exit` that the script caught, or a signal while it left
    if information.get("pid", exit.pid) != exit.pid and not 0 < exit.code < SIGNAL_CODES:
        return None  # an interpreter below the worker: a shell, say, that a signal ended some time after
    callstack = information.get("py_callstack")
    callstack = callstack[:MAX_TEXT_CHARS] if isinstance(callstack, str) else ""
    kind, message = _split(text[:MAX_TEXT_CHARS], information.get("type"))
    given = _converted(information.get("frames"), tuple[Frame, ...])
    frames = _frames_in(callstack) if given is None else given
    timestamp_ns = information.get("timestamp_ns")
    causes = _converted(information.get("causes"), tuple[tuple[str, str, str, str], ...])
    return ErrorRecord(
        source="hook" if information.get("source") == "hook" else "record",
        type=kind,
        message=message,
        # Torch writes whole seconds, in which a hundred ranks fail at once; its file's own time is finer.
        timestamp_ns=_believable(timestamp_ns if isinstance(timestamp_ns, int) else mtime_ns, exit),
        frames=without_launcher(frames),
        callstack=callstack,
        top_level_import=_is_top_level(information.get("top_level_import"), kind, frames),
        causes=tuple(causes_in(message, callstack)) if causes is None else causes,
        notes=_converted(information.get("notes"), tuple[str, ...]) or (),
    )


def _believable(at_ns: int, exit: WorkerExit) -> int:
    """Return `at_ns`, moved into the worker's lifetime: a file may be older, or of a host with another clock."""
    began_ns = exit.at_ns - int(exit.runtime_s * 1e9)
    return min(max(at_ns, began_ns), exit.at_ns)


def _split(text: str, kind: object) -> tuple[str, str]:
    """Take `ValueError: boom` apart; a text without an exception's name in front is all message."""
    name, separator, message = text.partition(": ")
    if not separator and text.endswith(":"):
        name, separator = text[:-1], ":"
    if not separator or not name.replace(".", "").isidentifier():
        return (kind if isinstance(kind, str) else ""), text
    # Torch writes the bare class name; ours beside it is qualified, as Python prints it.
    return (kind if isinstance(kind, str) and kind.rpartition(".")[2] == name else name), message


def _converted(value: object, kind: type[T]) -> T | None:
    """Return `value` as `kind`; None: it is of another type."""
    if not isinstance(value, list):
        return None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def _frames_in(callstack: str) -> tuple[Frame, ...]:
    lines = callstack.splitlines()
    headers = [index for index, line in enumerate(lines) if line.strip() == TRACEBACK_HEADER]
    return parse_frames(lines[headers[-1] + 1 :])[0] if headers else ()


def _is_top_level(given: object, kind: str, frames: tuple[Frame, ...]) -> bool:
    if isinstance(given, bool):
        return given
    imports = ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError")
    return kind in imports and bool(frames) and at_top_level(frames)


def _from_fault_file(path: Path | None, stderr_tail: bytes | None, exit: WorkerExit) -> ErrorRecord | None:
    found = read_error_file(path)
    if found is None or 0 < exit.code < SIGNAL_CODES:
        return None
    content, mtime_ns = found
    at_ns = _believable(mtime_ns, exit)
    return parse_fault(_decode(content), stderr=_decode(stderr_tail or b""), at_ns=at_ns)


def read_error_file(path: Path | None) -> tuple[bytes, int] | None:
    """Return a file's beginning and its modification time; None for one that is missing, empty or no plain file."""
    if path is None:
        return None
    try:
        # Non-blocking: a pipe of that name must not hold the agent.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        with open(fd, "rb", buffering=0) as file:  # noqa: PTH123  # a descriptor, not a path
            content = file.read(MAX_FILE_BYTES)
            return (content, os.fstat(fd).st_mtime_ns) if content else None
    except OSError:
        return None


def parse_error_file(content: bytes) -> object:
    """Return the document in `content`; None: it is no JSON."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_lenient(content)


def _parse_lenient(content: bytes) -> object:
    """Read what Python's own `json.dump` may have written and a strict reader refuses: lone surrogates, NaN."""
    import json

    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _decode(content: bytes) -> str:
    return content.decode("utf-8", "replace")
