"""Checks that the tests catch each seeded fault of tests/mutants.toml.

`make mutants` runs this script from the repository's root. Each table `[[mutant]]` of the file names a text in the
sources, the fault that replaces the text, and the test files that should catch the fault. The script copies the tree
once for each worker. It first runs every set of test files without a fault. Then it applies one fault at a time to a
copy and runs the test files of that fault. The tree itself is never changed.

Exit codes: 0 if the tests catch all faults; 1 if a fault survives, or if a run ends in another way than by a failed
test; 2 if the file of faults has a problem, or if tests fail without a fault.
"""

import argparse
import importlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).resolve().parents[1]
FAST_TIER: Final = "test"
"""The tier of the test files that `make test` runs, as `tier_of` in tests/tiers.py returns it."""
LIMIT_S: Final = 300.0
"""The default limit of one run of pytest."""
_TEST_LIMIT_S: Final = 120
"""The limit of one test, for pytest-timeout."""
_SEED: Final = "0"
"""The seed of each run: Hypothesis draws the same examples every time."""
_SHOWN_EVERY: Final = 10
"""A line of progress follows so many faults."""
_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", re.MULTILINE)
_PASSED: Final = re.compile(r"\b\d+ passed\b")
_ERRORS: Final = (re.compile(r"^E  +(.*\S)", re.MULTILINE), re.compile(r"^ERROR:? (.*\S)", re.MULTILINE))
"""What pytest prints of an exception, and of an error of its own."""


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A seeded fault; all paths start at the root of the tree."""

    name: str
    """The fault in a few words, in kebab-case."""
    file: str
    """The source file."""
    line: str
    """The text that the fault replaces. The text occurs exactly once in the file."""
    fault: str
    """The replacement."""
    tests: tuple[str, ...]
    """The test files that should catch the fault."""


class Run(msgspec.Struct, frozen=True):
    """One run of pytest."""

    code: int | None
    """The exit code; `None` means that the run exceeded its limit and was killed."""
    failed: str
    """The first failed test as `file::test`; empty if no test failed."""
    passed: bool
    """Whether at least one test passed."""
    error: str
    """The last line of pytest that describes an error; empty if there is none."""
    seconds: float

    @property
    def good(self) -> bool:
        """Whether tests ran, and all passed."""
        return self.code == 0 and self.passed

    @property
    def caught(self) -> bool:
        """Whether a test failed; an error during the collection does not count."""
        return self.code == 1 and self.failed != ""

    @property
    def ending(self) -> str:
        """How the run ended, for messages."""
        if self.code is None:
            return f"pytest was killed after {self.seconds:.0f} s"
        if self.code == 0 and not self.passed:
            return "pytest passed no test"
        return f"pytest exit code {self.code} ({self.failed or self.error})"


# --- the file of faults


def load(path: Path, root: Path) -> tuple[list[Mutant], list[str]]:
    """Return the faults of a file, and one line for each problem; without problems every fault applies."""
    hint = f"Try: edit {path.name}"
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant")
    except OSError as error:
        return [], [f"{path}: {error.strerror}; expected a file of faults. Try: --faults FILE"]
    except ValueError as error:
        return [], [f"{path}: {error}; expected valid TOML. {hint}"]
    if not isinstance(entries, list) or not entries:
        return [], [f"{path}: no [[mutant]] table; expected one for each fault. {hint}"]
    mutants, problems = [], []
    for number, entry in enumerate(entries, start=1):
        try:
            mutants.append(msgspec.convert(entry, Mutant))
        except msgspec.ValidationError as error:
            label = entry.get("name", number) if isinstance(entry, dict) else number
            problems.append(f"mutant {label!r}: {error}; expected name, file, line, fault and tests. {hint}")
    for name, count in Counter(mutant.name for mutant in mutants).items():
        if count > 1:
            problems.append(f"mutant {name!r}: {count} tables have this name; expected one. {hint}")
    problems += [problem for mutant in mutants for problem in _problems(mutant, root)]
    return mutants, problems


def _problems(mutant: Mutant, root: Path) -> Iterator[str]:
    label = f"mutant {mutant.name!r}"
    if not _NAME.fullmatch(mutant.name):
        yield f"{label}: the name is not kebab-case; expected a-z, 0-9 and dashes. Try: lease-not-renewed"
    if not mutant.tests:
        yield f"{label}: no test file; expected at least one. Try: the unit tests of {mutant.file}"
    for test in mutant.tests:
        if not (root / test).is_file():
            yield f"{label}: test file {test!r} is missing; expected a file of the tree. Try: its new path"
    source = root / mutant.file
    if not source.is_file():
        yield f"{label}: source file {mutant.file!r} is missing; expected a file of the tree. Try: its new path"
        return
    text = source.read_text(encoding="utf-8")
    count = text.count(mutant.line) if mutant.line else 0
    if count != 1:
        hint = "a longer part of the line" if count else "the line as it is now, or another fault"
        yield f"{label}: the line occurs {count} times in {mutant.file}; expected exactly once. Try: {hint}"
        return
    if mutant.fault == mutant.line:
        yield f"{label}: the fault equals the line; expected a change. Try: another fault"
    try:
        compile(text.replace(mutant.line, mutant.fault), mutant.file, "exec")
    except SyntaxError as error:
        yield f"{label}: the fault does not compile ({error.msg}); expected valid Python. Try: another fault"


def place(mutant: Mutant, root: Path) -> str:
    """Return the file and the line number of a fault."""
    text = (root / mutant.file).read_text(encoding="utf-8")
    return f"{mutant.file}:{text[: text.index(mutant.line)].count(chr(10)) + 1}"


# --- copies of the tree


class Copy:
    """A private copy of the tree, for one worker."""

    def __init__(self, root: Path, path: Path) -> None:
        """Copy all files that git tracks, or does not ignore.

        Raises:
            OSError: a file can't be copied.
            subprocess.CalledProcessError: the root is in no git repository, or a package of the copy is not importable.
            RuntimeError: Python would import a package of the copy from elsewhere.
        """
        self.path = path
        for name in _files(root):
            target = path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target, follow_symlinks=False)
        self._sources = [folder for folder in (path / "src", *sorted(path.glob("plugins/*/src"))) if folder.is_dir()]
        unwanted = ("PYTEST_", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "TESTS_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
        paths = os.pathsep.join(map(str, self._sources))
        self.environment = {**inherited, "PYTHONPATH": paths, "TESTS_SEED": _SEED}
        self._edits = 0
        self._check_imports()

    def _check_imports(self) -> None:
        """Compare where Python finds each package: an editable installation must not override the copy."""
        names = [found.parent.name for folder in self._sources for found in sorted(folder.glob("*/__init__.py"))]
        code = "import sys, importlib.util as u\nfor name in sys.argv[1:]: print(u.find_spec(name).origin)"
        command = [sys.executable, "-c", code, *names]
        done = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, text=True, check=True)
        for name, origin in zip(names, done.stdout.splitlines(), strict=True):
            if not Path(origin).is_relative_to(self.path):
                raise RuntimeError(f"package {name!r}: Python imports {origin}; expected a file below {self.path}")

    @contextmanager
    def altered(self, mutant: Mutant) -> Iterator[None]:
        """Apply a fault to the copy, and restore the file afterwards."""
        path = self.path / mutant.file
        text, found = path.read_text(encoding="utf-8"), path.stat()
        self._edits += 1
        try:
            path.write_text(text.replace(mutant.line, mutant.fault), encoding="utf-8")
            # Python reuses bytecode while size and second are the same: each fault gets a second of its own.
            os.utime(path, (found.st_atime, found.st_mtime + self._edits))
            yield
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def _files(root: Path) -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [name for name in dict.fromkeys(listed.split("\0")) if name and os.path.lexists(root / name)]


# --- runs of pytest


class Runner:
    """Runs pytest in copies of the tree, one run at a time in each. Threading: any, but for the constructor."""

    def __init__(self, copies: Iterable[Copy], limit_s: float) -> None:
        """Use these copies, and kill runs that take longer than `limit_s`."""
        self._free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in copies:
            self._free.put(copy)
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, tests: Sequence[str], mutant: Mutant | None = None) -> Run:
        """Run test files, with a fault or without one."""
        copy = self._free.get()
        try:
            if mutant is None:
                return self._run(copy, tests)
            with copy.altered(mutant):
                return self._run(copy, tests)
        finally:
            self._free.put(copy)

    def stop(self) -> None:
        """Kill all runs; later ones do not start."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)

    def _run(self, copy: Copy, tests: Sequence[str]) -> Run:
        options = ["-x", "-q", "-p", "no:cacheprovider", "--color=no", f"--timeout={_TEST_LIMIT_S}"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        began_s = time.monotonic()
        with tempfile.TemporaryFile() as output:  # a process that a test leaves behind could hold a pipe open
            with self._lock:
                if self._stopped:
                    raise InterruptedError
                process = subprocess.Popen(
                    command,
                    cwd=copy.path,
                    env=copy.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._running.add(process)
            code = self._wait(process)
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        return Run(
            code=code,
            failed=next(reversed(_FAILED.findall(text)), ""),
            passed=_PASSED.search(text) is not None,
            error=next((found[-1] for pattern in _ERRORS if (found := pattern.findall(text))), ""),
            seconds=time.monotonic() - began_s,
        )

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        try:
            return process.wait(self._limit_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.wait()
            return None
        finally:
            with self._lock:
                self._running.discard(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # not reaped: the number is still its own
        os.killpg(process.pid, signal.SIGKILL)


def check(mutants: Sequence[Mutant], root: Path, *, jobs: int, limit_s: float) -> int:
    """Run the test files of all faults, print the results, and return the exit code."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="elastic-mutants-") as folder:
        runner = Runner([Copy(root, Path(folder) / str(number)) for number in range(jobs)], limit_s)
        with ThreadPoolExecutor(jobs) as pool:
            try:
                runs = _all_runs(mutants, runner, pool)
            except BaseException:
                runner.stop()
                pool.shutdown(cancel_futures=True)
                raise
    if runs is None:
        return 2
    return _report(mutants, runs, root, time.monotonic() - began_s)


def _all_runs(mutants: Sequence[Mutant], runner: Runner, pool: ThreadPoolExecutor) -> dict[str, Run] | None:
    """Return the run of each fault by its name; `None` means that tests fail without a fault."""
    sets = list(dict.fromkeys(mutant.tests for mutant in mutants))
    controls = dict(zip(sets, pool.map(runner.run, sets), strict=True))
    bad = {tests: run for tests, run in controls.items() if not run.good}
    for tests, run in bad.items():
        files = " ".join(tests)
        text = f"control run of {files}: {run.ending}; expected passed tests. Try: python -m pytest {files}"
        print(_error(text), file=sys.stderr)
    if bad:
        return None
    print(f"make mutants: control runs without a fault passed: {len(sets)}", file=sys.stderr)
    # The longest first, so that no worker is idle at the end.
    ordered = sorted(mutants, key=lambda mutant: -controls[mutant.tests].seconds)
    runs: dict[str, Run] = {}
    for mutant, run in zip(ordered, pool.map(lambda each: runner.run(each.tests, each), ordered), strict=True):
        runs[mutant.name] = run
        if len(runs) % _SHOWN_EVERY == 0:
            print(f"make mutants: faults tried: {len(runs)} of {len(mutants)}", file=sys.stderr)
    return runs


# --- what is printed


def _report(mutants: Sequence[Mutant], runs: dict[str, Run], root: Path, took_s: float) -> int:
    rows = [("FAULT", "PLACE", "CAUGHT BY", "SECONDS")]
    for mutant in mutants:
        run = runs[mutant.name]
        by = run.failed if run.caught else "nothing: the fault survives" if run.good else f"error: {run.ending}"
        rows.append((mutant.name, place(mutant, root), by, f"{run.seconds:.1f}"))
    _print_table(rows)
    survivors = [mutant.name for mutant in mutants if runs[mutant.name].good]
    errors = [mutant.name for mutant in mutants if not runs[mutant.name].good and not runs[mutant.name].caught]
    parts = [
        f"{len(names)} of {_faults(len(mutants))} {what}: {', '.join(names)}"
        for names, what in ((survivors, "survive"), (errors, "ended in an error"))
        if names
    ]
    if parts:
        print(f"make mutants: FAILED: {'; '.join(parts)}")
        return 1
    fast = sum(_tier_of(runs[mutant.name].failed.partition("::")[0]) == FAST_TIER for mutant in mutants)
    verb = "is" if len(mutants) == 1 else "are"
    caught = f"all {_faults(len(mutants))} {verb} caught, {fast} of them by files of make test"
    print(f"make mutants: {caught}; {took_s:.0f} s")
    return 0


def _tier_of(test_file: str) -> str:
    """Return the tier of a test file, by the rule of tests/tiers.py."""
    sys.path.append(str(ROOT / "tests"))
    tier: str = importlib.import_module("tiers").tier_of(test_file)
    return tier


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _faults(count: int) -> str:
    return "1 fault" if count == 1 else f"{count} faults"


def _error(text: str) -> str:
    return f"mutants.py: {text}"


def main(args: Sequence[str]) -> int:
    """Read the options, and list or check the faults."""
    parser = argparse.ArgumentParser(prog="mutants.py", description="Check that the tests catch seeded faults.")
    parser.add_argument("--faults", type=Path, metavar="FILE", help="the file of faults (default: tests/mutants.toml)")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="DIR", help="the tree (default: this repository)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many runs are parallel (default: 2)")
    parser.add_argument("--only", action="append", metavar="NAME", help="check this fault alone; may be repeated")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="the limit of one pytest run")
    parser.add_argument("--list", action="store_true", help="print the faults, and run nothing")
    options = parser.parse_args(args)
    root: Path = options.root.resolve()
    mutants, problems = load(options.faults or root / "tests" / "mutants.toml", root)
    known = {mutant.name for mutant in mutants}
    for name in options.only or ():
        if name not in known and not problems:
            problems.append(f"--only {name!r}: no fault has this name; expected one of the file. Try: --list")
    if options.jobs < 1:
        problems.append(f"--jobs {options.jobs}: less than 1; expected 1 or more. Try: --jobs 2")
    if problems:
        print(*map(_error, problems), sep="\n", file=sys.stderr)
        return 2
    chosen = [mutant for mutant in mutants if not options.only or mutant.name in options.only]
    if options.list:
        _print_table(
            [
                ("FAULT", "PLACE", "TESTS"),
                *((mutant.name, place(mutant, root), " ".join(mutant.tests)) for mutant in chosen),
            ]
        )
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a terminated script kills its runs, too
    try:
        return check(chosen, root, jobs=min(options.jobs, len(chosen)), limit_s=options.limit)
    except KeyboardInterrupt:
        print(_error("interrupted"), file=sys.stderr)
        return 130
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:  # of the copies
        print(
            _error(f"{error}; expected a copy of {root}. Try: a checkout with git, and room in $TMPDIR"),
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
