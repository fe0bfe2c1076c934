"""Effects of a plugin on its process: modules that it imports, threads that it leaves, files that it opens."""

import gc
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Final

import pytest

from elastic_core.api import SYSTEM_CLOCK
from elastic_plugin_kit.conformance.kit import settle

HEAVY: Final = frozenset({"torch", "numpy"})
"""What the agent's process must never import."""

_DOORS: Final = ("open", "os.", "socket.", "subprocess.", "shutil.", "time.sleep", "urllib.")
"""Audit events of I/O, by their beginnings."""

_IMPORT: Final = """
import importlib, sys
before = set(sys.modules)
importlib.import_module(sys.argv[1])
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def check_imports(cls: type) -> None:
    """Fail where importing a plugin's module, in a fresh interpreter, brings torch or numpy."""
    command = [sys.executable, "-c", _IMPORT, cls.__module__]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if "ModuleNotFoundError" in done.stderr and cls.__module__.partition(".")[0] in done.stderr:
        pytest.skip(f"{cls.__module__} can't be imported outside of these tests")
    assert done.returncode == 0, f"importing {cls.__module__} failed; expected it to succeed: {done.stderr}"
    heavy = HEAVY & set(done.stdout.split())
    assert not heavy, (
        f"importing {cls.__module__} imports {sorted(heavy)}; expected that import only where it is used, in a worker"
    )


@contextmanager
def no_heavy_imports(what: str) -> Iterator[None]:
    """Fail where the block imports torch or numpy, if nothing else has done so before."""
    before = set(sys.modules)
    yield
    heavy = HEAVY & (set(sys.modules) - before)
    assert not heavy, f"{what} imported {sorted(heavy)} in the agent's process; expected no torch and no numpy there"


@contextmanager
def no_threads_left(what: str, *, within_s: float = 2.0) -> Iterator[None]:
    """Fail where threads that the block has started outlive it."""
    before = set(threading.enumerate())
    yield
    end_s = SYSTEM_CLOCK.monotonic_s() + within_s
    while left := [thread.name for thread in set(threading.enumerate()) - before]:
        assert SYSTEM_CLOCK.monotonic_s() < end_s, f"{what} left the threads {left}; expected all of them to end"
        settle(0.02)


@contextmanager
def nothing_left(what: str, *, within_s: float = 2.0) -> Iterator[None]:
    """Fail where threads, sockets or files that the block has begun or opened outlive it.

    What Python's collector closes is closed; what a library keeps for good it had before, if it was used before.
    """
    before = _descriptors()
    with no_threads_left(what, within_s=within_s):
        yield
    end_s = SYSTEM_CLOCK.monotonic_s() + within_s
    while left := sorted(set(_descriptors().items()) - set(before.items())):
        assert SYSTEM_CLOCK.monotonic_s() < end_s, (
            f"{what} left open: {', '.join(f'{target} (descriptor {number})' for number, target in left)}; "
            "expected all of them closed"
        )
        gc.collect()
        settle(0.02)


@contextmanager
def nothing_changed(what: str) -> Iterator[None]:
    """Fail where the block changes what workers inherit of an agent, or writes to stdout; put that back as it was."""
    with put_back() as changes, tempfile.TemporaryFile() as written:
        kept = os.dup(1)
        os.dup2(written.fileno(), 1)
        try:
            with open(1, "w", closefd=False) as stdout, redirect_stdout(stdout):
                yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        changed = changes()
        assert not changed, f"{what} changed {', '.join(changed)}, which all workers inherit; expected no change"
        written.seek(0)
        text = written.read().decode(errors="replace")
        assert not text, (
            f"{what} wrote {text[:80]!r} to stdout; expected no output there: stdout belongs to the workers"
        )


@contextmanager
def put_back() -> Iterator[Callable[[], list[str]]]:
    """Put variables, working directory and umask back after the block; give what names those that have changed."""
    variables, folder, umask = dict(os.environ), os.getcwd(), _umask()  # noqa: PTH109  # a text, to go back to

    def changes() -> list[str]:
        names = sorted(variables.keys() | os.environ.keys())
        changed = [name for name in names if variables.get(name) != os.environ.get(name)]
        return changed + ["the working directory"] * (os.getcwd() != folder) + ["the umask"] * (_umask() != umask)  # noqa: PTH109

    try:
        yield changes
    finally:
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        os.chdir(folder)
        os.umask(umask)


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _descriptors() -> dict[int, str]:
    """Return what is open here, by number."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found[int(entry.name)] = str(entry.readlink())
    return found


class _Watchman:
    """Receives the audit events of all I/O of this interpreter, and records those of the watched thread."""

    def __init__(self) -> None:
        self._installed = False
        self._thread: int | None = None
        self.seen: list[str] = []

    @contextmanager
    def watching(self) -> Iterator[list[str]]:
        """Note what the calling thread does within the block."""
        if not self._installed:  # an audit hook can't be taken away again, so there is one
            sys.addaudithook(self._hear)
            self._installed = True
        self.seen = []
        self._thread = threading.get_ident()
        try:
            yield self.seen
        finally:
            self._thread = None

    def _hear(self, event: str, _arguments: tuple[object, ...]) -> None:
        if self._thread is not None and self._thread == threading.get_ident() and event.startswith(_DOORS):
            self.seen.append(event)


WATCHMAN: Final = _Watchman()
