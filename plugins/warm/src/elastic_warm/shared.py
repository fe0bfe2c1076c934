"""The last commits of a worker in files of a memory file system, so that they outlive its process.

Each of the two slots is one file, `commit-LOCAL_RANK-SLOT`, in the folder that `TRAINING_WARM_DIR` names; the folder's
owner removes it with the run. A worker that is started anew on the same node, with the same local rank, reads the files
of the one before. The slots are the buffers into which `commit` copies, so the bytes are written once.

A file has a header of fixed size, the common block, the rank's own block, and JSON that describes both. The header's
number is odd while the file is written. A file whose number is odd, or whose checksum differs, is never used, and
reading it runs no code from it.
"""

import itertools
import json
import logging
import mmap
import os
import stat
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch

from elastic_warm.agreement import Key
from elastic_warm.division import division_from
from elastic_warm.host_copy import Commit, HostMemory, Memory, parts_of
from elastic_warm.state_errors import StateError

FOLDER: Final = "TRAINING_WARM_DIR"
LIMIT: Final = "TRAINING_WARM_BYTES"
"""Bytes that the files of one worker may have together. Not set means no limit but that of the file system."""

_HOOKS: Final = "ELASTIC_WORKER_HOOKS"
"""The agent sets it to 1, and the worker to its process id."""

_logger: Final = logging.getLogger("elastic_warm")
_MAGIC: Final = b"ELWARM01"
_HEADER: Final = struct.Struct("<8sQQQQI")
"""Magic, number, bytes of the common block, of the own block, of the JSON, checksum of all three."""
_DATA_AT: Final = 4096
_NUMBER_AT: Final = 8


class SharedMemory:
    """One slot in a file. Where the file can't be used, it is memory of this process, and one line says why.

    Args:
        path: The file. It is made when the first commit needs it.
        limit: The number of bytes that it may have. `None` means no limit.
    """

    def __init__(self, path: Path, limit: int | None) -> None:
        self._path = path
        self._limit = limit
        self._number = 0
        self._map: mmap.mmap | None = None
        self._common = self._own = 0
        self._room = 0
        self._instead: HostMemory | None = None
        self._whole = False

    def begin(self, common: int, own: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two blocks in the file, which is marked as being written."""
        if self._instead is not None:
            return self._instead.begin(common, own)
        try:
            return self._begin(common, own)
        except OSError as err:
            self._leave(f"{err.strerror or err} ({str(self._path)!r})")
            return self._instead_of().begin(common, own)

    def _begin(self, common: int, own: int) -> tuple[torch.Tensor, torch.Tensor]:
        size = _DATA_AT + common + own
        if self._limit is not None and size > self._limit:
            self._leave(f"a commit has {size} bytes, and {LIMIT} allows {self._limit} for each of the two")
            return self._instead_of().begin(common, own)
        if self._map is None or self._room < size or (common, own) != (self._common, self._own):
            self._make(size)
            self._common, self._own = common, own
        if self._map is None:
            raise OSError("the file is not mapped")
        self._number += 1 + self._number % 2  # odd
        struct.pack_into("<Q", self._map, _NUMBER_AT, self._number)
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        at_own = _DATA_AT + common
        return whole[_DATA_AT:at_own], whole[at_own : at_own + own]

    def _make(self, size: int) -> None:
        """Map a file with room for blocks of this size and their description, in place of the one before."""
        room = size + max(1 << 20, size // 16)
        if self._limit is not None:
            room = min(room, self._limit)
        self._map = None
        with suppress(FileNotFoundError):
            self._path.unlink()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, room)  # no room is an error here, and not a signal at a write later
            self._map = mmap.mmap(descriptor, room)
        finally:
            os.close(descriptor)
        self._room = room
        self._number = 0
        self._map[: len(_MAGIC)] = _MAGIC

    def finish(self, commit: Commit) -> None:
        """Write the description and the checksum, and mark the file as whole."""
        if self._map is None:
            return
        described = json.dumps(
            {
                "key": commit.key,
                "owner": commit.owner,
                "world_size": commit.world_size,
                "own_needed": commit.own_needed,
                "divisions": commit.divisions,
                "common": commit.common_head().decode(),
                "own": commit.own_head().decode(),
            }
        ).encode()
        end = _DATA_AT + self._common + self._own
        if end + len(described) > self._room:
            self._leave("the description of a commit is larger than expected")
            return
        self._map[end : end + len(described)] = described
        with memoryview(self._map) as view, view[_DATA_AT : end + len(described)] as written:
            checksum = zlib.crc32(written)
        _HEADER.pack_into(self._map, 0, _MAGIC, self._number, self._common, self._own, len(described), checksum)
        struct.pack_into("<Q", self._map, _NUMBER_AT, self._number + 1)  # even: from here on it counts
        self._number += 1

    def forget(self) -> None:
        """Mark the file as being written, so that no other worker uses what it has."""
        if self._map is not None:
            self._number += 1 + self._number % 2  # odd
            struct.pack_into("<Q", self._map, _NUMBER_AT, self._number)

    def _leave(self, reason: str) -> None:
        _logger.warning("the last commit of this worker ends with its process: %s", reason)
        self._map = None
        with suppress(OSError):
            self._path.unlink()
        self._instead = HostMemory()

    def _instead_of(self) -> HostMemory:
        if self._instead is None:
            self._instead = HostMemory()
        return self._instead

    # --- by a worker that is started anew

    def found(self) -> Commit | None:
        """Return the commit that the file has whole, and map it. `None` without one."""
        try:
            return self._found()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, StateError, struct.error) as err:
            _logger.warning("the last commit in %r is not used: %s", str(self._path), err)
            self._map = None
            return None

    def _found(self) -> Commit | None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise ValueError("it is not a file of this user alone")
            if status.st_size < _DATA_AT:
                raise ValueError("it is too short")
            self._map = mmap.mmap(descriptor, status.st_size)
        finally:
            os.close(descriptor)
        self._room = status.st_size
        magic, number, common, own, length, checksum = _HEADER.unpack_from(self._map)
        if magic != _MAGIC:
            raise ValueError("it is of another kind or version")
        self._number = number
        end = _DATA_AT + common + own
        if number == 0 or number % 2 or end + length > self._room:
            self._map = None  # its worker ended while it wrote
            return None
        with memoryview(self._map) as view, view[_DATA_AT : end + length] as written:
            if zlib.crc32(written) != checksum:
                raise ValueError("its checksum differs")
        commit = _commit_of(json.loads(self._map[end : end + length]))
        if commit.sizes() != (common, own):
            raise ValueError("its description does not fit its size")
        self._common, self._own = common, own
        return commit

    def blocks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the blocks of the commit that was found."""
        if self._map is None:
            raise StateError("no commit was found")
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        at_own = _DATA_AT + self._common
        return whole[_DATA_AT:at_own], whole[at_own : at_own + self._own]


def _commit_of(described: Any) -> Commit:  # noqa: ANN401  # JSON
    generation, serial, step = (_whole(number) for number in described["key"])
    return Commit(
        Key(generation, serial, step),
        _whole(described["owner"]),
        _whole(described["world_size"]),
        bool(described["own_needed"]),
        parts_of(described["common"].encode(), described["own"].encode()),
        tuple(map(division_from, described["divisions"])),
    )


def _whole(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} in place of a whole number")
    return value


_numbers = itertools.count()
"""The numbers of this process's states: each has files of its own."""


def shared_memories(count: int) -> list[SharedMemory] | None:
    """Return the slots of a state of this worker in shared memory. `None` if the variables don't request it."""
    folder, local_rank = os.environ.get(FOLDER), os.environ.get("LOCAL_RANK", "0")
    # A process that the worker has started inherits its variables, but is another one.
    if not folder or not local_rank.isdigit() or os.environ.get(_HOOKS, "1") not in ("1", str(os.getpid())):
        return None
    limit = os.environ.get(LIMIT, "")
    each = int(limit) // count if limit.isdigit() else None
    if each == 0:
        return None
    number = next(_numbers)
    name = f"commit-{local_rank}-" + (f"{number}." if number else "")
    return [SharedMemory(Path(folder) / f"{name}{slot}", each) for slot in range(count)]


def memories(count: int, *, is_pinned: bool) -> list[Memory]:
    """Return the memory of a rank's slots: shared if the variables request it, else its own."""
    shared = shared_memories(count)
    return list(shared) if shared is not None else [HostMemory(is_pinned=is_pinned) for _ in range(count)]
