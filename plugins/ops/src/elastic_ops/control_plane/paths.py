"""Where the sockets of a run are, and how to use one whose path is longer than the kernel takes."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from elastic_core.api import ConfigError

LONGEST_PATH: Final = 107
"""Bytes of a socket's path that the kernel takes."""
AGENT_SOCKET: Final = "agent.sock"
OWN_FOLDER: Final = "control"
"""What is made in a run directory that others can write to."""
TORCH_SUFFIX: Final = ".torch/s"
"""What is added to a worker's path for the socket of torch's own server, whose directory keeps others out."""
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class SocketPaths:
    """The paths of the sockets of one agent and its workers, all in the run directory.

    Workers of a deep one get there through a descriptor of this process: their path must be short enough for torch,
    too, and nothing may be left elsewhere when everything is killed.

    Args:
        run_dir: Exists.
        worker_count: Of this node.

    Raises:
        ConfigError: there is no safe place in it.
        OSError: the system refused.
    """

    def __init__(self, run_dir: Path, worker_count: int) -> None:
        """Choose the directory."""
        self.run_dir = run_dir
        self._count = worker_count
        self._folder = run_dir if _is_safe(run_dir) else run_dir / OWN_FOLDER
        if self._folder != run_dir:
            self._folder.mkdir(0o700, exist_ok=True)
            check_directory(self._folder)
        self._near, self._fd = str(self._folder), -1
        longest = f"{self.worker(worker_count - 1)}{TORCH_SUFFIX}"
        if len(os.fsencode(longest)) > LONGEST_PATH:
            self._fd = os.open(self._folder, _FOLDER)
            self._near = f"/proc/{os.getpid()}/fd/{self._fd}"

    @property
    def agent(self) -> str:
        """The agent's."""
        return str(self._folder / AGENT_SOCKET)

    def worker(self, local_rank: int) -> str:
        """A worker's, the same in all rounds; good while this process lives."""
        return f"{self._near}/worker_{local_rank}.sock"

    def close(self) -> None:
        """Remove what is left of killed workers' servers, and give the descriptor back."""
        for rank in range(self._count):
            remove_socket(self.worker(rank))
            remove_torch_socket(self.worker(rank) + TORCH_SUFFIX)
        if self._folder.name == OWN_FOLDER:
            with suppress(OSError):
                self._folder.rmdir()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._near = -1, str(self._folder)


@contextmanager
def within_reach(path: str) -> Iterator[str]:
    """Yield a path of the same socket that the kernel takes, for as long as the block runs.

    Raises:
        ConfigError: the name alone is too long.
        OSError: its directory can't be opened.
    """
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield path
        return
    fd = os.open(Path(path).parent, _FOLDER)
    try:
        near = f"/proc/self/fd/{fd}/{Path(path).name}"
        if len(os.fsencode(near)) > LONGEST_PATH:
            raise ConfigError(f"the socket's name in {path!r} is longer than the kernel takes", hint="a shorter name")
        yield near
    finally:
        os.close(fd)


def check_directory(folder: Path) -> None:
    """Refuse a directory in which a stranger could put a socket of his in the place of ours.

    Raises:
        ConfigError: it is a stranger's, or others can write to it.
        OSError: it can't be looked at.
    """
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"the socket's directory: {str(folder)!r}; expected a directory")
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"the socket's directory {str(folder)!r} belongs to user {found.st_uid}, not to user {os.geteuid()}",
            hint="a directory of your own with mode 0700",
        )
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise ConfigError(
            f"the socket's directory {str(folder)!r} can be written by others (mode {stat.S_IMODE(found.st_mode):03o})",
            hint="a directory of your own with mode 0700",
        )


def check_private(folder: Path) -> None:
    """Refuse a directory that others can enter, or that leads elsewhere: it was there before us.

    Raises:
        ConfigError: it is not this user's alone.
        OSError: it can't be looked at.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        what = f"the socket's directory: {str(folder)!r}; expected one of user {os.geteuid()} with mode 0700"
        raise ConfigError(what, hint="remove it")


def _is_safe(folder: Path) -> bool:
    try:
        check_directory(folder)
    except ConfigError:
        return False
    return True


def remove_socket(path: str) -> None:
    """Remove a socket's file, if it is there."""
    with suppress(OSError):
        if stat.S_ISSOCK(Path(path).lstat().st_mode):
            Path(path).unlink()


def remove_torch_socket(path: str) -> None:
    """Remove the socket of torch's own server, and its directory."""
    remove_socket(path)
    with suppress(OSError):
        Path(path).parent.rmdir()
