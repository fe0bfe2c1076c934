"""The folder in shared memory that holds the last commits of a node's workers, for as long as their agent runs."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

_SHARED: Final = Path("/dev/shm")  # the name is this user's, and only the user's own folder is used
_START_FIELD: Final = 19
"""The field of the start time behind the name in /proc/PID/stat. Source: proc_pid_stat(5)."""


class CommitFolder:
    """A folder of this process, readable by its user alone.

    Folders of this user's processes that have ended without a `close` are removed first: an agent may be killed.

    Args:
        shared: A file system in memory.

    Raises:
        OSError: the folder can't be made, or another user has one of that name.
    """

    def __init__(self, shared: Path = _SHARED) -> None:
        try:
            self.path = self._made(shared / f"elastic-warm-{os.getuid()}")
        except FileNotFoundError:  # another agent has just removed the empty folder
            self.path = self._made(shared / f"elastic-warm-{os.getuid()}")

    @staticmethod
    def _made(home: Path) -> Path:
        home.mkdir(mode=0o700, exist_ok=True)
        found = home.lstat()
        if home.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{home} is not a folder of this user alone")
        namespace = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
        _remove_stale(home, namespace)
        path = home / f"{namespace}-{os.getpid()}-{_start_of(os.getpid())}"
        path.mkdir(mode=0o700)
        return path

    def close(self) -> None:
        """Remove the folder with what is in it; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):  # another agent of this user has a folder there
            self.path.parent.rmdir()


def _remove_stale(home: Path, namespace: str) -> None:
    for folder in home.iterdir():
        space, _, rest = folder.name.partition("-")
        pid, _, start = rest.partition("-")
        # The number of a process in another container means nothing here.
        if space == namespace and pid.isdecimal() and _start_of(int(pid)) != start:
            shutil.rmtree(folder, ignore_errors=True)


def _start_of(pid: int) -> str:
    """Return when a process has started, in the kernel's ticks; empty if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    return stat[stat.rfind(b")") + 2 :].split()[_START_FIELD].decode()
