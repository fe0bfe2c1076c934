"""The decorator that makes a training script reachable for requests while it runs."""

import functools
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from elastic_ops.control_plane.worker_server import WorkerServer

SOCKET_VARIABLE: Final = "TORCH_WORKER_SERVER_SOCKET"

P = ParamSpec("P")
R = TypeVar("R")


def worker_main() -> "WorkerMain":
    """Return a decorator and context manager that records errors and serves the control plane while the code runs.

    The server listens at the path in `TORCH_WORKER_SERVER_SOCKET`, which `elastic run` sets for each worker. Without
    the variable there is no server. If the socket can't be made, a line is printed on stderr and training goes on
    without it.

    Example:
        @worker_main()
        def main() -> None:
            train()
    """
    return WorkerMain()


class WorkerMain:
    """One use of `worker_main`."""

    def __init__(self) -> None:
        """Do nothing yet."""
        self._server: WorkerServer | None = None

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R | None]:
        """Return a function that is recorded and served each time it runs."""
        from elastic_ops.recording import record

        @functools.wraps(fn)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            server = _start()
            try:
                return fn(*args, **kwargs)
            finally:
                if server is not None:
                    server.shutdown()

        return record(wrapper)

    def __enter__(self) -> None:
        """Begin to serve."""
        from elastic_ops.recording import get_error_handler

        self._handler = get_error_handler()
        self._handler.initialize()
        self._server = _start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record an exception of the body, and end the server."""
        server, self._server = self._server, None
        try:
            if isinstance(error, Exception) or (isinstance(error, SystemExit) and isinstance(error.code, str)):
                self._handler.record_exception(error)
        finally:
            if server is not None:
                server.shutdown()


def _start() -> "WorkerServer | None":
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        return None
    from elastic_core.api import ElasticError
    from elastic_ops.control_plane.worker_server import WorkerServer

    try:
        return WorkerServer(path)
    except (ElasticError, RuntimeError) as err:  # RuntimeError: no thread to be had
        print(f"elastic: no control plane in this worker: {err}", file=sys.stderr)  # noqa: T201  # a worker's voice
        return None
