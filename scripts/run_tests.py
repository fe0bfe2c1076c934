#!/usr/bin/env python3
"""Run tiers of the test suite under pytest, count their CPU seconds, and end with a verdict.

    scripts/run_tests.py [--jobs N] [--apart] [--compile] TIER... [-- PYTEST_ARGS]

A tier is a name of `tests/tiers.py`. This process adopts and reaps what tests leave behind, as the init process of a
container does, so the CPU seconds include every process that has ended. With `--apart`, the first tier runs in a pytest
session of its own, before the others. With `--compile`, no test is run: the bytecode of the tests is written, as a run
in a fresh clone does first. In CI no verdict follows a run that passed: pytest's summary is the last word.
"""

import argparse
import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from tiers import TIERS, not_run  # noqa: E402  # found by the line above

PR_SET_CHILD_SUBREAPER = 36


NO_TESTS, INTERRUPTED = 5, 2
"""Exit codes of pytest: nothing was selected; somebody pressed Ctrl-C."""


def main() -> int:
    """Run what the command line names; return pytest's exit code, of the first session that failed."""
    own, after = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, after = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(usage="run_tests.py [OPTION]... TIER... [-- PYTEST_ARGS]")
    parser.add_argument("--jobs", default="0", help="how many tests run side by side; 0: one by one")
    parser.add_argument("--apart", action="store_true", help="run the first tier in a session of its own")
    parser.add_argument("--compile", action="store_true", help="write the bytecode of the tests, and run none")
    parser.add_argument("--name", help="the make target that the verdict names")
    parser.add_argument("tiers", nargs="+", choices=TIERS, metavar="TIER")
    args = parser.parse_args(own)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began_s, ended, skipped = time.monotonic(), [], ""
    if args.jobs != "0" or args.compile:
        compile_tests(args.tiers)
    if args.compile:
        return 0
    for tiers in [args.tiers[:1], args.tiers[1:]] if args.apart and len(args.tiers) > 1 else [args.tiers]:
        status, wants = run(tiers, args.jobs, after)
        ended.append((tiers, status))
        skipped += wants
        if status in (INTERRUPTED, -signal.SIGINT):
            break
    name = args.name or args.tiers[0]
    failed = [(tiers, status) for tiers, status in ended if status not in (0, NO_TESTS)]
    if all(status == NO_TESTS for _, status in ended):
        failed = ended
    if failed:
        tiers, status = failed[0]
        how = "interrupted" if status in (INTERRUPTED, -signal.SIGINT) else "FAILED"
        print(f"make {name}: {how} in {' and '.join(tiers)}, pytest's exit code is {status}", flush=True)
        return status if status > 0 else 128 - status
    if not os.environ.get("CI"):
        took = f"{time.monotonic() - began_s:.0f} s, {cpu_s():.0f} s of CPU"
        left_out = not_run({*args.tiers})
        print(f"make {name}: all tests passed in {took}{skipped}{'; ' if left_out else ''}{left_out}", flush=True)
    return 0


def compile_tests(tiers: list[str]) -> None:
    """Have one process write the bytecode of the tests of a fresh clone: else each worker compiles all of them."""
    if not any((ROOT / "tests" / "unit").glob("*/__pycache__")):
        print("compiling the tests", flush=True)
        command = [sys.executable, "-m", "pytest", "--tiers", ",".join(tiers), "--collect-only", "-qq"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)  # the session itself shows errors


def run(tiers: list[str], jobs: str, args: list[str]) -> tuple[int, str]:
    """Run a session of pytest; return its exit code, and what it skipped for want of what."""
    with tempfile.NamedTemporaryFile(mode="r", prefix="tests-skipped-") as skipped:
        command = [sys.executable, "-m", "pytest", "--tiers", ",".join(tiers), "-n", jobs, "--dist", "loadgroup"]
        command += ["--durations", "20", "--durations-min", "1", *args]
        pytest = subprocess.Popen(command, env=os.environ | {"TESTS_SKIPPED": skipped.name}, cwd=ROOT)
        with pass_signals_to(pytest):
            return reap_until(pytest.pid), skipped.read()


@contextmanager
def pass_signals_to(pytest: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Let pytest end the session: Ctrl-C reaches it anyway, a signal to this process alone is passed on."""
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for signum, handler in before.items():
        if handler is not signal.SIG_IGN:
            on = (lambda *_: None) if signum == signal.SIGINT else (lambda signum, _: pytest.send_signal(signum))
            signal.signal(signum, on)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def reap_until(pid: int) -> int:
    """Reap every child that ends, adopted ones included, until `pid` has ended; return its exit code, or -SIGNAL."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def cpu_s() -> float:
    """Return the CPU seconds of this process and of all that it has reaped, with what those have reaped."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    sys.exit(main())
