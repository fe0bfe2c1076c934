"""A session of pytest for one plugin, of which nobody sees pytest: what was asked, and what came of it."""

import os
import signal
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final

import pytest

from elastic_core import api
from elastic_plugin_kit.checking.subject import CallHangs, Subject

_OURS: Final = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD")
"""Variables by which somebody's own tests are steered."""
_KIT: Final = str(Path(__file__).parents[1]) + os.sep
_NOT_THEIRS: Final = (_KIT, str(Path(api.__file__).parents[1]) + os.sep, str(Path(os.__file__).parent) + os.sep)
"""Where frames lie that are not the plugin's own."""
_SUITES: Final = Path(__file__).with_name("suites.py")
"""Imported by pytest, and the kits by it: so that a failed comparison shows both sides."""


_HANGS: Final = f"{CallHangs.__module__}.{CallHangs.__qualname__}: "
CHECK_S: Final = 60.0
"""How long one check may take: a call that hangs where the kit has no deadline of its own ends it."""
MOST_HUNG: Final = 3
"""So many checks that have not ended are enough."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One promise of an interface, and whether the plugin keeps it. `outcome`: `passed`, `failed` or `skipped`."""

    name: str
    promise: str
    outcome: str
    detail: str = ""
    took_s: float = 0.0


class _Reporter:
    """Takes what pytest reports, and hands the plugin to the tests."""

    def __init__(
        self,
        subject: Subject,
        only: str,
        declared: Mapping[str, object],
        on_begin: Callable[[int, int], None],
        on_check: Callable[[Check], None],
    ) -> None:
        self._only = only
        self._declared = declared
        self._subject = subject
        self._on_begin = on_begin
        self._on_check = on_check
        self._hung = 0
        self._promises: dict[str, str] = {}
        self._worst: dict[str, Check] = {}
        self.checks: list[Check] = []

    @pytest.fixture
    def subject(self) -> Subject:
        """The plugin that is checked."""
        return self._subject

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Choose the tests, and know what each is about before the first is run."""
        items[:] = [item for item in items if self._only in _name(item.nodeid)]
        for item in items:
            for name, value in self._declared.items():  # what an author's own class would have, where the kit asks it
                if hasattr(getattr(item, "cls", None), name):
                    setattr(item.cls, name, value)  # type: ignore[attr-defined]  # a function of a class
            doc = getattr(getattr(item, "function", None), "__doc__", None) or ""
            self._promises[item.nodeid] = doc.strip().partition("\n")[0]
        self._on_begin(len(items), max((len(_name(item.nodeid)) for item in items), default=0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Bound what a test needs; as for the test itself."""
        with self._bounded():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Bound a test: a call of the plugin's may never return."""
        with self._bounded():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Bound what comes after it, and ask no more of what hangs again and again."""
        with self._bounded():
            answer = yield
        if self._hung >= MOST_HUNG:
            item.session.shouldstop = f"{self._hung} checks have not ended"
        return answer

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        def end(signum: int, frame: FrameType | None) -> None:
            self._hung += 1
            place = place_of(frame, self._subject.entry.value)
            raise AssertionError(f"has not ended within {CHECK_S:g} s{place}")

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, CHECK_S, CHECK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def pytest_runtest_logreport(self, report: Any) -> None:  # noqa: ANN401  # TestReport, which pytest does not export
        """Keep the worst of a test's three parts."""
        known = self._worst.get(report.nodeid)
        found = Check(
            name=_name(report.nodeid),
            promise=self._promises.get(report.nodeid, ""),
            outcome=report.outcome,
            detail=_detail(report, self._promises.get(report.nodeid, "")),
            took_s=round((known.took_s if known else 0.0) + report.duration, 3),
        )
        if known is not None and (known.outcome == "failed" or report.outcome == "passed"):
            found = Check(
                name=known.name, promise=known.promise, outcome=known.outcome, detail=known.detail, took_s=found.took_s
            )
        self._worst[report.nodeid] = found
        if report.when == "teardown":
            self.checks.append(found)
            self._on_check(found)


def place_of(frame: FrameType | None, value: str) -> str:
    """Return where in the plugin's own code a thread is: `: acme.py:27 in renew`; empty: nowhere in it."""
    top = value.partition(":")[0].partition(".")[0]
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == top:
            return f": {Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def _name(nodeid: str) -> str:
    return nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ").replace("[", " [")


def _detail(report: Any, promise: str) -> str:  # noqa: ANN401  # as above
    """Return the one line that says why; a comparison without words is told with the promise."""
    if report.outcome == "passed":
        return ""
    if report.outcome == "skipped":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return str(reason).removeprefix("Skipped: ").replace("most_nodes is", "--most-nodes is")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr)
    line = next((line for line in text.splitlines() if line.strip()), "")
    line = line.removeprefix("AssertionError: ").removeprefix("Failed: ").removeprefix(_HANGS)
    line = f"{promise} {line}".strip() if line.startswith(("assert ", "AssertionError")) else line
    return line + _place(report.longrepr)


def _place(longrepr: object) -> str:
    """Return where in the plugin's own code an exception was raised; empty: the kit itself has found the fault."""
    entries = getattr(getattr(longrepr, "reprtraceback", None), "reprentries", ())
    places = [entry.reprfileloc for entry in entries if getattr(entry, "reprfileloc", None) is not None]
    if not places or _is_kits(places[-1].path):
        return ""
    own = next((each for each in reversed(places) if not each.path.startswith(_NOT_THEIRS)), None)
    return f" ({Path(own.path).name}:{own.lineno})" if own is not None else ""


def _is_kits(path: str) -> bool:
    return str(Path(path).absolute()).startswith(_KIT)


def run_checks(
    subject: Subject,
    *,
    only: str,
    most_nodes: int,
    keeps_budget: bool,
    reads_files: bool,
    on_begin: Callable[[int, int], None],
    on_check: Callable[[Check], None],
) -> list[Check]:
    """Run the kit of the plugin's interface.

    Args:
        subject: The plugin.
        only: A part of the names of the checks that are run; empty: all.
        most_nodes: How many nodes a handler can bring together; a store needs no word of it.
        keeps_budget: Whether a policy ends a run as `--max-restarts` asks.
        reads_files: Whether an environment may read files.
        on_begin: Called with the number of checks and the length of the longest name.
        on_check: Called with each check as it ends.
    """
    declared = {
        "most_nodes": most_nodes,
        "keeps_budget": keeps_budget,
        "reads_files": reads_files,
        "shown_by": subject.shown_by,
        "entry_point": subject.entry.value,
    }
    reporter = _Reporter(subject, only, declared, on_begin, on_check)
    kept = {name: os.environ.pop(name) for name in _OURS if name in os.environ}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        with TemporaryDirectory(prefix="check-") as folder:
            settings = Path(folder, "pytest.ini")
            settings.write_text("[pytest]\n")
            chosen = f"{_SUITES}::{subject.suite}"
            words = [
                "-c",
                str(settings),
                "--rootdir",
                folder,
                "--basetemp",
                str(Path(folder, "tmp")),
                "-p",
                "no:terminal",
            ]
            pytest.main(
                [*words, "--noconftest", "-p", "no:cacheprovider", "--import-mode", "importlib", chosen],
                plugins=[reporter],
            )
    finally:
        del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
        os.environ.update(kept)
    return reporter.checks
