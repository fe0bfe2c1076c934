"""Run the code of the documentation's pages, and compare what it prints with what the pages show.

A block is run if a comment stands before it: `<!-- file: NAME -->` writes it (`<!-- more: NAME -->` goes on with the
file), `<!-- python -->` runs it, `<!-- run -->` types its commands (`<!-- run exit=N -->`: the last ends with N) and
expects each line of output, in any order, with `…` for anything. A comment of several lines that begins with
`<!-- check` has commands and their output in the same form, which readers don't see; `<!-- check more: NAME` goes on
with a file in the same way. A page is one session in one folder. `<!-- torch -->` on a page: its code imports torch;
`<!-- own interpreters -->`: no worker is forked from the tests' interpreter with torch, as one that is kept between
rounds must be the agent's own child; `<!-- ecosystem -->`: and what `make ecosystem` installs;
`<!-- builds: FOLDER -->`: its files are those of that folder of the sources, letter by letter.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"^<!-- (?:(?:(?:file|(?P<more>more)): (?P<file>\S+)|run(?: exit=(?P<exit>\d+))?|(?P<python>python)) -->\n```\w+"
    r"|(?P<check>check)(?: more: (?P<hidden>\S+))?)\n(?P<text>.*?)^(?(check)-->|```)$",
    re.M | re.S,
)

LIMIT_S = 300  # what takes so long hangs, on any machine


def pages():
    """Yield all pages with code that is run."""
    yield from (path for path in sorted(DOCS.glob("*/*.md")) if BLOCK.search(path.read_text()))


def has(mark, page):
    """Return whether a page bears a mark: `torch`, `own interpreters`, `ecosystem`."""
    return f"<!-- {mark} -->" in page.read_text()


def is_tutorial(page):
    """Return whether a page leads a beginner step by step: a user, or an author of plugins."""
    return page.parent.name == "tutorial" or page.stem.endswith("tutorial")


def name_of(page):
    """Return the id of a page's test: `howto/logs`."""
    return f"{page.parent.name}/{page.stem}"


def run(command, folder, python=None):
    """Return exit code and output; nothing of it is left when the time is up. `python` runs the scripts, if given."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "TORCHELASTIC_", "OMP_"))}
    own = [Path(python).parent] if python else []  # its name is `python`
    env = inherited | {
        "PATH": os.pathsep.join([*map(str, own), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "XDG_RUNTIME_DIR": str(folder / "runtime"),
        "TMPDIR": str(folder / "runtime"),
    }
    if python:
        env["PYTHON_EXEC"] = str(python)
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


FOLLOWERS = re.compile(r"; \d+ others? failed after it(?=;)")
"""A part of a failure's line: whether other ranks see the broken connection before they are stopped is a race."""


def comes(line, out):
    """Return whether the line is there, with or without the number of followers.

    Unbuffered workers write line ends apart, so two lines may come as one.
    """
    expected = ".*".join(re.escape(part) for part in line.rstrip().split("…"))
    return any(re.search(expected, text) for text in (out, FOLLOWERS.sub("", out)))


def written(blocks):
    """Yield name and text of each file, as far as it is written, for each block that writes of it; in order."""
    files = {}
    for block in blocks:
        name, text = block["file"] or block["hidden"], block["text"]
        if name:
            if block["more"] or block["hidden"]:  # as formatters do: one line within a class, two between definitions
                text = files[name] + ("\n" if text[0] == " " else "\n\n") + text
            files[name] = text
            yield name, text


def play(page, folder, python=None):
    """Run the code of a page in this folder; fail if it prints something else than the page shows.

    If `python` is given, this program runs the scripts: those of typed commands, and those of workers.
    """
    (folder / "runtime").mkdir(mode=0o700)
    blocks = list(BLOCK.finditer(page.read_text()))
    files = written(blocks)
    for block in blocks:
        text = block["text"]
        if block["file"] or block["hidden"]:
            name, text = next(files)
            path = folder / name
            if path.suffix == ".py":
                compile(text, name, "exec")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif block["python"]:
            code, out = run([sys.executable, "-W", "error", "-c", text], folder)
            assert code == 0, out
        else:
            commands, shown = split(text)
            code, out = run(["bash", "-c", "\n".join(commands)], folder, python)
            assert code == int(block["exit"] or 0), out
            missing = [line for line in shown if not comes(line, out)]
            assert not missing, out
