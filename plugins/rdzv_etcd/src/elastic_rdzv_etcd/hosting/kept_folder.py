"""The folder of an etcd that belongs to a process and is removed after the process ends in any way."""

import os
import sys
from pathlib import Path
from typing import Final

from elastic_backend_net.hosted_server import HostedProcess
from elastic_rdzv_etcd.hosting.folder_keeper import KEPT_FOLDER_VARIABLE

_KEEPER: Final = Path(__file__).absolute().with_name("folder_keeper.py")
"""It is run as a file: an import would import its package."""


class KeptFolder:
    """A folder that only its owner can read, and that is removed after this process ends in any way.

    If this process ends without having removed the folder, a process beside it kills all processes with the folder's
    mark in their environment, and removes the folder. If both are killed at the same moment, the folder remains.

    Threading: one thread at a time; `pids` any.
    """

    def __init__(self, prefix: str, *, parent: str | None = None) -> None:
        """Make nothing yet: `make` does.

        Args:
            prefix: Prefix of the folder's name.
            parent: Its parent; default the directory for temporary files.
        """
        self.path = Path(parent or _temporary()).absolute() / f"{prefix}{os.urandom(8).hex()}"
        self._keeper: HostedProcess | None = None
        self._pipe = -1

    @property
    def mark(self) -> dict[str, str]:
        """The variables for every process that uses the folder."""
        return {KEPT_FOLDER_VARIABLE: str(self.path)}

    def pids(self) -> frozenset[int]:
        """Return the process that keeps the folder: sweeps spare it, and only this object may reap it."""
        return frozenset() if self._keeper is None else self._keeper.pids()

    def make(self) -> None:
        """Make the folder and start its keeper.

        Raises:
            OSError: it can't be made.
        """
        # The keeper first: it can remove the folder from its first moment on.
        self._keep()
        try:
            self.path.mkdir(mode=0o700)
        except OSError:
            self._let_go()
            raise

    def _keep(self) -> None:
        if not sys.executable:
            raise FileNotFoundError("this process does not know its Python interpreter")
        argv = [sys.executable, "-I", "-S", str(_KEEPER), str(os.getpid()), str(self.path)]
        self._keeper = HostedProcess(argv, {})  # no mark: the guard that ends the server must not end it
        reading, self._pipe = os.pipe()
        silent = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            self._keeper.start(stdin=reading, output=silent)
        except OSError:
            self._let_go()
            raise
        finally:
            os.close(reading)
            os.close(silent)

    def remove(self) -> None:
        """Remove the folder; idempotent, never raises. The processes that use it must have ended."""
        if self._keeper is not None:
            import shutil  # needed only with a folder, as tempfile is

            shutil.rmtree(self.path, ignore_errors=True)
            self._let_go()

    def _let_go(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper = None
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def _temporary() -> str:
    import tempfile

    return tempfile.gettempdir()
