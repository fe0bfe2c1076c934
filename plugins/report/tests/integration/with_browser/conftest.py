"""Opens reports in headless Chromium. Each page has its own context, in a fixed time zone, and may load nothing."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from elastic_report.model import Report
from elastic_report.page import render
from patience import patience
from support import lacks, wait_for

CHROMIUM = "/usr/bin/chromium"
HANG_S = 30.0
"""How long a browser may take for anything on an idle machine; nothing here measures time."""


@dataclass
class Opened:
    """A report in a browser, and what the browser complained about."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def data(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def until(self, expression: str) -> None:
        """Wait until the expression is true. The page's policy forbids what Playwright's own waiting would evaluate."""
        wait_for(lambda: self.page.evaluate(expression), within_s=HANG_S, what=expression)

    def view(self) -> tuple[float, float]:
        """Return the visible range of the timeline in seconds, as the address has it. The page must not be moving."""
        self.until("location.hash.includes('view=')")
        low, high = self.page.evaluate("/view=([^&]*)/.exec(location.hash)[1]").split("~")
        return float(low), float(high)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    works = Path(CHROMIUM).exists() and not subprocess.run([CHROMIUM, "--version"], capture_output=True).returncode
    if not works:
        lacks("chromium", install="apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacks("playwright", install="pip install playwright")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=1000 * patience(HANG_S)
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Open a report from a file, as a reader does; `fragment` follows the file's name."""
    contexts = []

    def open_(report: Report | str, fragment: str = "", **options: Any) -> Opened:
        html = report if isinstance(report, str) else render(report)
        file = tmp_path / "report of a run.html"
        file.write_text(html, encoding="utf-8")
        context = chromium.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "timezone_id": "Europe/Berlin", **options}
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * patience(HANG_S))
        found = Opened(page)
        page.on("console", lambda message: found.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: found.complaints.append(f"error: {error}"))
        page.on("request", lambda request: found.requests.append(request.url))
        page.goto(file.as_uri() + fragment)
        return found

    yield open_
    for context in contexts:
        context.close()
