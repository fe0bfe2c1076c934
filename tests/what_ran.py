"""What a test runs and what that prints, for the first lines of a failure's report.

`noted` records every command that this process starts, and the output that the test reads of it. Agents that
`support.Elastic` starts write to files; `begin` reads the files' ends. A report begins with at most `LINES` lines, then
the traceback follows.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ExceptionChainRepr, ExceptionRepr, ReprEntryNative

LINES = 28
"""How many lines a report has before its traceback: a screen shows them together with the test's name."""

WIDTH = 160
"""How many characters of a line are shown."""

_LEFT = re.compile(r"subprocess (\d+) is still running")


@dataclass
class Command:
    """One command that a test has started."""

    args: list[str]
    process: "subprocess.Popen[Any] | None" = None
    output: "Callable[[], str] | None" = None
    captured: str = ""

    def typed(self) -> str:
        """Return the command as typed in a shell."""
        typed = shlex.join(self.args).replace(f"{sys.executable} -m elastic_core.run", "elastic run")
        return f"$ {typed.replace(sys.executable, 'python')}"

    def shown(self) -> str:
        """Return it with its exit code once it has ended. This reaps it."""
        code = self.process.poll() if self.process else None
        return self.typed() + ("" if code is None else f"   # exit code {code}")

    def printed(self) -> list[str]:
        """Return the lines that it has printed so far, as far as they are known."""
        text = self.captured or (self.output() if self.output else "")
        return [line for line in text.splitlines() if line.strip()]


_commands: list[Command] = []
_started_by: dict[int, str] = {}
"""Which test has started a process, and as what, by process id: a test that leaves one fails another test later."""


def writes_to(process: "subprocess.Popen[Any]", *files: Path) -> None:
    """Tell where a started process writes, for the report."""
    for command in _commands:
        if command.process is process:
            command.output = lambda: "\n".join(path.read_text(errors="replace") for path in files if path.exists())


@contextmanager
def noted() -> Iterator[None]:
    """Record the commands that this process starts within the block; what an earlier block recorded is forgotten."""
    _commands.clear()
    start, communicate = subprocess.Popen.__init__, subprocess.Popen.communicate

    def started(self: "subprocess.Popen[Any]", args: Any, *more: Any, **options: Any) -> None:
        listed = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
        command = Command([os.fsdecode(arg) for arg in listed])
        _commands.append(command)
        start(self, args, *more, **options)
        command.process = self
        _started_by[self.pid] = f"{os.environ.get('PYTEST_CURRENT_TEST')}: {command.typed()}"

    def communicated(self: "subprocess.Popen[Any]", *args: Any, **options: Any) -> Any:
        streams = communicate(self, *args, **options)
        texts = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in streams if text]
        for command in _commands:
            if command.process is self:
                command.captured = "\n".join(texts)
        return streams

    subprocess.Popen.__init__, subprocess.Popen.communicate = started, communicated  # type: ignore[method-assign]  # put back below
    try:
        yield
    finally:
        subprocess.Popen.__init__, subprocess.Popen.communicate = start, communicate  # type: ignore[method-assign]  # as it was


def begin(report: pytest.TestReport, *first: str) -> None:
    """Put `first`, then each command with the end of its output, before the traceback of a failure's report."""
    shown = report.longrepr
    left = [_started_by.get(int(pid), "") for pid in _LEFT.findall(str(shown))]
    first = (*first, *(f"left by {test}" for test in dict.fromkeys(left) if test))
    lines = [*first, *summary(LINES - len(first))]
    entry = ReprEntryNative([f"{line[:WIDTH]}\n" for line in [*lines, ""]])
    if isinstance(shown, ExceptionChainRepr):
        shown.chain[0][0].reprentries.insert(0, entry)
    elif isinstance(shown, ExceptionRepr) and shown.reprtraceback:
        shown.reprtraceback.reprentries.insert(0, entry)
    elif isinstance(shown, str):
        report.longrepr = "\n".join([*lines, shown])


def summary(limit: int) -> list[str]:
    """Return at most `limit` lines: each command and the end of what it printed, the last commands if all don't fit."""
    commands = _commands[-(limit // 2) :]
    left_out = len(_commands) - len(commands)
    lines = [f"({left_out} commands before these)"] if left_out else []
    room = limit - len(lines) - len(commands)
    printed = [command.printed() for command in commands]
    shares = _shares([len(lines) for lines in printed], room)
    for command, text, share in zip(commands, printed, shares, strict=True):
        lines += [command.shown(), *(f"  {line}" for line in text[len(text) - share :])]
    return lines


def _shares(wanted: list[int], room: int) -> list[int]:
    """Divide `room` lines: nobody gets more than wanted, and what one leaves goes to the others."""
    shares = [0] * len(wanted)
    while room > 0 and any(share < want for share, want in zip(shares, wanted, strict=True)):
        for at, want in enumerate(wanted):
            if shares[at] < want and room > 0:
                shares[at] += 1
                room -= 1
    return shares
