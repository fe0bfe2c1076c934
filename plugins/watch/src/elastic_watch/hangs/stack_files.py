"""Files of a hang in the run directory: one for each rank, and what follows, in a folder for each stall."""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

KEPT_FOLDERS: Final = 64
"""Folders of the first stall and the last ones are kept: a run may hang for weeks."""
CONCLUSION: Final = "conclusion.json"
"""The file with the cause of a hang."""
RECORDER: Final = "recorder"
"""The folder of the flight recorder's files, in the folder of a stall."""


def make_folder(folder: Path) -> None:
    """Make the folder of a stall, and remove the folders between the first and the last ones.

    Args:
        folder: In the run directory, which only its owner can open.

    Raises:
        OSError: it can't be made.
    """
    for missing in (folder.parent, folder):
        missing.mkdir(mode=0o700, exist_ok=True)
    _forget_others(folder.parent)


def write_stacks(folder: Path, stacks: Mapping[int, tuple[str, str]]) -> dict[int, str]:
    """Append each rank's stacks to its file. Return the files' names, by global rank.

    Args:
        folder: In the run directory, which only its owner can open.
        stacks: By global rank, the heading and the text, which may be empty.

    Raises:
        OSError: they can't be written.
    """
    make_folder(folder)
    names = {}
    for rank, (head, text) in stacks.items():
        names[rank] = f"rank_{rank}.txt"
        with (folder / names[rank]).open("a", encoding="utf-8") as file:
            file.write(f"{head}\n{text or 'no stack was to be had'}\n\n")
    return names


def write_conclusion(folder: Path, content: bytes) -> None:
    """Write the file with the cause, in place of an earlier one.

    Raises:
        OSError: it can't be written.
    """
    make_folder(folder)
    (folder / CONCLUSION).write_bytes(content)


def _forget_others(parent: Path) -> None:
    """Remove the folders between the first and the last ones."""
    folders = []
    with os.scandir(parent) as entries:
        for entry in entries:
            with suppress(OSError):  # it has gone meanwhile
                if entry.name.startswith("round_") and entry.is_dir(follow_symlinks=False):
                    folders.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
    for _, old in sorted(folders)[1 : 1 - KEPT_FOLDERS]:
        shutil.rmtree(old, ignore_errors=True)
