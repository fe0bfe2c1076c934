"""Output of workers through the launcher, to a log file and with a prefix into a pipe."""

import os
import re
import select
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import procfs, workers
from benchmarks.bench import Bench
from benchmarks.launchers import DEADLINE_S, Launcher
from benchmarks.measure import MeasureError, Take
from benchmarks.stats import FLOOR

QUIET_S = 3.0
"""A launcher that has passed on nothing for so long has nothing left: torchrun may take 2 s for a line."""
_LINE = re.compile(rb"\[default(\d+)\]:(\d+) (\d+) x{48}")
_TICK = re.compile(rb"\[default0\]:tick (\d+)")


@dataclass(frozen=True)
class Check:
    """What came of the lines that were printed."""

    lost: int
    wrong: int


def check(lines: Iterable[bytes], ranks: int, each: int) -> Check:
    """Compare what arrived with what `ranks` workers printed, lines 0 to `each` - 1 every one."""
    seen: list[set[int]] = [set() for _ in range(ranks)]
    wrong = 0
    for line in lines:
        match = _LINE.fullmatch(line)
        by, rank, number = map(int, match.groups()) if match else (-1, -1, -1)
        if by != rank or not 0 <= rank < ranks or number >= each or number in seen[rank]:
            wrong += 1
        else:
            seen[rank].add(number)
    return Check(lost=ranks * each - sum(map(len, seen)), wrong=wrong)


def lines(name: str, text: str, ranks: int) -> Callable[[Bench], Mapping[str, Take]]:
    """Return the takes of a measure: the agent's CPU for a line in us, and the lines that are lost or wrong.

    Args:
        name: Of the first figure; `-faults` is added for the second.
        text: The workers' script.
        ranks: How many workers print.
    """

    def take(launcher: Launcher, bench: Bench) -> Mapping[str, float]:
        cpu_us, found = flood(launcher, bench.folder, text, ranks, bench.size.lines)
        return {name: cpu_us, f"{name}-faults": float(found.lost + found.wrong)}

    return lambda bench: bench.each(take, bench, without=FLOOR)


def delay(bench: Bench) -> Mapping[str, Take]:
    """Return the takes of a measure: the median time in ms of a line from the worker to us."""
    return bench.each(delay_ms, bench.folder, without=FLOOR)


def flood(launcher: Launcher, base: Path, text: str, ranks: int, total: int) -> tuple[float, Check]:
    """Have workers print as fast as they can; return the agent's CPU for a line in us, and what became of the lines."""
    each = total // ranks
    with tempfile.TemporaryDirectory(dir=base) as name:
        folder = Path(name)
        speaks, go, leave = (str(folder / word) for word in ("ready", "go", "leave"))
        os.mkfifo(go)
        os.mkfifo(leave)
        script = workers.write(folder, "print", text)
        command = launcher(ranks, 0, [script, speaks, go, leave, str(each)], ("--tee", "3", "--log-dir", str(folder)))
        run = _Piped(command)
        try:
            run.read_while(lambda: not all(Path(f"{speaks}.{rank}").exists() for rank in range(ranks)))
            run.taken.clear()
            before = procfs.activity(run.pid)
            go_fd = _gate(go, run)
            run.read_lines(ranks * each)
            cpu_ms = procfs.activity(run.pid).cpu_ms - before.cpu_ms
            leave_fd = _gate(leave, run)
            run.read_to_end()
            os.close(go_fd)
            os.close(leave_fd)
        finally:
            run.close()
        found = check(b"".join(run.taken).splitlines(), ranks, each)
    return cpu_ms * 1e3 / (ranks * each), found


def delay_ms(launcher: Launcher, base: Path) -> float:
    """Return the median time of a line from the worker's write to us."""
    with tempfile.TemporaryDirectory(dir=base) as name:
        script = workers.write(Path(name), "tick", workers.TICK)
        run = _Piped(launcher(1, 0, [script], ("--tee", "3", "--log-dir", name)))
        try:
            delays = []
            while chunk := run.chunk(DEADLINE_S):
                now_ns = time.monotonic_ns()
                delays += [(now_ns - int(match[1])) / 1e6 for match in _TICK.finditer(chunk)]
        finally:
            run.close()
    return statistics.median(delays)


class _Piped:
    """A launcher whose output we take as it comes."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        if self._process.stdout is None:
            raise RuntimeError("no pipe")
        self._stdout = self._process.stdout
        self.pid = self._process.pid
        self.taken: list[bytes] = []

    def chunk(self, timeout_s: float) -> bytes:
        """Return what comes next; nothing: the end, or nothing in time."""
        ready, _, _ = select.select([self._stdout], [], [], timeout_s)
        return os.read(self._stdout.fileno(), 1 << 20) if ready else b""

    def read_while(self, condition: Callable[[], bool]) -> None:
        """Take output as long as the condition holds."""
        end_s = time.monotonic() + DEADLINE_S
        while condition():
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise MeasureError(f"{self._process.args!r}: workers did not get ready")
            self.taken.append(self.chunk(0.02))

    def read_lines(self, count: int) -> None:
        """Take so many lines, or all that come until it has been quiet for a while."""
        found = 0
        while found < count and (chunk := self.chunk(QUIET_S)):
            found += chunk.count(b"\n")
            self.taken.append(chunk)

    def read_to_end(self) -> None:
        """Take the rest."""
        while chunk := self.chunk(DEADLINE_S):
            self.taken.append(chunk)

    def close(self) -> None:
        """End it, if need be, and close the pipe."""
        if self._process.poll() is None:
            try:
                self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                self._process.terminate()
                self._process.wait(DEADLINE_S)
        self._stdout.close()


def _gate(path: str, run: _Piped) -> int:
    """Open a FIFO that workers wait at, and keep it open for those that come late."""
    found: list[int] = []

    def closed() -> bool:
        try:
            found.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # ENXIO: nobody there yet
            return True
        return False

    run.read_while(closed)
    return found[0]
