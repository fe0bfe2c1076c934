"""What holds for every test, whichever folder it is in: signals, time limits, the seed, and what is told at the end.

A plugin of pytest that the settings name (`-p whole_suite`): it holds for `tests`, `plugins` and `examples` alike.
"""

import os
import random
import re
import resource
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import what_ran
from patience import expect, patience, slowness
from support import Elastic, launcher
from tiers import TEST, TIERS, tier_of

SEED = "TESTS_SEED"
"""The variable with the one number that all drawing of a session begins with; `make test SEED=7` sets it."""

SKIPPED = "TESTS_SKIPPED"
"""The variable with the file into which goes what was skipped for want of what, in one line: for make's verdict."""

ECOSYSTEM = "TESTS_ECOSYSTEM"
"""The variable with which tests under other libraries are run, those marked `ecosystem`; `make ecosystem` sets it."""

KIT = "elastic_plugin_kit.conformance"

KIT_LIMITS = {
    "kit": {"CANCEL_S": 1.0},
    "store_calls": {"LATE_S": 1.2},
    "rendezvous": {"LATE_S": 4.0},
    "failure": {"QUICK_S": 10.0, "ABANDONED_S": 10.0},
    "hook": {"QUICK_S": 15.0, "ABANDONED_S": 20.0},
    "starter": {"QUICK_S": 20.0},
    "master_server": {"QUICK_S": 20.0},
}
"""What the conformance kit's limits are in CI, for plugins that keep them elsewhere: as with `patience.kept`, only what
hangs is too late there. Each is below what a call takes that does not end by itself."""

STOPPING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which make runs some tiers of the suite."""
    parser.addoption(
        "--tiers", metavar="LIST", default=",".join(TIERS), help=f"the tiers to run, by comma: {', '.join(TIERS)}"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the test files of other tiers, without importing them."""
    if collection_path.is_dir() or tier_of(collection_path.relative_to(config.rootpath)) in _tiers(config):
        return None
    return True


def _tiers(config: pytest.Config) -> list[str]:
    tiers: list[str] = config.option.tiers.split(",")
    if unknown := [tier for tier in tiers if tier not in TIERS]:
        raise pytest.UsageError(f"--tiers: unknown tier {unknown[0]!r}; expected some of {', '.join(TIERS)}")
    return tiers


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
    # The last one says how forks of tests/torch_server.py print, which don't heed `-u`: the same wherever tests run.
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "PYTHONUNBUFFERED"):  # pytest has read them
        os.environ.pop(name, None)
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
    """Leave out what needs other libraries, give each test the more time, the slower the machine is, and sort them."""
    if not os.environ.get(ECOSYSTEM) and (left_out := [item for item in items if item.get_closest_marker("ecosystem")]):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    if config.option.timeout is not None:
        return  # somebody has said how long, or that no test is to be ended
    for item in items:
        item.add_marker(pytest.mark.timeout(patience(_limit_s(item))), append=False)
    items.sort(key=_limit_s, reverse=True)  # the longest first: at the end, no processor waits for one of them


def _limit_s(item: pytest.Item) -> float:
    """Return how long a test may take."""
    own = item.get_closest_marker("timeout")
    return own.args[0] if own else float(item.config.getini("timeout") or 0)


def pytest_report_header() -> str:
    """Say what the session's results may depend on."""
    return f"seed: {os.environ[SEED]}; this machine is {slowness():.1f} times as slow as an idle one"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how to draw the same again and what the session has cost, and leave a line about what was skipped."""
    seed = os.environ[SEED]
    tiers = _tiers(terminalreporter.config)
    target = tiers[0] if len(tiers) == 1 else "test-all"
    terminalreporter.write_line(f"seed: {seed}; again: make {target} SEED={seed}")
    terminalreporter.write_line(f"CPU: {_cpu_s():.0f} s, of all processes that have ended")
    if path := os.environ.get(SKIPPED):
        Path(path).write_text(_skipped(terminalreporter.stats.get("skipped", [])))


def _cpu_s() -> float:
    """Return the CPU seconds of this process, of all that it has reaped, and of all that make's runner has reaped."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    if "TESTS_SKIPPED" not in os.environ:  # nobody but make's runner adopts what tests leave behind
        return own_s
    stat = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    reaped_ticks = int(stat[13]) + int(stat[14])  # cutime and cstime: fields 16 and 17 of proc(5)
    return own_s + reaped_ticks / os.sysconf("SC_CLK_TCK")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note what a test runs, from its set-up on."""
    with what_ran.noted():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Begin the report of a failure with what was run, what that printed, and the seed."""
    report = yield
    if report.failed:
        tier, seed = tier_of(item.path.relative_to(item.config.rootpath)), os.environ[SEED]
        what_ran.begin(report, f"seed: {seed}; again: make {tier} SEED={seed} PYTEST_ARGS={shlex.quote(item.nodeid)}")
    return report


def _skipped(reports: list[pytest.TestReport]) -> str:
    """Return what was skipped, most first: `; 325 skipped for want of redis-server. Try: apt-get install …`."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    wants = {reason: count for reason, count in reasons.most_common() if reason.startswith("for want of ")}
    others = reasons.total() - sum(wants.values())
    told = [f"{count} skipped {reason}" for reason, count in wants.items()]
    if others:
        told.append(f"{others} skipped for other reasons")
    return "".join(f"; {re.sub(r'[.]$', '', text)}" for text in told)


@pytest.fixture(autouse=True)
def _no_torch_in_the_everyday_tier(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test of the tier `test` that imports torch into this process; a stand-in of a test's own is none."""
    before = "torch" in sys.modules
    yield
    torch = None if before else sys.modules.get("torch")
    if hasattr(torch, "Tensor") and tier_of(request.path.relative_to(request.config.rootpath)) == TEST:
        pytest.fail("the test has imported torch; move it into a folder 'with_torch'")


@pytest.fixture(autouse=True)
def _patient_kit(request: pytest.FixtureRequest) -> None:
    """Give the plugins that a test of the conformance kit is about the limits of CI, if this is CI."""
    kit = sys.modules.get(f"{KIT}.kit")
    if kit is None or not os.environ.get("CI") or not (request.cls and issubclass(request.cls, kit.Kit)):
        return
    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setattr(kit, "crowding", lambda: kit.MOST_CROWDED)  # the load of a machine rises later than its stalls
    for module, limits in KIT_LIMITS.items():
        if f"{KIT}.{module}" in sys.modules:
            for name, limit_s in limits.items():
                monkeypatch.setattr(sys.modules[f"{KIT}.{module}"], name, limit_s)


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
