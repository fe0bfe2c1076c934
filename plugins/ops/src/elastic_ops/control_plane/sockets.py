"""Unix sockets that only their owner can use, and their paths."""

import os
import socket
import stat
from pathlib import Path
from typing import Final

from elastic_core.api import ConfigError
from elastic_ops.control_plane.paths import check_directory, within_reach

_OWNER_ONLY: Final = 0o600
_BACKLOG: Final = 16


def listen(path: str) -> socket.socket:
    """Return a listening socket at `path`, with mode 0600 from its first moment on.

    The socket of a server that has ended is replaced.

    Raises:
        ConfigError: the name is too long or in use, or its directory is not safe.
        OSError: the system rejects it.
    """
    check_directory(Path(path).parent)
    # Bound under another name first: between `bind` and `listen` a client is refused, as by a dead server.
    made = Path(path).with_name(f".{os.urandom(4).hex()}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The mode that the file is made with; the umask, which all threads share, can only take from it.
        os.fchmod(sock.fileno(), _OWNER_ONLY)
        with within_reach(path) as name, within_reach(str(made)) as near:
            sock.bind(near)
            try:
                _check_owner(made, path)
                sock.listen(_BACKLOG)
                _show(made, name, path)
            finally:
                made.unlink()
    except BaseException:
        sock.close()
        raise
    return sock


def _check_owner(made: Path, path: str) -> None:
    found = made.lstat()
    if stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid != os.geteuid():
        raise ConfigError(f"the socket {path!r} can't be made for its owner only (its file system keeps no modes)")


def _show(made: Path, name: str, path: str) -> None:
    """Give a socket its name, which must be free."""
    try:
        os.link(made, path)
    except FileExistsError:
        _remove_stale(name, path)
        os.link(made, path)


def _remove_stale(near: str, path: str) -> None:
    """Remove a socket of this user without a listener.

    Raises:
        ConfigError: it is another kind of file, or in use, or another user's.
    """
    found = Path(path).lstat()
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{path!r} is there already, and is no socket")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"the socket {path!r} belongs to user {found.st_uid}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(near)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
        except BlockingIOError:  # a full queue: a server has it
            pass
    raise ConfigError(f"another process listens at {path!r}", hint="another path for each process")
