"""Files and folders that survive a power loss: they are synced before they get their names."""

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
    """Write a new file with a function, and sync it.

    Raises:
        FileExistsError: the file exists; it is unchanged.
        OSError: the system rejects the write, as when the disk is full. Errors of `write` are raised, too.
    """
    with path.open("xb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a document to a new file, and sync it."""
    text = json.dumps(content, indent=1) + "\n"
    write_file(path, lambda file: file.write(text.encode()))


def read_json(path: Path, most_bytes: int) -> dict[str, Any] | None:
    """Return the JSON document in a file, unchecked. `None` if it has none, or is larger than `most_bytes`."""
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
    """Sync a file that other code has written."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


sync_folder = sync_file
"""Sync a folder's entries."""


def checksum(path: Path) -> str:
    """Return a file's SHA-256 checksum."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def give_name(unfinished: Path, name: Path) -> None:
    """Rename a complete folder, and sync the new name."""
    sync_folder(unfinished)
    unfinished.rename(name)
    sync_folder(name.parent)


def remove(folder: Path, *, by_name: Path) -> None:
    """Remove a folder, a link or a file, without a moment at which half of it is under its own name.

    `by_name`: its name while it is removed. Several processes may remove the same folder.
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
    """Update a folder's modification time during the block, so that other processes see that it is in use."""
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
