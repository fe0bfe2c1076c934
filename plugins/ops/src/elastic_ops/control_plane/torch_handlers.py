"""Torch's own handlers, if the worker has imported torch: called through a private worker server of torch's.

Python can't call them with parameters, and they differ between builds; torch's server handles both.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from elastic_ops.control_plane.handlers import Handler, Request, Response
from elastic_ops.control_plane.paths import TORCH_SUFFIX, check_private, remove_torch_socket


class _Server(Protocol):
    def shutdown(self) -> None: ...


class _Torch(Protocol):
    _get_handler_names: Callable[[], list[str]]
    _WorkerServer: Callable[[str], _Server]


class TorchHandlers:
    """Access to torch's handlers. It imports nothing of torch, and starts no server before the first request.

    Threading: any.
    """

    def __init__(self, path: str) -> None:
        """Keep the path of this process's own socket."""
        self._path = Path(path + TORCH_SUFFIX)
        self._folder = self._path.parent
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def names(self) -> tuple[str, ...]:
        """Return the names of torch's handlers in this process; empty if torch is not imported."""
        torch = _torch()
        return () if torch is None else tuple(torch._get_handler_names())

    def find(self, name: str) -> Handler | None:
        """Return a handler that calls torch's, or `None`."""
        if name not in self.names():
            return None

        def ask(request: Request, response: Response) -> None:
            from elastic_ops.control_plane.client import call

            reply = call(self._begin(), name, request.params())
            response.set_status(reply.status)
            response.set_content(reply.content, reply.content_type)

        return ask

    def _begin(self) -> str:
        with self._lock:
            if self._server is None:
                # Torch makes its socket by the umask: the directory keeps others out.
                self._folder.mkdir(0o700, exist_ok=True)
                check_private(self._folder)
                self._path.unlink(missing_ok=True)  # of a process that is gone; torch would refuse it
                torch = _torch()
                assert torch is not None  # it was there when its names were asked for
                self._server = torch._WorkerServer(str(self._path))
        return str(self._path)

    def close(self) -> None:
        """End torch's server, if there is one."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            remove_torch_socket(path=str(self._path))

    def forget(self) -> None:
        """Leave the server to the parent. Called: in a forked child."""
        self._lock = threading.Lock()
        if self._server is not None:
            _LEFT.append(self._server)  # its end would wait for a thread that is not here
            self._server = None


_LEFT: list[_Server] = []


def _torch() -> _Torch | None:
    """Return the module with torch's handlers. `None` if torch is not imported, or was built without them."""
    module = getattr(sys.modules.get("torch._C"), "_distributed_c10d", None)
    has = hasattr(module, "_get_handler_names") and hasattr(module, "_WorkerServer")
    return cast("_Torch", module) if has else None
