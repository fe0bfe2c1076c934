"""Builds an sdist of each project, and the wheel from that sdist: `build_wheels.py FOLDER PROJECT…`.

The build backend's hooks are called as installers call them, but all in one process: each start of one takes longer
than its work. A wheel from the sdist has what an index would hand out: what the sdist lacks, it lacks.
"""

import os
import sys
import tarfile
import tempfile
from pathlib import Path

from hatchling import build


def main(target: str, *projects: str) -> None:
    """Build them all into a folder."""
    folder = Path(target).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for project in [Path(each).absolute() for each in projects]:
        os.chdir(project)
        sdist = build.build_sdist(str(folder))
        with tempfile.TemporaryDirectory() as unpacked:
            with tarfile.open(folder / sdist) as archive:
                archive.extractall(unpacked, filter="data")
            os.chdir(Path(unpacked, sdist.removesuffix(".tar.gz")))
            build.build_wheel(str(folder))
            os.chdir(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
