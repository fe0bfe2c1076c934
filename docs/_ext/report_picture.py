"""The picture of a report: its page in Chromium, with the result, the ledger's bar and the timeline of one real run.

`python docs/_ext/report_picture.py` writes docs/pictures/report-light.png and report-dark.png. The build of the pages
does the same if the page has changed since; without Chromium it keeps the files.
"""

import hashlib
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec
from pictures import PICTURES
from PIL import Image, ImageChops
from PIL.PngImagePlugin import PngInfo
from report_run import REPORT

from elastic_report.model import Report
from elastic_report.page import render

FILES: Final = {"report-light.png": False, "report-dark.png": True}
"""The files, and whether each is of the dark page."""
MOST_BYTES: Final = 150_000
KEY: Final = "page"
"""The text chunk of the files that has the fingerprint of their page."""
_WIDTH, _HEIGHT, _SCALE, _MARGIN = 1000, 1400, 2, 24
_HARNESS: Final = """\
<!DOCTYPE html><meta charset="utf-8">
<style>body { margin: 0 } iframe { border: 0; display: block; width: 100vw; height: 100vh }</style>
<iframe src="page.html" onload="trim(this.contentDocument)"></iframe>
<script>
function trim(page) {
  const kept = [".top", "#result", "#ledger", "#timeline"].map((one) => page.querySelector(one));
  const most = { ledger: ".ledger-bar", timeline: ".legend" };  // the last part that is shown of each
  for (const one of [...page.body.children, ...page.querySelector("main").children])
    if (!kept.includes(one) && one.tagName != "MAIN" && !one.matches(".defs")) one.style.display = "none";
  for (const [id, last] of Object.entries(most))
    for (let one = page.querySelector(`#${id} > ${last}`).nextElementSibling; one; one = one.nextElementSibling)
      one.style.display = "none";
  for (const one of page.querySelectorAll("nav, .keys, #chosen")) one.style.display = "none";
}
</script>
"""


def fingerprint() -> str:
    """Return a number that changes with the texts and the style of the page, and not with its scripts."""
    page = render(stored())
    texts = re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)
    style = resources.files("elastic_report.page").joinpath("style.css").read_text(encoding="utf-8")
    return hashlib.sha256(" ".join([*html.unescape(texts).split(), *style.split()]).encode()).hexdigest()


def stored() -> Report:
    """Return the report of the recorded run."""
    return msgspec.json.decode(REPORT.read_bytes(), type=Report)


def is_current() -> bool:
    """Return whether both files are of the page as it is now."""
    return {fingerprint()} == {_noted(PICTURES / name) for name in FILES}


def _noted(path: Path) -> str:
    if not path.exists():
        return ""
    with Image.open(path) as picture:
        return str(picture.info.get(KEY, ""))


def write() -> None:
    """Write both files. Raises `FileNotFoundError` without Chromium."""
    if (chromium := shutil.which("chromium")) is None:
        raise FileNotFoundError("chromium is not installed")
    note = PngInfo()
    note.add_text(KEY, fingerprint())
    with tempfile.TemporaryDirectory(prefix="elastic-picture-") as folder:
        Path(folder, "page.html").write_text(render(stored()), encoding="utf-8")
        Path(folder, "picture.html").write_text(_HARNESS, encoding="utf-8")
        for name, dark in FILES.items():
            shot = Path(folder, name)
            command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
            command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
            command += ["--allow-file-access-from-files", f"--user-data-dir={folder}/profile"]
            command += ["--blink-settings=preferredColorScheme=0"] * dark
            command += [f"--window-size={_WIDTH},{_HEIGHT}", f"--force-device-scale-factor={_SCALE}"]
            command += ["--virtual-time-budget=5000", f"--screenshot={shot}", f"file://{folder}/picture.html"]
            subprocess.run(command, env=os.environ | {"TZ": "UTC"}, capture_output=True, timeout=120, check=True)
            with Image.open(shot) as whole:
                _cut(whole.convert("RGB")).quantize(128, dither=Image.Dither.NONE).save(
                    PICTURES / name, optimize=True, pnginfo=note
                )


def _cut(whole: Image.Image) -> Image.Image:
    """Return the picture without what is empty below the page."""
    empty = Image.new("RGB", whole.size, whole.getpixel((0, 0)))
    box = ImageChops.difference(whole, empty).getbbox()
    if box is None:
        raise ValueError("chromium has drawn an empty page")
    return whole.crop((0, 0, whole.width, min(whole.height, box[3] + _MARGIN)))


def renew() -> None:
    """Write the files if they are of an older page. Without Chromium, print that they are kept."""
    if is_current():
        return
    try:
        write()
    except FileNotFoundError as err:
        sys.stderr.write(f"docs/pictures: {', '.join(FILES)} are of an older page and are kept: {err}\n")


if __name__ == "__main__":
    write()
