"""What a folder of checkpoints has: their names, their manifests, and which of them are whole."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from elastic_train.checkpoint.disk import checksum, give_name, remove, sync_folder, write_json
from elastic_train.checkpoint.errors import CheckpointError, reason_of

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
SHARDS: Final = "shards"
"""The folder with parts of sharded tensors."""
_NAME: Final = re.compile(r"(?P<serial>\d{8,})-step-(?P<step>\d+)")
_SAVING: Final = ".saving-"
_REMOVING: Final = ".removing-"


class StoredFile(NamedTuple):
    """A file of a checkpoint, as its manifest has it."""

    name: str
    size_bytes: int
    sha256: str


class Checkpoint(NamedTuple):
    """A checkpoint that is whole as far as names and sizes go."""

    folder: Path
    serial: int
    """Rises with each save."""
    step: int
    world_size: int
    """Of those who saved it."""
    kind: str
    """Whose values it has: those of `one` rank, or `each`."""
    job: str
    files: tuple[StoredFile, ...]

    @property
    def name(self) -> str:
        """Its folder's, which is the same on all hosts."""
        return self.folder.name

    @property
    def shards(self) -> list[str]:
        """Its files with parts of sharded tensors."""
        return [file.name for file in self.files if file.name.startswith(f"{SHARDS}/")]


def name_of(serial: int, step: int) -> str:
    """Return the folder's name of a checkpoint."""
    return f"{serial:08d}-step-{step}"


def described(folder: Path, names: Sequence[str]) -> tuple[StoredFile, ...]:
    """Return files that have been written, as a manifest has them."""
    return tuple(StoredFile(name, (folder / name).stat().st_size, checksum(folder / name)) for name in names)


class Scan(NamedTuple):
    """What is in a folder."""

    whole: list[Checkpoint]
    """Newest first."""
    broken: list[str]
    """A line for each of the others."""
    last_serial: int
    """The highest number that any of them has; 0: there is none."""


class CheckpointFolder:
    """The checkpoints in a folder, as one process sees them.

    Args:
        path: The folder; made by the first save.
        job: Whose they are; empty: anybody's.
    """

    def __init__(self, path: Path, job: str) -> None:
        self.path = path
        self.job = job

    # --- reading

    def scan(self) -> Scan:
        """Return what checkpoints there are.

        Raises:
            CheckpointError: the folder can't be read, or one is another job's, or of a newer format.
        """
        try:
            entries = sorted(entry.name for entry in self.path.iterdir())
        except FileNotFoundError:
            return Scan([], [], 0)
        except OSError as err:
            raise CheckpointError(
                f"checkpoints in {str(self.path)!r} can't be read: {reason_of(err)}",
                hint="a folder that this process can read",
            ) from err
        found, broken, last_serial = [], [], 0
        for entry in entries:
            match = _NAME.fullmatch(entry)
            if match is None:
                continue
            last_serial = max(last_serial, int(match["serial"]))
            read = self._read(self.path / entry, int(match["serial"]), int(match["step"]))
            if isinstance(read, Checkpoint):
                found.append(read)
            else:
                broken.append(f"checkpoint {str(self.path / entry)!r} is left out: {read}")
        return Scan(sorted(found, key=lambda each: (each.serial, each.step), reverse=True), broken, last_serial)

    def _read(self, folder: Path, serial: int, step: int) -> Checkpoint | str:
        """Return one, or why it is not whole."""
        try:
            manifest = json.loads((folder / MANIFEST).read_bytes())
            version = manifest["format"]
        except (OSError, ValueError, KeyError, TypeError):
            return f"{MANIFEST} is missing or torn"
        if version != FORMAT:
            raise CheckpointError(
                f"checkpoint {str(folder)!r} is of format {version!r}, this elastic-train reads {FORMAT}",
                hint="the elastic-train that wrote it, or another folder",
            )
        try:
            files = tuple(StoredFile(str(f["name"]), int(f["bytes"]), str(f["sha256"])) for f in manifest["files"])
            job, world_size, kind = str(manifest["job"]), int(manifest["world_size"]), str(manifest["kind"])
        except (ValueError, KeyError, TypeError):
            return f"{MANIFEST} is torn"
        if self.job and job and job != self.job:
            raise CheckpointError(
                f"checkpoint {str(folder)!r} is of the job {job!r}, this is {self.job!r}",
                hint=f"a folder for each job, or Checkpointer(…, job={job!r})",
            )
        for file in files:
            if fault := _fault_of(folder, file):
                return fault
        return Checkpoint(folder, serial, step, world_size, kind, job, files)

    # --- writing, by one rank alone

    def begin(self, serial: int, step: int) -> Path:
        """Return an empty folder for a checkpoint to be written into; remains of saves that did not end are removed.

        Raises:
            CheckpointError: the folder can't be written.
        """
        unfinished = self.unfinished(serial, step)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.sweep()
            unfinished.mkdir()
        except OSError as err:
            raise CheckpointError(
                f"checkpoints can't be written to {str(self.path)!r}: {reason_of(err)}",
                hint="a folder that this process can write",
            ) from err
        return unfinished

    def unfinished(self, serial: int, step: int) -> Path:
        """Return where a checkpoint is written before it has its name."""
        return self.path / f"{_SAVING}{name_of(serial, step)}"

    def sweep(self) -> None:
        """Remove what saves and removals have left that did not end.

        Raises:
            OSError: something of it stays.
        """
        for entry in self.path.iterdir():
            if entry.name.startswith((_SAVING, _REMOVING)) and _NAME.fullmatch(entry.name.split("-", 1)[1]):
                remove(entry, by_name=entry)

    def complete(
        self, unfinished: Path, *, world_size: int, kind: str, files: Sequence[StoredFile], more: Mapping[str, object]
    ) -> Path:
        """Give a checkpoint whose files are all there its manifest and its name, and return where it is.

        Raises:
            OSError: the disk is full, say.
        """
        for file in files:
            if fault := _fault_of(unfinished, file):
                raise FileNotFoundError(f"{fault} where rank 0 looks")
        name = unfinished.name.removeprefix(_SAVING)
        content = {
            "format": FORMAT,
            "job": self.job,
            "step": int(name.rpartition("-")[2]),
            "world_size": world_size,
            "kind": kind,
            "files": [{"name": file.name, "bytes": file.size_bytes, "sha256": file.sha256} for file in files],
        }
        write_json(unfinished / MANIFEST, {**content, **more})
        for folder in {(unfinished / file.name).parent for file in files} - {unfinished}:
            sync_folder(folder)
        give_name(unfinished, self.path / name)
        return self.path / name

    def discard(self, unfinished: Path) -> None:
        """Remove what was written of a checkpoint that will not be; what stays is removed by the next save."""
        try:
            remove(unfinished, by_name=unfinished)
        except OSError:
            return

    def prune(self, keep: int, damaged: Collection[str]) -> None:
        """Remove the oldest of the whole checkpoints until no more than `keep` are left.

        `damaged`: names of those that only look whole; they stay, for somebody to look at, and don't count.

        Raises:
            OSError: one stays.
        """
        whole = [each for each in self.scan().whole if each.name not in damaged]
        for old in whole[keep:]:
            remove(old.folder, by_name=self.path / f"{_REMOVING}{old.name}")


def damage(checkpoint: Checkpoint, names: Sequence[str]) -> str:
    """Return what is wrong with these files of a checkpoint by their checksums, empty: nothing."""
    for file in checkpoint.files:
        if file.name not in names:
            continue
        try:
            if checksum(checkpoint.folder / file.name) != file.sha256:
                return f"the checksum of {file.name} differs from the manifest's"
        except OSError as err:
            return f"{file.name} can't be read: {reason_of(err)}"
    return ""


def _fault_of(folder: Path, file: StoredFile) -> str:
    path = folder / file.name
    if not path.resolve().is_relative_to(folder.resolve()):
        return f"{MANIFEST} names a file elsewhere"
    try:
        size = path.stat().st_size
    except OSError as err:
        return f"{file.name} is missing" if isinstance(err, FileNotFoundError) else f"{file.name}: {reason_of(err)}"
    return "" if size == file.size_bytes else f"{file.name} has {size} bytes of {file.size_bytes}"
