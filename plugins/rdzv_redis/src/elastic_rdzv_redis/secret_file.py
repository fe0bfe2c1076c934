"""The file with a run's secret, in a folder that the nodes and the user's login host share."""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from elastic_core.api import RendezvousSettings

_SECRET: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LONGEST_ID: Final = 120
"""The limit of characters of a run id in a file's name; of a longer id the digest is used."""


class UnusableError(Exception):
    """A folder or a file that can't keep a secret; the text has the reason."""


class SecretFile:
    """One run's file: written and removed by the node that hosts the store, read by the others.

    Its name has the run id (with the step under Slurm), the scheduler's job, the attempt and the port. A later attempt
    therefore never reads the file of a killed one.

    Args:
        folder: Made with mode 0700 by the first `prepare`. It must belong to this user, and be closed to others.
        settings: The run's. Without `attempt_given`, as in a command, the newest file of the run is read.
        port: The store's.
    """

    def __init__(self, folder: Path, settings: RendezvousSettings, port: int) -> None:
        """Read and write nothing yet."""
        run = quote(settings.run_id, safe="")
        if len(run) > _LONGEST_ID:
            run = hashlib.sha256(run.encode()).hexdigest()
        self._folder, self._run, self._port = folder, f"{run}@", f".{port}"
        self._job = f"{self._run}{quote(settings.job, safe='')}."
        self._name = f"{self._job}{settings.attempt}{self._port}"
        self._any = not settings.attempt_given
        self._secret = self._prepared = ""

    def __str__(self) -> str:
        """Return the path."""
        return str(self._folder / self._name)

    def prepare(self, secret: str) -> None:
        """Write the secret, readable by this user only, under a name that no node reads yet.

        Raises:
            UnusableError: the folder is not this user's alone, or can't be written.
        """
        self.remove()
        new = f".{os.urandom(8).hex()}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _opened(self._folder) as folder:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(new, flags, 0o600, dir_fd=folder), "w") as file:
                    self._prepared = new
                    file.write(secret)
        except OSError as error:
            raise UnusableError(f"folder {self._folder}: {error.strerror or error}") from error
        self._secret = secret

    def publish(self) -> None:
        """Give the file its name, and remove files of earlier attempts.

        Raises:
            UnusableError: the folder is gone, or another user's.
        """
        try:
            with _opened(self._folder) as folder:
                os.rename(self._prepared, self._name, src_dir_fd=folder, dst_dir_fd=folder)  # over what was planted
                self._prepared = ""
                for name in os.listdir(folder):  # noqa: PTH208  # of a descriptor
                    if name.startswith(self._job) and name.endswith(self._port) and name != self._name:
                        os.unlink(name, dir_fd=folder)
        except OSError as error:
            raise UnusableError(f"folder {self._folder}: {error.strerror or error}") from error

    def read(self) -> str:
        """Return the secret.

        Raises:
            UnusableError: there is none, or another user has written or could read the file.
        """
        return self._read(self._newest if self._any else lambda _: self._name)

    def _read(self, choose: Callable[[int], str]) -> str:
        try:
            with _opened(self._folder) as folder:
                name = choose(folder)
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
                    found = os.fstat(file.fileno())
                    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                        raise UnusableError(f"{self._folder / name} is not this user's alone")
                    secret = file.read(128).decode("ascii", "replace")
        except FileNotFoundError as error:
            raise UnusableError(f"no file of the run in {self._folder}") from error
        except OSError as error:
            raise UnusableError(f"folder {self._folder}: {error.strerror or error}") from error
        if not _SECRET.fullmatch(secret):
            raise UnusableError(f"{self._folder / name} has no secret in it")
        return secret

    def _newest(self, folder: int) -> str:
        names = [each for each in os.listdir(folder) if each.startswith(self._run) and each.endswith(self._port)]
        ages = {each: os.stat(each, dir_fd=folder, follow_symlinks=False).st_mtime_ns for each in names}
        if not ages:
            raise FileNotFoundError
        return max(ages, key=ages.__getitem__)

    def remove(self) -> None:
        """Remove the file of this node, unless another agent has replaced it; idempotent, never raises."""
        secret, prepared, self._secret, self._prepared = self._secret, self._prepared, "", ""
        with suppress(OSError, UnusableError):
            if prepared:
                (self._folder / prepared).unlink()
            elif secret and self._read(lambda _: self._name) == secret:
                (self._folder / self._name).unlink()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Yield a folder's descriptor. Opening the folder makes a network file system refresh its list of names.

    Raises:
        UnusableError: other users can change its content.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            raise UnusableError(f"folder {path} belongs to user id {found.st_uid}, not to {os.geteuid()}")
        if found.st_mode & 0o022:
            mode = stat.S_IMODE(found.st_mode)
            raise UnusableError(f"folder {path} can be written by other users (mode {mode:04o})")
        yield fd
    finally:
        os.close(fd)
