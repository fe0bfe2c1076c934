"""Stacks in the run directory: a file for each rank, in a folder for each time that workers stood still."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from elastic_core.agent.watch.hang_report import RankReport, headline
from elastic_core.private_file import make_folder
from elastic_core.reports import WorkerStack

KEPT_FOLDERS: Final = 64
"""The first time that workers stood still, and the last ones: a run may hang for weeks."""


def write_stacks(
    folder: Path, ranks: Sequence[RankReport], stacks: Mapping[int, WorkerStack]
) -> tuple[RankReport, ...]:
    """Add what each rank said to its file, and return the ranks with their files.

    Raises:
        OSError: they can't be written.
    """
    make_folder(str(folder))
    _forget_others(folder.parent)
    written = []
    for rank in ranks:
        path = folder / f"rank_{rank.global_rank}.txt"
        found = stacks.get(rank.local_rank, WorkerStack())
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{headline(rank)}\n{found.text or 'no stack was to be had'}\n\n")
        written.append(replace(rank, stacks=str(path)))
    return tuple(written)


def _forget_others(parent: Path) -> None:
    """Remove the folders between the first and the last ones."""
    with os.scandir(parent) as entries:
        folders = [
            entry for entry in entries if entry.name.startswith("round_") and entry.is_dir(follow_symlinks=False)
        ]
    folders.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
    for old in folders[1 : 1 - KEPT_FOLDERS]:
        with suppress(OSError):
            for file in Path(old.path).iterdir():
                file.unlink()
            Path(old.path).rmdir()
