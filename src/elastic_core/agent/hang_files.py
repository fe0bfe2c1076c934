"""Stacks in the run directory: a file for each rank, in a folder for each time that workers stood still."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from elastic_core.agent.hang_report import RankReport, headline
from elastic_core.agent.hang_stacks import Stacks
from elastic_core.private_file import make_folder


def write_stacks(folder: Path, ranks: Sequence[RankReport], stacks: Mapping[int, Stacks]) -> tuple[RankReport, ...]:
    """Add what each rank said to its file, and return the ranks with their files.

    Raises:
        OSError: they can't be written.
    """
    make_folder(str(folder))
    written = []
    for rank in ranks:
        path = folder / f"rank_{rank.global_rank}.txt"
        found = stacks.get(rank.local_rank, Stacks())
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{headline(rank)}\n{found.text or 'no stack was to be had'}\n\n")
        written.append(replace(rank, stacks=str(path)))
    return tuple(written)
