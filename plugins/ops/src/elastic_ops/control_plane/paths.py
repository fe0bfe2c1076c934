"""The socket paths of a run, and access to sockets with a path longer than the kernel's limit."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from elastic_core.api import ConfigError

LONGEST_PATH: Final = 107
"""The kernel's limit of a socket's path, in bytes."""
AGENT_SOCKET: Final = "agent.sock"
OWN_FOLDER: Final = "control"
"""The directory that is made in a run directory that others can write to."""
TORCH_SUFFIX: Final = ".torch/s"
"""The suffix of a worker's path for the socket of torch's own server, whose directory excludes other users."""
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class SocketPaths:
    """The socket paths of one agent and its workers, all in the run directory.

    If the directory's path is too long, workers reach it through a descriptor of this process: their path must be short
    enough for torch, too, and nothing may be left elsewhere if everything is killed.

    Args:
        run_dir: An existing directory.
        worker_count: The number of workers on this node.

    Raises:
        ConfigError: there is no safe place in it.
        OSError: the system rejects it.
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
        """The agent's path."""
        return str(self._folder / AGENT_SOCKET)

    def worker(self, local_rank: int) -> str:
        """A worker's path, the same in all rounds, valid while this process lives."""
        return f"{self._near}/worker_{local_rank}.sock"

    def close(self) -> None:
        """Remove the sockets of killed workers, and release the descriptor."""
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
    """Yield a path of the same socket that the kernel accepts, valid during the block.

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
    """Reject a directory in which another user could replace a socket.

    Raises:
        ConfigError: it is another user's, or others can write to it.
        OSError: it can't be read.
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
    """Reject an existing directory that others can enter, or that is a link.

    Raises:
        ConfigError: it is not this user's alone.
        OSError: it can't be read.
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
    """Remove a socket's file, if it exists."""
    with suppress(OSError):
        if stat.S_ISSOCK(Path(path).lstat().st_mode):
            Path(path).unlink()


def remove_torch_socket(path: str) -> None:
    """Remove the socket of torch's own server, and its directory."""
    remove_socket(path)
    with suppress(OSError):
        Path(path).parent.rmdir()
