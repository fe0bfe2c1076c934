"""A systemd of our own: process 1 of namespaces that the tests make, with no units but theirs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from proc_kit import children
from support import ELASTIC, lacks, places_of_runs, wait_for

PROGRAM = Path("/lib/systemd/systemd")
TARGET = "tests.target"
NAMESPACES = ("unshare", "--pid", "--fork", "--mount", "--cgroup", "--ipc", "--uts", "--mount-proc")
BEGIN = """
set -e
umount -R /sys/fs/cgroup
mount -t tmpfs tmpfs /sys/fs/cgroup
mount -t tmpfs tmpfs /run
if [ "$1" = v1 ]; then
    mkdir /sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
else
    mount -t cgroup2 cgroup /sys/fs/cgroup
fi
exec env -i container=tests PATH="$PATH" SYSTEMD_UNIT_PATH="$2" SYSTEMD_GENERATOR_PATH="$2/none" "$3" --system \\
    --log-target=console --unit="$4"
"""


class Systemd:
    """The manager; whatever it has started ends with it."""

    def __init__(self, folder: Path) -> None:
        named = Path("/sys/fs/cgroup/systemd")
        version, base = ("v1", named) if named.is_dir() else ("v2", Path("/sys/fs/cgroup"))
        self._cgroup = base / f"elastic-tests-{os.getpid()}-{time.monotonic_ns()}"
        try:
            self._cgroup.mkdir()
        except OSError as error:
            lacks(f"a cgroup of our own ({error.strerror})")
        self._folder, units = folder, folder / "units"
        units.mkdir(parents=True)
        (units / TARGET).write_text("[Unit]\n")
        self._log = (folder / "systemd.log").open("wb")
        self._outer = subprocess.Popen(
            [
                *("sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', self._cgroup, *NAMESPACES),
                *("bash", "-c", BEGIN, "bash", version, units, PROGRAM, TARGET),
            ],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._services = 0

    def comes_up(self) -> None:
        """Wait until it is there."""
        try:
            wait_for(lambda: self._says("is-active", TARGET) == "active", what="systemd to be up")
        except AssertionError as err:
            raise AssertionError(f"{err}\n{(self._folder / 'systemd.log').read_text(errors='replace')}") from None

    def _says(self, *words: str) -> str:
        first = children(self._outer.pid)
        if not first:
            return ""
        inside = ["nsenter", "--target", str(first[0]), "--mount", "--pid", "--cgroup", "--ipc", "--uts"]
        done = subprocess.run(
            [*inside, "systemctl", *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        return done.stdout.strip()

    def elastic(self, *args: object, env: dict[str, str] | None = None) -> "Service":
        """Start an agent as a service with systemd's defaults."""
        self._services += 1
        name = f"agent{self._services}.service"
        folder = self._folder / name
        folder.mkdir()
        folder.chmod(0o700)
        known = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | places_of_runs(folder) | (env or {})
        lines = [f'Environment="{key}={value}"' for key, value in known.items()]
        command = " ".join(f'"{word}"' for word in (*ELASTIC, *map(str, args)))
        streams = [f"StandardOutput=file:{folder / 'out'}", f"StandardError=file:{folder / 'err'}"]
        unit = ["[Unit]", "DefaultDependencies=no", "[Service]", f"WorkingDirectory={folder}", *lines, *streams]
        (self._folder / "units" / name).write_text("\n".join([*unit, f"ExecStart={command}", ""]))
        self._says("daemon-reload")
        self._says("start", name)
        return Service(self, name, folder)

    def stop(self, service: str) -> None:
        """Have a service stopped, and wait for that."""
        self._says("stop", service)

    def shows(self, service: str, name: str) -> str:
        """Return a property of a service."""
        return self._says("show", service, "--value", "-p", name)

    def close(self) -> None:
        """End process 1, and so all processes of its namespace."""
        for pid in children(self._outer.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._outer.kill()
        self._outer.wait()
        self._log.close()
        wait_for(self._removed, what=f"{self._cgroup} to be empty")

    def _removed(self) -> bool:
        for folder in sorted(self._cgroup.rglob("*/"), reverse=True):
            with suppress(OSError):
                folder.rmdir()
        with suppress(OSError):
            self._cgroup.rmdir()
        return not self._cgroup.exists()


class Service:
    """An agent that is a service: what `Elastic` is to those who look at it."""

    def __init__(self, systemd: Systemd, name: str, folder: Path) -> None:
        self._systemd, self._name, self._folder, self.run_id = systemd, name, folder, ""

    @property
    def process(self) -> "Service":
        """What may be asked for its end."""
        return self

    def poll(self) -> int | None:
        """Return the exit code of what has ended."""
        if self._systemd.shows(self._name, "ActiveState") not in ("inactive", "failed"):
            return None
        return int(self._systemd.shows(self._name, "ExecMainStatus"))

    def wait(self, within_s: float = 60.0) -> int:
        """Return the exit code."""
        wait_for(lambda: self.poll() is not None, within_s=within_s, what=self.err)
        return int(self.poll() or 0)

    def stop(self) -> None:
        """Have it stopped as `systemctl stop` does: TERM to the agent, then to all others of its cgroup."""
        self._systemd.stop(self._name)

    @property
    def out(self) -> str:
        """What it has printed so far."""
        return self._text("out")

    @property
    def err(self) -> str:
        """What it has said so far."""
        return self._text("err")

    def _text(self, name: str) -> str:
        path = self._folder / name
        return path.read_text(errors="replace") if path.exists() else ""


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    """Run a systemd as process 1 of namespaces."""
    if os.geteuid() != 0:
        lacks("root, for namespaces with a systemd")
    if not PROGRAM.exists():
        lacks("systemd", install="apt-get install systemd")
    if subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode:
        lacks("the right to make namespaces")
    manager = Systemd(tmp_path / "systemd")
    try:
        manager.comes_up()
        yield manager
    finally:
        manager.close()
