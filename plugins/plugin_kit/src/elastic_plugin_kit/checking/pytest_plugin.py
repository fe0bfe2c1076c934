"""The plugin of pytest behind `pytest --pyargs elastic_plugin_kit.suites --elastic-plugin NAME`.

Every session of pytest loads it if this distribution is installed. Without `--elastic-plugin` it only adds the page of
the rules to the report of a failed kit test.
"""

import signal
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from elastic_plugin_kit.checking.subject import Subject

_KIT: Final = "elastic_plugin_kit.conformance.kit"
SUBJECT: "Final[pytest.StashKey[Subject]]" = pytest.StashKey()
"""Where the session keeps the plugin for the suites."""
_SUITES: Final = Path(__file__).parents[1] / "suites.py"
CHECK_S: Final = 60.0
"""How long one check may take: this ends a call that hangs where the kit has no deadline of its own."""
MOST_HUNG: Final = 3
"""After so many checks that have not ended the session stops."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options that say which plugin the suites check."""
    group = parser.getgroup("elastic", "conformance of a plugin of elastic-core")
    group.addoption("--elastic-plugin", metavar="NAME", help="name of an installed plugin, or module:Class")
    group.addoption("--elastic-kind", metavar="KIND", help="its kind, where several have the name")
    group.addoption("--elastic-endpoint", metavar="ENDPOINT", default="", help="the live server of a backend")
    many = {"action": "append", "default": []}
    group.addoption("--elastic-conf", metavar="KEY=VALUE", **many, help="an option of the plugin")
    group.addoption("--elastic-variable", metavar="NAME=VALUE", **many, help="a variable where the environment shows")


def pytest_configure(config: pytest.Config) -> None:
    """Find the plugin that `--elastic-plugin` names, and have it checked."""
    name = config.getoption("elastic_plugin", None)
    if not name:
        return
    from elastic_core.api import ElasticError
    from elastic_plugin_kit.checking.subject import Subject, find, pairs

    try:
        subject = Subject(
            find(name, config.getoption("elastic_kind")),
            endpoint=config.getoption("elastic_endpoint"),
            conf=pairs(config.getoption("elastic_conf")),
            variables=pairs(config.getoption("elastic_variable")),
        )
        subject.reach()
    except ElasticError as err:
        raise pytest.UsageError(str(err)) from err
    config.pluginmanager.register(Checks(subject))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Name the page of the rules in the report of a failed kit test."""
    report = yield
    page = getattr(getattr(item, "cls", None), "page", "")
    if report.failed and page and any(base.__module__ == _KIT for base in item.cls.__mro__):  # type: ignore[attr-defined]
        report.sections.append(("rules of the interface", f"docs/plugin_authors/{page}"))
    return report


class Checks:
    """Selects the suite of one plugin, bounds each check, and prints the verdict.

    Args:
        subject: The plugin.
        declared: Attributes that an author's own subclass of the kit would set, by name; those that the kit of this
            plugin does not have are left out.
    """

    def __init__(self, subject: "Subject", declared: Mapping[str, object] | None = None) -> None:
        self._subject = subject
        self._declared = {"shown_by": subject.shown_by, "entry_point": subject.entry.value, **(declared or {})}
        self._counts: Counter[str] = Counter()
        self._hung = 0

    def _has(self, nodeid: str) -> bool:
        return nodeid.startswith(f"{self._subject.entry.name}::")

    @property
    def _kept(self) -> bool:
        return self._counts["passed"] > 0 and not self._counts["failed"]

    def pytest_configure(self, config: pytest.Config) -> None:
        """Hand the plugin to the suites."""
        config.stash[SUBJECT] = self._subject

    def pytest_pycollect_makeitem(
        self, collector: pytest.Collector, name: str, obj: type
    ) -> list[pytest.Collector] | None:
        """Collect the suite for the plugin's interface alone; the plugin's name stands for the file of its checks."""
        if not isinstance(collector, pytest.Module) or collector.path != _SUITES or not name.startswith("Test"):
            return None
        if name != self._subject.suite:
            return []
        for attribute, value in self._declared.items():
            if hasattr(obj, attribute):
                setattr(obj, attribute, value)
        return [pytest.Class.from_parent(collector, name=name, obj=obj, nodeid=self._subject.entry.name)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Bound one part of a check."""
        with self._bounded(item):
            return (yield)

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup

    @contextmanager
    def _bounded(self, item: pytest.Item) -> Iterator[None]:
        """End what takes too long, and refuse `os._exit`; not for tests of the author's own."""
        if not self._has(item.nodeid):
            yield
            return

        from elastic_plugin_kit.checking.subject import no_exit

        def end(signum: int, frame: FrameType | None) -> None:
            self._hung += 1
            if self._hung >= MOST_HUNG:
                item.session.shouldfail = f"{self._hung} checks have not ended"
            pytest.fail(f"the check is still running after {CHECK_S:g} s; expected it to end")

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, CHECK_S, CHECK_S)
        try:
            with no_exit():
                yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the check's outcome."""
        if self._has(report.nodeid) and (report.when == "call" or not report.passed):
            self._counts[report.outcome] += 1

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Have a session fail in which nothing was checked."""
        if exitstatus == pytest.ExitCode.OK and not self._kept:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> Generator[None, None, None]:
        """Print the verdict below pytest's own summary."""
        yield
        asked = "the selected promises" if config.getoption("keyword") else "every promise that could be checked"
        verdict = f"keeps {asked}" if self._kept else "does not keep its promises"
        terminalreporter.write_line(f"{self._subject.label} {verdict}")
