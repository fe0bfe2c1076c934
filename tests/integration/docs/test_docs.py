"""What the pages show is so: their code runs, their output is what comes, and they build without a warning.

A block is run if a comment stands before it: `<!-- file: NAME -->` writes it (`<!-- more: NAME -->` goes on with the
file), `<!-- python -->` runs it, `<!-- run -->` types its commands (`<!-- run exit=N -->`: the last ends with N) and
expects each line of output, in any order, with `…` for anything. A page is one session in one folder. `<!-- torch -->`
on a page: its code imports torch; `<!-- ecosystem -->`: and what `make ecosystem` installs; `<!-- builds: FOLDER -->`:
its files are those of that folder of the sources, letter by letter.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"^<!-- ((?:file|(?P<more>more)): (?P<file>\S+)|run(?: exit=(?P<exit>\d+))?|(?P<python>python)) -->\n"
    r"```\w+\n(?P<text>.*?)^```$",
    re.M | re.S,
)
SHOWN = re.compile(r"(?P<before>^.*\n)?^```python\n", re.M)
pytestmark = pytest.mark.timeout(600)
LIMIT_S = 300  # what takes so long hangs, on any machine


def pages():
    for path in sorted(DOCS.glob("*/*.md")):
        text = path.read_text()
        if BLOCK.search(text):
            marks = [getattr(pytest.mark, name) for name in ("torch", "ecosystem") if f"<!-- {name} -->" in text]
            yield pytest.param(path, id=f"{path.parent.name}/{path.stem}", marks=marks)


def run(command, folder):
    """Return exit code and output; nothing of it is left when the time is up."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "TORCHELASTIC_", "OMP_"))}
    env = inherited | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(folder / "runtime"),
        "TMPDIR": str(folder / "runtime"),
    }
    with subprocess.Popen(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, out


def split(text):
    """Return the commands of a block and the lines that it shows."""
    commands = [line[2:].rsplit("   # ")[0] for line in text.splitlines() if line.startswith("$ ")]
    return commands, [line for line in text.splitlines() if not line.startswith("$ ") and line.strip("… ")]


def comes(line, out):
    """Return whether the line is there; unbuffered workers write line ends apart, so two lines may come as one."""
    return re.search(".*".join(re.escape(part) for part in line.rstrip().split("…")), out) is not None


def written(blocks):
    """Yield name and text of each file, as far as it is written, for each block that writes of it; in order."""
    files = {}
    for block in blocks:
        if block["file"]:
            text = block["text"]
            if block["more"]:  # as formatters separate them: one line within a class, two between definitions
                text = files[block["file"]] + ("\n" if text[0] == " " else "\n\n") + text
            files[block["file"]] = text
            yield block["file"], text


@pytest.mark.parametrize("page", list(pages()))
def test_code_of_a_page_does_what_the_page_shows(page, tmp_path):
    (tmp_path / "runtime").mkdir(mode=0o700)
    blocks = list(BLOCK.finditer(page.read_text()))
    files = written(blocks)
    for block in blocks:
        text = block["text"]
        if block["file"]:
            name, text = next(files)
            path = tmp_path / name
            if path.suffix == ".py":
                compile(text, name, "exec")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif block["python"]:
            code, out = run([sys.executable, "-W", "error", "-c", text], tmp_path)
            assert code == 0, out
        else:
            commands, shown = split(text)
            code, out = run(["bash", "-c", "\n".join(commands)], tmp_path)
            assert code == int(block["exit"] or 0), out
            missing = [line for line in shown if not comes(line, out)]
            assert not missing, out


BUILDS = re.compile(r"^<!-- builds: (\S+) -->$", re.M)
NOT_SHOWN = {"README.md", "LICENSE", "py.typed"}


@pytest.mark.parametrize(
    "page",
    [page for page in sorted(DOCS.glob("*/*.md")) if BUILDS.search(page.read_text())],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_what_a_page_builds_is_what_the_sources_have(page):
    text = page.read_text()
    (folder,) = BUILDS.findall(text)
    shown = dict(written(BLOCK.finditer(text)))
    built = {
        str(path.relative_to(ROOT / folder)): path.read_text()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.name not in NOT_SHOWN and not {"__pycache__", ".pytest_cache"} & set(path.parts)
    }
    beside = {name for name in shown if "/" not in name and name not in built}  # scripts of the page's own
    assert {name: text for name, text in shown.items() if name not in beside} == built


TO_BE_TYPED = sorted(page for kind in ("tutorial", "howto", "plugin_authors") for page in DOCS.glob(f"{kind}/*.md"))


@pytest.mark.parametrize("page", TO_BE_TYPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_python_is_shown_that_is_not_run(page):
    unmarked = [found["before"] for found in SHOWN.finditer(page.read_text()) if "<!--" not in (found["before"] or "")]
    assert not unmarked


def test_pages_build_without_warnings_and_load_nothing_from_elsewhere(tmp_path):
    sphinx = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]
    code, out = run([*sphinx, "--doctree-dir", tmp_path / "trees", DOCS, tmp_path / "pages"], tmp_path)
    assert code == 0, out
    built = list((tmp_path / "pages").rglob("*.html"))
    assert len(built) > 30
    loads = re.compile(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*\"")
    assert [(page.name, loads.findall(page.read_text())) for page in built if loads.search(page.read_text())] == []
    states = (tmp_path / "pages" / "explanation" / "agent-states.html").read_text()
    assert '<svg class="state-diagram"' in states
