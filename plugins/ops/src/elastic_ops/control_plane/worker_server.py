"""The server in a worker, with its handlers."""

import os

from elastic_ops.control_plane.builtin import BUILT_IN
from elastic_ops.control_plane.handlers import WORKER_HANDLERS, Handler, HandlerTable, Offer
from elastic_ops.control_plane.listeners import OwnerServer
from elastic_ops.control_plane.torch_handlers import TorchHandlers

TITLE = "elastic_core.WorkerServer"


class WorkerOffer(Offer):
    """The handlers of a worker's server: those of user code, the built-in ones, and torch's."""

    title = TITLE

    def __init__(self, torch: TorchHandlers, registered: HandlerTable = WORKER_HANDLERS) -> None:
        """Take the sources."""
        self._torch = torch
        self._registered = registered

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted({*self._registered.names(), *BUILT_IN, *self._torch.names()}))

    def find(self, name: str) -> Handler | None:
        """Return a handler: user code's before built-in ones, and these before torch's."""
        return self._registered.find(name) or BUILT_IN.get(name) or self._torch.find(name)


class WorkerServer(OwnerServer):
    """Serves this process's handlers at a path, as `OwnerServer` does."""

    def __init__(self, path: str) -> None:
        """Listen, and begin to serve."""
        self._torch = TorchHandlers(os.path.abspath(path))  # noqa: PTH100  # as the server does
        offer = WorkerOffer(self._torch)
        super().__init__(path, lambda: offer)

    def end(self) -> None:
        """End torch's server behind this one, too."""
        self._torch.close()

    def forget(self) -> None:
        """Leave the server to the parent. Called: in a forked child."""
        super().forget()
        self._torch.forget()
