"""Where the sockets of a run are: in its directory, or in one of their own where that is too deep or not safe."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from elastic_core.errors import ConfigError

LONGEST_PATH: Final = 107
"""Bytes of a socket's path that the kernel takes."""
AGENT_SOCKET: Final = "agent.sock"
TORCH_SUFFIX: Final = ".torch/s"
"""What is added to a worker's path for the socket of torch's own server, whose directory keeps others out."""
_SHORT: Final = "/tmp"  # TMPDIR may be what makes the path so long


class SocketPaths:
    """The paths of the sockets of one agent and its workers.

    Args:
        run_dir: Exists.
        worker_count: Of this node.

    Raises:
        OSError: the run directory is too deep or others can write to it, and no other one can be made.
    """

    def __init__(self, run_dir: Path, worker_count: int) -> None:
        """Choose the directory."""
        self._made = False
        self._folder = run_dir
        self._count = worker_count
        longest = f"{self.worker(worker_count - 1)}{TORCH_SUFFIX}"
        if len(os.fsencode(longest)) > LONGEST_PATH or not _is_safe(run_dir):
            self._folder = Path(_SHORT) / f"elastic-{os.urandom(8).hex()}"
            self._folder.mkdir(0o700)
            self._made = True

    @property
    def agent(self) -> str:
        """The agent's."""
        return str(self._folder / AGENT_SOCKET)

    def worker(self, local_rank: int) -> str:
        """A worker's, the same in all rounds."""
        return str(self._folder / f"worker_{local_rank}.sock")

    def remove(self) -> None:
        """Remove what is left of killed workers' servers, and the directory, if it is one of our own."""
        for rank in range(self._count):
            remove_socket(self.worker(rank))
            remove_torch_socket(self.worker(rank) + TORCH_SUFFIX)
        if self._made:
            with suppress(OSError):
                self._folder.rmdir()


def check_directory(folder: Path) -> None:
    """Refuse a directory in which a stranger could put a socket of his in the place of ours.

    Raises:
        ConfigError: it is a stranger's, or others can write to it.
        OSError: it can't be looked at.
    """
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{str(folder)!r} is no directory: no place for a socket")
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
