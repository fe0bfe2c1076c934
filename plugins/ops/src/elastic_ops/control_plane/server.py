"""A server on a unix socket: one daemon thread that waits for connections, and one more for each of them."""

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from elastic_core.api import ConfigError
from elastic_ops.control_plane import sockets
from elastic_ops.control_plane.acceptor import Acceptor
from elastic_ops.control_plane.paths import remove_socket

if TYPE_CHECKING:
    from elastic_ops.control_plane.http import Offer


class Server(Acceptor):
    """Serves what is offered on an owner-only unix socket until `shutdown`.

    Its threads never keep the process from ending, and a forked child has no part in it. There is no TCP: whoever
    reaches a port would run handlers in the training. Nothing of HTTP is loaded before the first request.

    Args:
        path: Where the socket is made. Its directory must be this user's (or root's, with the sticky bit), and not
            writable by others; what a server that is gone left there is replaced.
        make_offer: Called for each connection, on its thread: what is offered.

    Raises:
        ConfigError: the path can't be used.
        RuntimeError: there is no thread to be had.
    """

    def __init__(self, path: str, make_offer: "Callable[[], Offer]") -> None:
        """Listen, and begin to serve."""
        self._path = os.path.abspath(path)  # noqa: PTH100  # the process may go elsewhere
        self._make_offer = make_offer
        try:
            listening = sockets.listen(self._path)
        except OSError as err:
            raise ConfigError(f"no socket can be made at {path!r} ({err.strerror})") from err
        try:
            super().__init__(listening, name="elastic-control")
        except RuntimeError:
            remove_socket(self._path)
            raise

    @property
    def path(self) -> str:
        """Where it is reached."""
        return self._path

    def serve(self, connection: socket.socket) -> None:
        """Answer one request."""
        from elastic_ops.control_plane.http import serve

        serve(connection, self._make_offer())

    def hide(self) -> None:
        """Remove the socket."""
        remove_socket(self._path)
