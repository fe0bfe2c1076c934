"""Stacks in the run directory: a file for each rank, in a folder for each time that workers stood still."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

KEPT_FOLDERS: Final = 64
"""The first time that workers stood still, and the last ones: a run may hang for weeks."""


def write_stacks(folder: Path, stacks: Mapping[int, tuple[str, str]]) -> dict[int, str]:
    """Add what each rank said to its file, and return the files' names, by global rank.

    Args:
        folder: In the run directory, which is its owner's alone.
        stacks: By global rank, the line that stands above, and the text; that may be empty.

    Raises:
        OSError: they can't be written.
    """
    for missing in (folder.parent, folder):
        missing.mkdir(mode=0o700, exist_ok=True)
    _forget_others(folder.parent)
    names = {}
    for rank, (head, text) in stacks.items():
        names[rank] = f"rank_{rank}.txt"
        with (folder / names[rank]).open("a", encoding="utf-8") as file:
            file.write(f"{head}\n{text or 'no stack was to be had'}\n\n")
    return names


def _forget_others(parent: Path) -> None:
    """Remove the folders between the first and the last ones."""
    folders = []
    with os.scandir(parent) as entries:
        for entry in entries:
            with suppress(OSError):  # it has gone meanwhile
                if entry.name.startswith("round_") and entry.is_dir(follow_symlinks=False):
                    folders.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
    for _, old in sorted(folders)[1 : 1 - KEPT_FOLDERS]:
        with suppress(OSError):
            for file in Path(old).iterdir():
                file.unlink()
            Path(old).rmdir()
