"""Reads the error of a failed worker: its error file, a faulthandler dump, or the end of its stderr.

No function raises: if a file is missing, truncated, binary or huge, the next source is read.
"""

import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from elastic_core.processes.errors.causes import causes_in
from elastic_core.processes.errors.frames import TRACEBACK_HEADER, Frame, at_top_level, parse_frames, without_launcher
from elastic_core.processes.errors.text import parse_fault, parse_stderr
from elastic_core.types import ErrorRecord, WorkerExit

T = TypeVar("T")

MAX_FILE_BYTES = 1 << 20
MAX_TEXT_CHARS = 131_072
SIGNAL_CODES = 128
"""A shell uses exit codes above this for a program that a signal killed."""
MAX_TYPE_CHARS = 300
"""The longest dotted name of an exception, because every node of the run reads it."""


def read_error(
    error_file: Path | None, fault_file: Path | None, stderr_tail: bytes | None, *, exit: WorkerExit
) -> ErrorRecord | None:
    """Return the error that a worker left. `None` if it left none.

    The files may be missing or empty. `stderr_tail` is `None` if stderr is not kept. `exit` limits the times in the
    files, and determines which sources apply.
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
        # The hook also records an interpreter that a package ended before `__main__` began.
        return None
    if information.get("exit_code", exit.code) != exit.code:
        return None  # a call of `sys.exit` that the script caught, or a signal during its exit
    if information.get("pid", exit.pid) != exit.pid and not 0 < exit.code < SIGNAL_CODES:
        return None  # an interpreter started by the worker, such as a shell that a signal ended later
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
        # Torch writes whole seconds, too coarse to order a hundred ranks. The file's own time is finer.
        timestamp_ns=_believable(timestamp_ns if isinstance(timestamp_ns, int) else mtime_ns, exit),
        frames=without_launcher(frames),
        callstack=callstack,
        top_level_import=_is_top_level(information.get("top_level_import"), kind, frames),
        causes=tuple(causes_in(message, callstack)) if causes is None else causes,
        notes=_converted(information.get("notes"), tuple[str, ...]) or (),
    )


def _believable(at_ns: int, exit: WorkerExit) -> int:
    # Moved into the worker's lifetime: a file may be older, or have the time of another host.
    began_ns = exit.at_ns - int(exit.runtime_s * 1e9)
    return min(max(at_ns, began_ns), exit.at_ns)


def _split(text: str, kind: object) -> tuple[str, str]:
    # `ValueError: boom` in two parts. A text without an exception's name is all message.
    name, separator, message = text.partition(": ")
    if not separator and text.endswith(":"):
        name, separator = text[:-1], ":"
    if not separator or not name.replace(".", "").isidentifier():
        return (kind if isinstance(kind, str) else ""), text
    # Torch writes the bare class name; ours is qualified, as in Python's tracebacks.
    return (kind if isinstance(kind, str) and kind.rpartition(".")[2] == name else name), message


def _converted(value: object, kind: type[T]) -> T | None:
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
    """Return a file's beginning and its modification time. `None` if it is missing, empty or no plain file."""
    if path is None:
        return None
    try:
        # Non-blocking: a pipe of that name must not block the agent.
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
    """Return the JSON document in `content`. `None` if it is not JSON."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_lenient(content)


def _parse_lenient(content: bytes) -> object:
    # Python's `json.dump` writes lone surrogates and NaN, which a strict reader rejects.
    import json

    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _decode(content: bytes) -> str:
    return content.decode("utf-8", "replace")
