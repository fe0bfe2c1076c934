"""The control plane: HTTP servers on owner-only unix sockets, in the agent and in each worker that starts one.

Importing this package loads nothing: each name is imported at its first use.
"""

# Not from typing: training scripts import this package, and typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from elastic_ops.control_plane.client import Reply, call
    from elastic_ops.control_plane.handlers import Request, Response, handler_names, register_handler
    from elastic_ops.control_plane.worker_main import worker_main
    from elastic_ops.control_plane.worker_server import WorkerServer

__all__ = [
    "Reply",
    "Request",
    "Response",
    "WorkerServer",
    "call",
    "handler_names",
    "register_handler",
    "worker_main",
]


def __getattr__(name: str) -> object:
    if name == "worker_main":
        # The function over the module of its name, which the import leaves here.
        from elastic_ops.control_plane.worker_main import worker_main

        globals()["worker_main"] = worker_main
        return worker_main
    if name == "WorkerServer":
        from elastic_ops.control_plane.worker_server import WorkerServer

        return WorkerServer
    if name in ("Reply", "call"):
        from elastic_ops.control_plane import client

        return getattr(client, name)
    if name in __all__:
        from elastic_ops.control_plane import handlers

        return getattr(handlers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
