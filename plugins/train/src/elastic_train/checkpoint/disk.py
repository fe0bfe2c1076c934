"""Files and folders that survive a loss of power: everything is synced before it is given its name."""

import hashlib
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

_TOUCH_S: Final = 20.0
_TRIES: Final = 100


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Make a file of what a function writes, synced.

    Raises:
        FileExistsError: there is such a file; it stays as it is.
        OSError: the disk is full, say; whatever `write` makes of that, too.
    """
    with path.open("xb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Make a file of a document, synced."""
    text = json.dumps(content, indent=1) + "\n"
    write_file(path, lambda file: file.write(text.encode()))


def read_json(path: Path, most_bytes: int) -> dict[str, Any] | None:
    """Return the document that a file holds, none of it checked; None: it holds none, or more than `most_bytes`."""
    try:
        # No wait for a pipe of that name, and no end of memory by a file that has none.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(fd, "rb") as file:  # noqa: PTH123  # a descriptor
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
                return None
            document = json.loads(file.read(most_bytes))
    except (OSError, ValueError, RecursionError):
        return None
    return document if type(document) is dict else None


def sync_file(path: Path) -> None:
    """Have a file that somebody else has written on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


sync_folder = sync_file
"""Have a folder's entries on the disk."""


def checksum(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def give_name(unfinished: Path, name: Path) -> None:
    """Rename a folder that is complete, for good."""
    sync_folder(unfinished)
    unfinished.rename(name)
    sync_folder(name.parent)


def remove(folder: Path, *, by_name: Path) -> None:
    """Remove a folder in such a way that nobody takes half of it for the whole; a link or a file of its name, too.

    `by_name`: what it is called while it is removed. Several processes may remove the same.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            if by_name != folder and os.path.lexists(folder):
                folder.rename(by_name)
            if by_name.is_symlink() or not by_name.is_dir():
                by_name.unlink(missing_ok=True)
            else:
                shutil.rmtree(by_name)
        except FileNotFoundError:  # another process has just removed a part of it
            if not tries_left:
                raise
        else:
            return


@contextmanager
def kept_fresh(folder: Path) -> Iterator[None]:
    """Meanwhile give a folder the present time, again and again, so that other processes see that it is in use."""
    done = threading.Event()

    def touch() -> None:
        while not done.wait(_TOUCH_S):
            try:
                os.utime(folder)
            except OSError:
                return

    thread = threading.Thread(target=touch, name="elastic-checkpoint-in-use", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
