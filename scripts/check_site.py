"""Look at the built site in headless Chromium: what is wider than its page, and what the search finds.

`make docs`, then `python scripts/check_site.py [PART OF A PATH]`; needs the program `chromium`. Ends with 1 if
something is wider than its page, or a phrase of docs/_ext/search_words.py does not have its page as the first result.
With `--pictures FOLDER` it also writes a picture of each page, wide and narrow, light and dark.
"""

import argparse
import functools
import html
import http.server
import json
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "docs"
PHRASES: Mapping[str, Sequence[str]] = runpy.run_path(str(ROOT / "docs" / "_ext" / "search_words.py"))["PHRASES"]
CHROMIUM = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and the harness as one more page of it."""

    jobs: str = "[]"

    def do_GET(self) -> None:
        """Serve a file of the site, or the harness."""
        if self.path != "/check.html":
            super().do_GET()
            return
        body = (ROOT / "scripts" / "check_site.html").read_text().replace("JOBS", self.jobs).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def main() -> int:
    """Check the site."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="?", default="", help="only pages with this in their path")
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of the pages")
    given = parser.parse_args()
    pages = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html") if given.part in str(path))
    jobs: list[tuple[str, str, int]] = [("page", page, width) for width in (1400, 420) for page in pages]
    if not given.part:
        jobs += [("search", phrase, 1400) for phrases in PHRASES.values() for phrase in phrases]
    Quiet.jobs = json.dumps(jobs)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        bad = report(browse(f"{url}/check.html"))
        if given.pictures:
            shoot(url, pages, given.pictures)
        server.shutdown()
    return 1 if bad else 0


def browse(url: str) -> list[list[object]]:
    """Return what the harness has found."""
    done = subprocess.run(
        [*CHROMIUM, "--virtual-time-budget=100000000", "--dump-dom", url], capture_output=True, text=True, check=True
    )
    match = re.search(r"<pre id=\"result\">(.+?)</pre>", done.stdout, re.DOTALL)
    if match is None:
        sys.exit(f"chromium: no result: {done.stderr[-500:]}")
    found: list[list[object]] = json.loads(html.unescape(match[1]))
    return found


def report(found: list[list[object]]) -> int:
    """Print what is wrong, and return how much."""
    page_of = {phrase: page for page, phrases in PHRASES.items() for phrase in phrases}
    bad = 0
    for kind, what, seen, *more in found:
        assert isinstance(seen, list)
        if kind == "page" and seen:
            bad += 1
            sys.stdout.write(f"{what} at {more[0]} px: wider than the page: {seen[:4]}\n")
        elif kind == "page" and more[1] and more[0] == 1400:
            sys.stdout.write(f"{what} at {more[0]} px: {more[1]} tables scroll\n")
        elif kind == "search":
            right = bool(seen) and str(seen[0]).startswith(page_of[str(what)])
            bad += not right
            sys.stdout.write(f"{'ok  ' if right else 'BAD '} search {what!r}: {seen[:3]}\n")
    sys.stdout.write(f"{len(found)} looks, {bad} to mend\n")
    return bad


def shoot(url: str, pages: list[str], folder: Path) -> None:
    """Write pictures of pages: wide and narrow, light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in pages:
        for width in (1400, 420):
            for dark in (False, True):
                name = f"{page.removesuffix('.html').replace('/', '-')}-{width}{'-dark' if dark else ''}.png"
                theme = ["--blink-settings=preferredColorScheme=0"] if dark else []
                size = f"--window-size={width},2400"
                shot = [f"--screenshot={folder / name}", size, "--virtual-time-budget=3000", f"{url}/{page}"]
                subprocess.run([*CHROMIUM, *theme, *shot], capture_output=True, check=True)


if __name__ == "__main__":
    sys.exit(main())
