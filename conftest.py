"""What holds for every test, whichever folder it is in: signals, time limits, the seed, and what is told at the end."""

import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from patience import expect, patience, slowness
from support import Elastic, launcher

SEED = "TESTS_SEED"
"""The variable with the one number that all drawing of a session begins with; `make test SEED=7` sets it."""

SKIPPED = "TESTS_SKIPPED"
"""The variable with the file into which goes what was skipped for want of what, in one line: for make's verdict."""

ECOSYSTEM = "TESTS_ECOSYSTEM"
"""The variable with which tests under other libraries are run, those marked `ecosystem`; `make ecosystem` sets it."""

STOPPING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed, measure the machine, and give signals their effect, before anything is started."""
    if not os.environ.get(SEED):
        os.environ[SEED] = str(random.SystemRandom().randrange(1_000_000))
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = os.environ[SEED]
    if not os.environ.get("CI"):  # there Hypothesis does so by itself
        settings.register_profile("without a clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("without a clock")
    expect(getattr(config.option, "numprocesses", None) or 1)
    if not getattr(config.option, "numprocesses", None):  # else this process only gives out tests
        _end_ignoring()


def _end_ignoring() -> None:
    """Give the processes that tests start the default dispositions, whoever started us: `nohup`, or a shell's `&`.

    This process lets a hangup pass as before, and what it starts does not: a handler ends with the program.
    """
    effects = {signal.SIGHUP: lambda *_: None, signal.SIGINT: signal.default_int_handler}
    for signum in STOPPING:
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, effects.get(signum, signal.SIG_DFL))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs other libraries, and give each test the more time, the slower the machine is."""
    if not os.environ.get(ECOSYSTEM) and (left_out := [item for item in items if item.get_closest_marker("ecosystem")]):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    if config.option.timeout is not None:
        return  # somebody has said how long, or that no test is to be ended
    for item in items:
        own = item.get_closest_marker("timeout")
        limit_s = own.args[0] if own else float(config.getini("timeout") or 0)
        item.add_marker(pytest.mark.timeout(patience(limit_s)), append=False)


def pytest_report_header() -> str:
    """Say what the session's results may depend on."""
    return f"seed: {os.environ[SEED]}; this machine is {slowness():.1f} times as slow as an idle one"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how to draw the same again, and leave a line about what was skipped."""
    seed = os.environ[SEED]
    terminalreporter.write_line(f"seed: {seed}; again: make test SEED={seed}")
    if path := os.environ.get(SKIPPED):
        Path(path).write_text(_skipped(terminalreporter.stats.get("skipped", [])))


def _skipped(reports: list[pytest.TestReport]) -> str:
    """Return what was skipped, most first: `; 325 skipped for want of redis-server. Try: apt-get install …`."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    wants = {reason: count for reason, count in reasons.most_common() if reason.startswith("for want of ")}
    others = reasons.total() - sum(wants.values())
    told = [f"{count} skipped {reason}" for reason, count in wants.items()]
    if others:
        told.append(f"{others} skipped for other reasons")
    return "".join(f"; {re.sub(r'[.]$', '', text)}" for text in told)


@pytest.fixture
def elastic(tmp_path: Path) -> Iterator[Callable[..., Elastic]]:
    """Start `elastic run` with arguments; every process of it is ended after the test."""
    yield from launcher(tmp_path)


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Write a worker script and return its path."""

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
