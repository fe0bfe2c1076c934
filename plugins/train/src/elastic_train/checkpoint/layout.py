"""The content of a folder of checkpoints: names, manifests, and which checkpoints are complete."""

import errno
import os
import re
import secrets
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from elastic_train.checkpoint import writer
from elastic_train.checkpoint.claims import Claims
from elastic_train.checkpoint.disk import checksum, give_name, read_json, remove, sync_folder, write_json
from elastic_train.checkpoint.errors import CheckpointError, reason_of

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
SHARDS: Final = "shards"
"""Folder with the parts of sharded tensors."""
KINDS: Final = ("one", "each")
"""The ranks whose values a checkpoint has: one, or each."""
LAST_STEP: Final = 10**18 - 1
SPARED_S: Final = 180.0
"""How long the remains of a save are kept that may still be in progress. During a save, rank 0 updates the folder's
time every 20 s; network file systems may show that up to a minute later.
"""
_NAME: Final = re.compile(r"(?P<serial>[0-9]{8,18})-step-(?P<step>[0-9]{1,18})")
_SAVING: Final = ".saving-"
_REMOVING: Final = ".removing-"
_UNFINISHED: Final = re.compile(rf"(\.saving-|\.removing-){_NAME.pattern}(?:-(?P<mark>[0-9a-z-]+))?")
_FILE: Final = re.compile(rf"(?:{SHARDS}/)?[0-9A-Za-z_.-]{{1,200}}")
_MOST_BYTES: Final = 1 << 28
"""Limit of a manifest's size. A manifest of 100,000 ranks has a tenth of it."""
TAKEN: Final = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_saved_here: Final[set[Path]] = set()
"""The checkpoints that this process has saved."""


class StoredFile(NamedTuple):
    """A file of a checkpoint, as listed in its manifest."""

    name: str
    size_bytes: int
    sha256: str


class Checkpoint(NamedTuple):
    """A checkpoint that is complete by its files' names and sizes."""

    folder: Path
    serial: int
    """Serial number; rises with each save."""
    step: int
    world_size: int
    """The number of ranks that saved it."""
    kind: str
    """The ranks whose values it has: `one` or `each`."""
    job: str
    files: tuple[StoredFile, ...]

    @property
    def name(self) -> str:
        """The name of its folder, the same on all hosts."""
        return self.folder.name

    @property
    def shards(self) -> list[str]:
        """Its files with parts of sharded tensors."""
        return [file.name for file in self.files if file.name.startswith(f"{SHARDS}/")]


def name_of(serial: int, step: int) -> str:
    """Return the folder name of a checkpoint."""
    return f"{serial:08d}-step-{step}"


def described(folder: Path, names: Sequence[str]) -> tuple[StoredFile, ...]:
    """Return written files in the form in which a manifest lists them."""
    return tuple(StoredFile(name, (folder / name).stat().st_size, checksum(folder / name)) for name in names)


class Scan(NamedTuple):
    """The content of a folder."""

    whole: list[Checkpoint]
    """The complete checkpoints, newest first."""
    broken: list[str]
    """One line for each incomplete checkpoint."""
    last_serial: int
    """The highest serial number; 0 if there is none."""
    names: frozenset[str] = frozenset()
    """The names of all of them."""


class Begun(NamedTuple):
    """A checkpoint that is being saved."""

    folder: Path
    """The folder to which its files are written before it gets its name."""
    serial: int
    another: str
    """A log line about another process that saves in the folder; empty if none is seen."""
    staying: str
    """A log line about remains that could not be removed; empty if there are none."""


class CheckpointFolder:
    """The checkpoints in a folder, as one process sees them.

    Args:
        path: The folder. The first save makes it.
        job: Name of the job. Empty means any.
    """

    def __init__(self, path: Path, job: str) -> None:
        self.path = path
        self.job = job

    # --- reading

    def scan(self) -> Scan:
        """Return the checkpoints in the folder.

        Raises:
            CheckpointError: the folder can't be read, or has a checkpoint of another job or of a newer format.
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
        names = frozenset(entry for entry in entries if _NAME.fullmatch(entry))
        for entry in sorted(names):
            serial, step = _numbers(entry)
            last_serial = max(last_serial, serial)
            try:
                found.append(self._read(self.path / entry, serial, step))
            except _LeftOutError as err:
                broken.append(f"checkpoint {str(self.path / entry)!r} is left out: {err}")
        whole = sorted(found, key=lambda each: (each.serial, each.step), reverse=True)
        return Scan(whole, broken, last_serial, names)

    def _read(self, folder: Path, serial: int, step: int) -> Checkpoint:
        """Return a complete checkpoint.

        Raises:
            _LeftOutError: it is not complete.
            CheckpointError: it is of another job, or of a newer format.
        """
        manifest = _document(folder)
        version = manifest.get("format")
        if type(version) is not int or version < FORMAT:
            raise _LeftOutError(f"{MANIFEST} is missing or torn")
        if version > FORMAT:
            raise CheckpointError(
                f"checkpoint {str(folder)!r} is of format {version}, this elastic-train reads {FORMAT}",
                hint="the elastic-train that wrote it, or another folder",
            )
        job, world_size, kind = (manifest.get(name) for name in ("job", "world_size", "kind"))
        listed = manifest.get("files")
        if not (
            type(job) is str
            and type(world_size) is int
            and world_size > 0
            and kind in KINDS
            and type(listed) is list
            and all(type(file) is dict for file in listed)
        ):
            raise _LeftOutError(f"{MANIFEST} is torn")
        files = tuple(StoredFile(file.get("name"), file.get("bytes"), file.get("sha256")) for file in listed)
        if any((type(file.name), type(file.size_bytes), type(file.sha256)) != (str, int, str) for file in files):
            raise _LeftOutError(f"{MANIFEST} is torn")
        if self.job and job and job != self.job:
            raise CheckpointError(
                f"checkpoint {str(folder)!r} is of the job {job!a}, this is {self.job!r}",
                hint=f"a folder for each job, or Checkpointer(…, job={job!a})",
            )
        for file in files:
            if fault := _fault_of(folder, file):
                raise _LeftOutError(fault)
        if sum("/" not in file.name for file in files) < (1 if kind == "one" else world_size):
            raise _LeftOutError(f"{MANIFEST} lacks files of values")
        return Checkpoint(folder, serial, step, world_size, str(kind), job, files)

    # --- writing, by one rank alone

    def begin(
        self, serial: int, step: int, known: Collection[str] | None = None, claims: Claims | None = None
    ) -> Begun:
        """Make an empty folder for a new checkpoint. Remains of unfinished saves are removed.

        Args:
            serial: The lowest serial number for it.
            step: Its step.
            known: Names of checkpoints that are no sign of another process that saves here, in addition to those that
                this process saved. `None` means all.
            claims: The claims of the saving round. `None` means that no claim is checked.

        Raises:
            CheckpointError: the folder can't be written, or a later round has claimed it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            entries = [entry.name for entry in self.path.iterdir()]
            self._check(claims, step, entries)
            unknown, staying = self._sweep(entries)
            names = [entry for entry in entries if _NAME.fullmatch(entry)]
            serial = max([serial, *(_numbers(name)[0] + 1 for name in names)])
            unfinished = self.path / f"{_SAVING}{name_of(serial, step)}-{writer.mark()}"
            unfinished.mkdir()
            under_way, old_staying = self._sweep_old(unknown, unfinished.stat().st_mtime)
        except OSError as err:
            raise CheckpointError(
                f"checkpoints can't be written to {str(self.path)!r}: {reason_of(err)}",
                hint="a folder that this process can write",
            ) from err
        foreign = [] if known is None else [n for n in names if n not in known and self.path / n not in _saved_here]
        return Begun(unfinished, serial, self._line_on_another(foreign, under_way), staying or old_staying)

    def _check(self, claims: Claims | None, step: int, entries: Sequence[str]) -> None:
        """Check a claim before anything is removed or written."""
        try:
            if claims is not None:
                claims.check(entries)
        except CheckpointError as err:
            what = f"step {step} was not saved in {str(self.path)!r}: {err.what}"
            raise CheckpointError(what, hint=err.hint) from err

    def _line_on_another(self, foreign: Sequence[str], under_way: Sequence[str]) -> str:
        if foreign:
            sign = f"another process saves there: it has saved {max(foreign)!r}"
        elif under_way:
            sign = (
                f"another process saves there, or did until it was cut off within the last {SPARED_S:.0f} s: "
                f"{under_way[0]!r} is left alone"
            )
        else:
            return ""
        return (
            f"checkpoints in {str(self.path)!r}: {sign}; expected one run for each folder. "
            "Try: the end of one of the runs, or a folder for each"
        )

    def _sweep(self, entries: Sequence[str]) -> tuple[list[str], str]:
        """Remove remains of removals, and of saves whose process is known to have ended.

        Returns:
            The remains of other saves, and a line about remains that could not be removed.
        """
        unknown, staying = [], ""
        for entry in entries:
            match = _UNFINISHED.fullmatch(entry)
            if match is None:
                continue
            if match[1] == _SAVING and not writer.is_gone(match["mark"] or ""):
                unknown.append(entry)
            else:
                staying = self._remove(entry) or staying
        return unknown, staying

    def _sweep_old(self, entries: Sequence[str], now_s: float) -> tuple[list[str], str]:
        """Remove remains of saves that were not written to recently.

        `now_s`: time by the clock of the folder's file system.

        Returns:
            The remains that were written to recently, and a line about those that could not be removed.
        """
        under_way, staying = [], ""
        for entry in entries:
            written_s = last_written_s(self.path / entry)
            if written_s is None:
                continue
            if now_s - written_s < SPARED_S:
                under_way.append(entry)
            else:
                staying = self._remove(entry) or staying
        return under_way, staying

    def _remove(self, entry: str) -> str:
        """Remove remains; return a line if they stay."""
        remains = self.path / entry
        try:
            remove(remains, by_name=remains)
        except OSError as err:
            return f"remains of a save stay, {str(remains)!r}: {reason_of(err)}"
        return ""

    def complete(
        self,
        unfinished: Path,
        *,
        world_size: int,
        kind: str,
        files: Sequence[StoredFile],
        more: Mapping[str, object],
        claims: Claims | None = None,
    ) -> Path:
        """Give a checkpoint with all its files a manifest and its name. Return its path.

        Raises:
            CheckpointError: a later round has claimed the folder.
            OSError: the system rejects the write, as when the disk is full.
        """
        for file in files:
            if fault := _fault_of(unfinished, file):
                raise FileNotFoundError(f"{fault} where rank 0 looks")
        match = _UNFINISHED.fullmatch(unfinished.name)
        if match is None:
            raise ValueError(f"{unfinished.name} is not what begin() gives")
        serial, step = int(match["serial"]), int(match["step"])
        content = {
            "format": FORMAT,
            "job": self.job,
            "step": step,
            "world_size": world_size,
            "kind": kind,
            "files": [{"name": file.name, "bytes": file.size_bytes, "sha256": file.sha256} for file in files],
        }
        write_json(unfinished / MANIFEST, {**content, **more})
        for folder in {(unfinished / file.name).parent for file in files} - {unfinished}:
            sync_folder(folder)
        if claims is not None:
            claims.check()
        while True:
            saved = self.path / name_of(serial, step)
            try:
                give_name(unfinished, saved)
            except OSError as err:
                if err.errno not in TAKEN or not unfinished.exists():
                    raise
                serial += 1  # another process has saved one meanwhile; both are whole
            else:
                _saved_here.add(saved)
                return saved

    def discard(self, unfinished: Path) -> None:
        """Remove the files of an unfinished checkpoint. The next save removes what remains."""
        try:
            remove(unfinished, by_name=unfinished)
        except OSError:
            return

    def prune(self, keep: int, damaged: Collection[str]) -> None:
        """Remove the oldest complete checkpoints until at most `keep` are left.

        `damaged`: names of checkpoints that only look complete. They are kept for inspection, and not counted.

        Raises:
            OSError: one could not be removed.
        """
        whole = [each for each in self.scan().whole if each.name not in damaged]
        for old in whole[keep:]:
            remove(old.folder, by_name=self.path / f"{_REMOVING}{old.name}-{secrets.token_hex(4)}")
            _saved_here.discard(old.folder)


def damage(checkpoint: Checkpoint, names: Sequence[str]) -> str:
    """Return what is wrong with these files by their checksums, or an empty text."""
    for file in checkpoint.files:
        if file.name not in names:
            continue
        try:
            if checksum(checkpoint.folder / file.name) != file.sha256:
                return f"the checksum of {file.name} differs from the manifest's"
        except OSError as err:
            return f"{file.name} can't be read: {reason_of(err)}"
    return ""


class _LeftOutError(Exception):
    """The reason why a checkpoint is not complete."""


def _numbers(name: str) -> tuple[int, int]:
    serial, _, step = name.split("-")
    return int(serial), int(step)


def last_written_s(path: Path) -> float | None:
    """Return when a path or anything below it was last written. `None` if the path is gone."""
    try:
        newest_s = path.lstat().st_mtime
    except OSError:
        return None
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            try:
                newest_s = max(newest_s, (Path(folder) / name).lstat().st_mtime)
            except OSError:
                continue
    return newest_s


def _document(folder: Path) -> dict[str, Any]:
    """Return the content of a manifest, unchecked.

    Raises:
        _LeftOutError: it is not a JSON document.
    """
    document = read_json(folder / MANIFEST, _MOST_BYTES)
    if document is None:
        raise _LeftOutError(f"{MANIFEST} is missing or torn")
    return document


def _fault_of(folder: Path, file: StoredFile) -> str:
    """Return what is wrong with a file by its name and size, or an empty text."""
    if not _FILE.fullmatch(file.name) or file.name.rpartition("/")[2] in (".", ".."):
        return f"{MANIFEST} names a file elsewhere" if "/" in file.name else f"{MANIFEST} names a file that no save has"
    path = folder / file.name
    try:
        if not path.resolve(strict=True).is_relative_to(folder.resolve(strict=True)):
            return f"{MANIFEST} names a file elsewhere"
        found = path.stat()
    except FileNotFoundError:
        return f"{file.name} is missing"
    except (OSError, RuntimeError) as err:  # the latter: Python's own, of links that lead in a circle
        return f"{file.name}: {reason_of(err)}"
    if not stat.S_ISREG(found.st_mode):
        return f"{file.name} is no file"
    return "" if found.st_size == file.size_bytes else f"{file.name} has {found.st_size} bytes of {file.size_bytes}"
