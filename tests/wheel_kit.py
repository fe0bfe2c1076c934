"""Building our distributions and installing them where nothing of ours is yet."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

from patience import patience

ROOT = Path(__file__).parents[1]
OURS = [ROOT, *sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))]
"""The distributions that are released together."""
EXAMPLES = sorted(path.parent for path in (ROOT / "examples/plugins").glob("*/pyproject.toml"))
SOURCES = [
    "pyproject.toml",
    "scripts/build_wheels.py",
    "scripts/hatch_build.py",
    "LICENSE",
    "README.md",
    "src",
    "plugins",
]


def checked(command: list[object], **options: object) -> str:
    """Run a command that must succeed; return its stdout."""
    done = attempted(command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def attempted(command: list[object], **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command that may fail."""
    words = [str(word) for word in command]
    return subprocess.run(  # type: ignore[call-overload]  # options are subprocess.run's own
        words, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, check=False, **options
    )


def build(projects: list[Path], folder: Path) -> None:
    """Build an sdist of each, and the wheel from it, as `make wheels` does."""
    checked([sys.executable, ROOT / "scripts/build_wheels.py", folder, *projects])


def wheel_of(project: Path, folder: Path) -> Path:
    """Return the wheel in a folder that was built from a project."""
    text = (project / "pyproject.toml").read_text()
    name = text.partition('\nname = "')[2].partition('"')[0].replace("-", "_")
    (wheel,) = folder.glob(f"{name}-*.whl")
    return wheel


def contents(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def metadata_of(wheel: Path) -> list[str]:
    """Return the header lines of a wheel's METADATA."""
    (text,) = (text for name, text in contents(wheel).items() if name.endswith(".dist-info/METADATA"))
    return text.decode().partition("\n\n")[0].splitlines()


def version() -> str:
    return (ROOT / "src/elastic_core/_version.py").read_text().split('"')[-2]


def tree_copy(folder: Path) -> Path:
    """Copy what distributions are made of, to be edited."""
    folder.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


class Environment:
    """A virtual environment with nothing of ours.

    One of the tests' own Python borrows their third-party packages (torch, click …) except those in `without`, so that
    nothing is downloaded.
    """

    def __init__(self, folder: Path, python: str = "", without: Sequence[str] = ()) -> None:
        if python:
            checked([python, "-m", "venv", "--without-pip", folder])
        else:
            venv.create(folder, with_pip=False, symlinks=True)
        self.bin = folder / "bin"
        (self.site,) = folder.glob("lib/python*/site-packages")
        if not python:
            self._borrow(folder / "borrowed", without)

    def _borrow(self, folder: Path, without: Sequence[str]) -> None:
        folder.mkdir()
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if (
                path.suffix != ".pth"
                and not path.name.startswith("elastic_")
                and path.name.split("-")[0] not in without
            ):
                (folder / path.name).symlink_to(path)
        (self.site / "borrowed.pth").write_text(f"{folder}\n")

    def pip(self, *args: object) -> subprocess.CompletedProcess[str]:
        """Run the tests' pip for this environment."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.bin / "python"]
        return attempted([*pip, *args])

    def install(self, *args: object) -> str:
        """Install what must be at hand: no index is asked."""
        done = self.pip("install", "--no-index", *args)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def elastic(self, *args: object, cwd: Path, **variables: str) -> subprocess.Popen[str]:
        """Start the installed command."""
        runtime = cwd / "runtime"
        runtime.mkdir(mode=0o700, exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "PYTHON"))}
        return subprocess.Popen(
            [str(self.bin / "elastic"), *map(str, args)],
            cwd=cwd,
            env=kept | {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(runtime)} | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args: object, cwd: Path, **variables: str) -> tuple[int, str, str]:
        """Run the installed command; return its exit code and what it printed."""
        return finish(self.elastic(*args, cwd=cwd, **variables))


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=patience(60))
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err


def write_script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path
