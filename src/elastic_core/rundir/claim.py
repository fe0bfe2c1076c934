"""The claim of an agent on a run directory that the user chose: one agent at a time has it, on any host."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from elastic_core.encoding import decode_json, encode_json
from elastic_core.rundir.identity import AgentIdentity
from elastic_core.system.private_file import give_owner_rights

CLAIM_FILE: Final = "agent.lock"
_MOST_BYTES: Final = 4096
_TRIES: Final = 100
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class Claim:
    """The claim on a directory, until `release`. If the agent is killed, the claim's file stays without its lock."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        # An empty file is a claim too, of an unknown agent: a full disk must not make two agents share a directory.
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, encode_json(AgentIdentity.own(host=os.uname().nodename, started_ns=0)), 0)

    def release(self) -> None:
        """Release the directory; idempotent."""
        with suppress(OSError):
            if self._fd >= 0 and _is_at(self._fd, self._path):
                self._path.unlink()
        self.close()

    def close(self) -> None:
        """Close the descriptor without changing a file; idempotent."""
        fd, self._fd = self._fd, -1  # first: the thread that releases it may be held up in a call
        if fd >= 0:
            os.close(fd)


def claim(folder: Path) -> Claim | str:
    """Return this agent's claim on a directory, or the name of the agent that has it.

    The file is made with O_EXCL, which works on file systems whose locks do not reach other hosts. A claim from another
    host counts while its file exists. A claim from this boot of this host ends with its agent, as its lock shows.

    Raises:
        OSError: No file can be created there.
    """
    path = folder / CLAIM_FILE
    for _ in range(_TRIES):
        try:
            fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            with suppress(FileNotFoundError):  # released meanwhile: again
                if taken := _take_over(path):
                    return taken
        else:
            give_owner_rights(fd, 0o600)
            return Claim(path, fd)
    return "agents that come and go"


def _take_over(path: Path) -> Claim | str:
    # The claim of an agent that has ended, the name of a live one, or empty if the file has been replaced.
    fd = os.open(path, _FLAGS)
    try:
        holder = _read(fd)
        if holder is None or not holder.same_boot or holder.running:
            return _named(holder)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its agent lives in another container, or there are no locks
            return _named(holder)
        if not _is_at(fd, path):
            return ""
        taken = Claim(path, fd)
        fd = -1
        return taken
    finally:
        if fd >= 0:
            os.close(fd)


def _read(fd: int) -> AgentIdentity | None:
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return decode_json(os.pread(fd, _MOST_BYTES, 0), AgentIdentity)
    return None


def _named(holder: AgentIdentity | None) -> str:
    return "another agent" if holder is None else f"the agent with pid {holder.pid} on host {holder.host!r}"


def _is_at(fd: int, path: Path) -> bool:
    held, found = os.fstat(fd), path.stat()
    return (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino)
