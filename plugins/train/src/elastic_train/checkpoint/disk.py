"""Files and folders that survive a loss of power: everything is synced before it is given its name."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO


def write_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Make a file of what a function writes, synced.

    Raises:
        OSError: the disk is full, say; whatever `write` makes of that, too.
    """
    with path.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Make a file of a document, synced."""
    text = json.dumps(content, indent=1) + "\n"
    write_file(path, lambda file: file.write(text.encode()))


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
    """Remove a folder in such a way that nobody takes half of it for the whole.

    `by_name`: what it is called while it is removed.
    """
    if by_name != folder:
        folder.rename(by_name)
    shutil.rmtree(by_name)
