"""Claims on a folder of checkpoints: numbered files, by which a save of an older round is rejected."""

import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from elastic_core.api import SYSTEM_CLOCK
from elastic_train.checkpoint.disk import read_json, write_json
from elastic_train.checkpoint.errors import CheckpointError

_NAME: Final = re.compile(r"\.claim-([0-9]{8,18})")
_KEPT: Final = 4
"""The number of newest claim files that are kept."""
_MOST_BYTES: Final = 1 << 14
_AGAIN_S: Final = 0.05
_TRIES: Final = 20


class Claimant(NamedTuple):
    """A round of a run, or a process without one, that claims a folder. A claim file has these fields."""

    run_id: str = ""
    round: int | None = None
    """`None` without `elastic run`."""
    master: str = ""
    """Address of rank 0. It distinguishes rounds with the same number, such as those of a run that begins anew."""
    host: str = ""
    pid: int = 0
    time: str = ""
    """Time of the claim, for people only; it is never compared."""

    def is_one_with(self, other: "Claimant") -> bool:
        """Return whether both belong to the same round."""
        return self.round is not None and other[:3] == self[:3]

    def follows(self, other: "Claimant") -> bool:
        """Return whether this is a later round of the same run."""
        if self.round is None or other.round is None:
            return False
        return other.run_id == self.run_id and other.round < self.round

    def __str__(self) -> str:
        where = f"pid {self.pid} on {self.host}" if self.host else "a process that left no name"
        return where if self.round is None else f"round {self.round} of run {self.run_id!a} ({where})"


def claimant_here() -> Claimant:
    """Return the claimant that this process is, read from its launcher's variables.

    Raises:
        ConfigError: a variable is malformed.
    """
    from elastic_train.attempts import attempt

    this = attempt()
    now = datetime.fromtimestamp(SYSTEM_CLOCK.wall_ns() // 10**9, UTC).isoformat()
    master = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    return Claimant(this.run_id or "", this.round_index, master, socket.gethostname(), os.getpid(), now)


class Claims:
    """The claim on a folder by a round, or by a process outside of any round. Used by rank 0 alone.

    A claim is a file, `.claim-00000007`, made with `O_EXCL`; the highest number is the newest. The first load or save
    of a round fixes its place behind the newest claim, and its first save makes the next one. A save is rejected if
    another round or process has claimed the folder since, unless that is an earlier round of the same run.

    A job that only loads, for evaluation, makes no file and outdates no training. A load makes a claim in one case
    alone: the newest one is that of an earlier round of the same run, which then saves no more. Numbers of rounds are
    compared within a run only, and a round counts as one whichever of its processes claims.

    The files are beside the checkpoints: a client of NFS lists a folder anew after it has made an entry there.

    All `Checkpointer` objects of a process have the same for a folder (`claims_of`).

    Threading: any; a save in the background checks its claim, too.
    """

    def __init__(self, folder: Path) -> None:
        """Read nothing yet."""
        self._folder = folder
        self._who: Claimant | None = None
        self._number = 0
        """Of its own claim; while there is none, of the newest that its first load has found."""
        self._is_own = False
        self._lock = threading.Lock()

    def load(self) -> None:
        """Reserve a place in the order of claims before the first load. A folder that can't be written is no error.

        Raises:
            ConfigError: a variable of this worker is malformed.
        """
        with self._lock:
            if self._who is not None:
                return
            try:
                numbers = self._numbers()
            except OSError:
                numbers = []  # there is none yet, or the load itself raises
            if self._enter(numbers):
                with suppress(OSError):
                    self._make(self._number + 1, numbers)

    def check(self, entries: Iterable[str] | None = None) -> None:
        """Return if a checkpoint may be saved. The first call claims the folder.

        Args:
            entries: The names in the folder, listed just now. `None` means that this method lists them.

        Raises:
            CheckpointError: another round or process has claimed the folder since.
            ConfigError: a variable of this worker is malformed.
            OSError: the folder can't be written.
        """
        with self._lock:
            numbers = self._numbers(entries)
            if self._who is None:
                self._enter(numbers)
            if self._is_own and self._number not in numbers:
                self._number, self._is_own = 0, False  # the folder was emptied, or is another one
            self._judge(max(numbers, default=0))
            while not self._is_own:
                number = max((self._number, *numbers)) + 1
                try:
                    self._make(number, numbers)
                except FileExistsError:
                    numbers = [*self._numbers(), number]  # a client of NFS may list it late
                    self._judge(max(numbers))

    def _enter(self, numbers: Sequence[int]) -> bool:
        """Reserve the place behind the newest claim. Return whether that claim is an earlier round's of this run."""
        who = claimant_here()
        self._number = max(numbers, default=0)
        newest = self._read(self._number)
        self._who, self._is_own = who, who.is_one_with(newest)
        return who.follows(newest)

    def _judge(self, newest: int) -> None:
        """Accept the newest claim if it is this one, or outdates nothing."""
        if newest <= self._number:
            return
        me, other = self._who or Claimant(), self._read(newest)
        if me.is_one_with(other):
            self._is_own = True
        elif self._is_own or not me.follows(other):
            since = f" at {other.time}" if other.time else ""
            over = "the end of this process, whose round is over"
            mine = "this process" if me.round is None else f"round {me.round} of run {me.run_id!a}"
            raise CheckpointError(
                f"{other} has claimed the folder{since}, after the first load or save of {mine}; "
                "expected one round or process that saves there",
                hint=over if other.follows(me) else "the end of one of them, or a folder for each",
            )
        self._number = newest

    def _make(self, number: int, numbers: Sequence[int]) -> None:
        """Claim the folder by a number, and remove old ones of `numbers`.

        Raises:
            FileExistsError: another process was first.
            OSError: the folder can't be written.
        """
        path = self._path(number)
        try:
            write_json(path, (self._who or Claimant())._asdict())
        except FileExistsError:
            raise
        except BaseException:
            path.unlink(missing_ok=True)  # of a full disk, say: a claim that has no name
            raise
        self._number, self._is_own = number, True
        for old in sorted(numbers)[: 1 - _KEPT]:
            with suppress(OSError):
                self._path(old).unlink()

    def _read(self, number: int) -> Claimant:
        """Return the claimant of a claim. It has no name if the claim can't be read or does not exist."""
        found = read_json(self._path(number), _MOST_BYTES)
        tries_left = _TRIES if number else 0
        while found is None and tries_left:  # it is just being written, or its writer was cut off
            tries_left -= 1
            threading.Event().wait(_AGAIN_S)
            found = read_json(self._path(number), _MOST_BYTES)
        found = found or {}
        texts = {name: str(found.get(name)) for name in ("run_id", "master", "host", "time")}
        round_, pid = found.get("round"), found.get("pid")
        if type(pid) is not int or not all(text.isprintable() for text in texts.values()):
            return Claimant()
        return Claimant(**texts, pid=pid, round=round_ if type(round_) is int else None)

    def _numbers(self, entries: Iterable[str] | None = None) -> list[int]:
        if entries is None:
            entries = [entry.name for entry in self._folder.iterdir()]
        return [int(match[1]) for entry in entries if (match := _NAME.fullmatch(entry))]

    def _path(self, number: int) -> Path:
        return self._folder / f".claim-{number:08d}"


_held: Final[dict[str, tuple[Callable[[], object], Claims]]] = {}
"""By folder, with links resolved: an outdated round stays outdated for each `Checkpointer` that it makes."""


def claims_of(folder: Path, group: Callable[[], object]) -> Claims:
    """Return this process's claims on a folder, as a rank of a process group.

    `group`: returns the group while it exists. `None` means a process alone.
    """
    path = os.path.realpath(folder)
    held = _held.get(path)
    if held is None or held[0]() is not group():
        held = _held[path] = (group, Claims(folder))
    return held[1]
