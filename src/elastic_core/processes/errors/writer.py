"""Writes a worker's error file: torch's format, plus nanoseconds, type and frames, which torch omits.

It runs inside a failing worker: only the standard library, bounded output, and an atomic replacement of the file.
"""

from __future__ import annotations

import json
import linecache
import os
import time
import traceback
from itertools import pairwise

from elastic_core.processes.errors.causes import HANDLING, MAX_TEXT_CHARS, causes_of, name_of, notes_of, place, text_of
from elastic_core.processes.errors.frames import at_top_level, without_launcher
from elastic_core.system.private_file import make_folder, replace_file

# Not from typing: a worker that fails within a second of its start would wait for that import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from elastic_core.processes.errors.frames import Frame

# Records are read up to 1 MiB; these limits keep them far below.
MAX_MESSAGE_CHARS = 16_384
MAX_CALLSTACK_CHARS = 131_072
MAX_SOURCE_CHARS = 400
OUTER_FRAMES = 40
INNER_FRAMES = 120


def write_exception(path: str, error: BaseException, *, source: str = "hook", at_ns: int | None = None) -> None:
    """Write `error` to `path`, or complete another recorder's record of it.

    Args:
        path: The error file.
        error: The exception, with its traceback.
        source: The writer: `hook`, or `record` for the decorator.
        at_ns: When it reached the caller, in nanoseconds since the epoch. `None` means now.
    """
    if at_ns is None:
        at_ns = time.time_ns()  # workers have no Clock: this module is imported in failing processes only
    written = _load(path)
    if written is None:
        write_record(path, _document(error, source=source, at_ns=at_ns))
        return
    known = _find(written, error)
    if known is not None:
        _complete(path, written, known)
    elif _is_default_form(written) and not hasattr(error, "get_first_failure") and not _is_of_command(written, error):
        # A recorder wrote an earlier exception, which the script survived. (Torch's ChildFailedError has a root cause
        # from elsewhere, which was copied here on purpose.)
        write_record(path, _document(error, source=source, at_ns=at_ns))


def write_never_ran(path: str, program: str, orig_argv: Sequence[str], *, at_ns: int) -> None:
    """Write that the interpreter found no program to run.

    `program` is `sys.argv[0]`: a file, or `-m` for a module; `orig_argv` is `sys.orig_argv`. `at_ns` is when, in
    nanoseconds since the epoch.
    """
    if program == "-m":
        kind = "ModuleNotFoundError"
        text = f"module {_module_of(orig_argv)!r} can't be run: it was not found, or importing it failed"
    else:
        kind, text = "FileNotFoundError", f"can't run {_plain(program)!r}: the interpreter could not open it"
    information = _hooks_part(kind, at_ns) | {"frames": [], "top_level_import": True, "never_ran": True}
    write_record(path, {"message": {"message": f"{kind}: {text}", "extraInfo": information}})


def write_exit(
    path: str, code: int, message: str, *, usage: bool, handled: dict[str, Any], frames: Sequence[Frame], at_ns: int
) -> None:
    """Write why a script exited with a code. An existing record is kept.

    `message` is the text of the exit, for argparse and click its last line; it may be empty. `usage`: the command
    line was wrong, so that a retry would fail too. `handled` is the result of `describe_handled`, empty if no
    exception was being handled. `frames` are outermost first. `at_ns` is when, in nanoseconds since the epoch.
    """
    if _load(path) is not None:
        return
    lines = [line for line in _clip(message).splitlines() if line.strip()]
    text = lines[-1] if usage and lines else "\n".join(lines)
    information = _hooks_part("SystemExit", at_ns) | {
        "pid": os.getpid(),
        "frames": [_with_source(*frame) for frame in without_launcher(frames)],
        "causes": [],
        "notes": [],
        "top_level_import": usage,
        "exit_code": code,
    }
    write_record(path, {"message": {"message": f"SystemExit: {text}", "extraInfo": information | handled}})


def describe_handled(error: BaseException) -> dict[str, Any]:
    """Return the record of the exception that a script was handling when it exited."""
    first = (HANDLING, name_of(type(error)), _clip(text_of(error), MAX_TEXT_CHARS), place(error))
    return {"causes": [first, *causes_of(error)], "notes": notes_of(error), "py_callstack": _callstack(error)}


def _hooks_part(kind: str, at_ns: int) -> dict[str, Any]:
    # A record of the hook without a traceback.
    seconds = str(at_ns // 10**9)
    return {"py_callstack": "", "timestamp": seconds, "timestamp_ns": at_ns, "source": "hook", "type": kind}


def _with_source(file: str, line: int, function: str, _: str) -> Frame:
    text = linecache.getline(file, line).strip()
    return _plain(file), line, _plain(function), _clip(text, MAX_SOURCE_CHARS)


def _module_of(orig_argv: Sequence[str]) -> str:
    # The argument after `-m` (alone, or the last of several letters) in the interpreter's command line.
    for option, following in pairwise(orig_argv):
        if option.startswith("-") and not option.startswith("--") and option.endswith("m"):
            return _plain(following)
    return next((_plain(option[2:]) for option in orig_argv if option.startswith("-m")), "")


def load_record(path: str) -> dict[str, Any]:
    """Return the record in `path`.

    Raises:
        ValueError: The file contains no record.
    """
    written = _load(path)
    if written is None:
        raise ValueError(f"{path}: no error record in it")
    return written


def describe_error(error: BaseException) -> str:
    """Return `ValueError: boom`, as torch's recorder writes it. Never raises, even if `__str__` does."""
    return f"{type(error).__name__}: {_clip(text_of(error))}"


def _document(error: BaseException, *, source: str, at_ns: int) -> dict[str, Any]:
    information = {"py_callstack": _callstack(error), "timestamp": str(at_ns // 10**9)}
    return {"message": {"message": describe_error(error), "extraInfo": information | _our_part(error, source, at_ns)}}


def _our_part(error: BaseException, source: str, at_ns: int) -> dict[str, Any]:
    frames = _frames(error)
    importing = isinstance(error, SyntaxError | ImportError) and at_top_level(frames)
    return {
        "timestamp_ns": at_ns,
        "source": source,
        "pid": os.getpid(),
        "type": name_of(type(error)),
        "frames": frames,
        "causes": causes_of(error),
        "notes": notes_of(error),
        # Without frames, an error of ours means that the call itself is invalid.
        "top_level_import": importing or (not frames and type(error).__module__ == "elastic_core.errors"),
    }


def _callstack(error: BaseException) -> str:
    return _clip("".join(traceback.format_exception(error)), MAX_CALLSTACK_CHARS)


def _frames(error: BaseException) -> list[Frame]:
    entries = list(traceback.walk_tb(error.__traceback__))
    if len(entries) > OUTER_FRAMES + INNER_FRAMES:
        entries = entries[:OUTER_FRAMES] + entries[-INNER_FRAMES:]
    frames = [
        (_plain(entry.filename), entry.lineno or 0, _plain(entry.name), _clip(entry.line or "", MAX_SOURCE_CHARS))
        for entry in traceback.StackSummary.extract(iter(entries))
    ]
    if isinstance(error, SyntaxError) and error.filename:
        # The relevant place was never executed, so it has no frame.
        text = _clip((error.text or "").strip(), MAX_SOURCE_CHARS)
        frames.append((_plain(error.filename), error.lineno or 0, "<module>", text))
    return frames


def _load(path: str) -> dict[str, Any] | None:
    # `None` if there is no usable record.
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # pathlib would be one more import in a failing process
            content = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("message"), str | dict) else None


def _is_default_form(written: dict[str, Any]) -> bool:
    message = written["message"]
    information = message.get("extraInfo") if isinstance(message, dict) else None
    return isinstance(information, dict) and "py_callstack" in information


def _is_of_command(written: dict[str, Any], error: BaseException) -> bool:
    # A CalledProcessError whose command has written this record.
    return hasattr(error, "returncode") and written["message"]["extraInfo"].get("pid", os.getpid()) != os.getpid()


def _find(written: dict[str, Any], error: BaseException) -> BaseException | None:
    # The exception that `written` describes: `error`, or one of its causes.
    message = written["message"]
    text = message.get("message") if isinstance(message, dict) else message
    if not isinstance(text, str):
        return None
    return next((candidate for candidate in _chain(error) if describe_error(candidate) == _clip(text)), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _complete(path: str, written: dict[str, Any], error: BaseException) -> None:
    # Add our fields to another recorder's file. Existing fields stay, except texts that are too long.
    at_ns = os.stat(path).st_mtime_ns  # noqa: PTH116  # when it was recorded
    message = written["message"]
    if isinstance(message, str):
        information = written
    else:
        information = message.setdefault("extraInfo", {})
        if not isinstance(information, dict):
            return
        message["message"] = _clip(message["message"])
        if isinstance(information.get("py_callstack"), str):
            information["py_callstack"] = _clip(information["py_callstack"], MAX_CALLSTACK_CHARS)
    ours = _our_part(error, "record", at_ns)
    for key in ("timestamp_ns", "source"):
        ours[key] = information.get(key, ours[key])
    information.update(ours)  # including frames: a recorder sees only those below itself
    write_record(path, written)


def _clip(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    text = _plain(text)
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ...[{len(text) - 2 * half} characters left out]... {text[-half:]}"


def _plain(text: str) -> str:
    # JSON readers other than Python's reject lone surrogates.
    return text.encode("utf-8", "backslashreplace").decode()


def write_record(path: str, record: dict[str, Any]) -> None:
    """Replace the file atomically, readable by its owner only. A missing directory is created again, as private."""
    content = json.dumps(record).encode()
    try:
        replace_file(path, content)
    except FileNotFoundError:  # a cleaner of temporary files removed the directory
        make_folder(os.path.dirname(path))  # noqa: PTH120  # as above
        replace_file(path, content)
