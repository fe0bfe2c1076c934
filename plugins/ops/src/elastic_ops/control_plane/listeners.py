"""Where HTTP servers listen: at owner-only unix sockets, and at TCP ports, where a POST needs the run's proof."""

import errno
import os
import socket
from collections.abc import Callable

from elastic_core.api import ConfigError
from elastic_core.api.feed import AgentChannel
from elastic_ops.control_plane import sockets
from elastic_ops.control_plane.handlers import Offer
from elastic_ops.control_plane.paths import remove_socket
from elastic_ops.control_plane.server import MOST_CONNECTIONS, HttpServer
from elastic_ops.control_plane.timed import OWNERS, STRANGERS


class OwnerServer(HttpServer):
    """Serves what is offered on an owner-only unix socket until `shutdown`.

    Args:
        path: Where the socket is made. Its directory must be this user's (or root's, with the sticky bit), and not
            writable by others; what a server that is gone left there is replaced.
        make_offer: Called for each connection, on its thread: what is offered.

    Raises:
        ConfigError: the path can't be used.
        RuntimeError: there is no thread to be had.
    """

    def __init__(self, path: str, make_offer: Callable[[], Offer]) -> None:
        """Listen, and begin to serve."""
        self._path = os.path.abspath(path)  # noqa: PTH100  # the process may go elsewhere
        try:
            listening = sockets.listen(self._path)
        except OSError as err:
            raise ConfigError(f"no socket can be made at {path!r} ({err.strerror})") from err
        try:
            super().__init__(listening, make_offer, name="elastic-control", bounds=OWNERS)
        except RuntimeError:
            remove_socket(self._path)
            raise

    @property
    def path(self) -> str:
        """Where it is reached."""
        return self._path

    def hide(self) -> None:
        """Remove the socket."""
        remove_socket(self._path)


class TcpServer(HttpServer):
    """Serves what is offered at a TCP port until `shutdown`: pages to all that reach it, handlers for the run's proof.

    Args:
        host: The address; with a colon: IPv6; `None`: all addresses, of both families where the host has both.
        port: 0: one that is free.
        offer: What is offered.
        name: Of the thread that waits for connections.
        channel: Returns how agents of the run know each other; `None`: no POST is taken. Threading: any.

    Raises:
        OSError: the port can't be had.
        RuntimeError: there is no thread to be had.
    """

    def __init__(
        self,
        host: str | None,
        port: int,
        offer: Offer,
        *,
        name: str,
        channel: Callable[[], AgentChannel | None] = lambda: None,
    ) -> None:
        """Listen, and begin to serve."""
        listening = _everywhere(port) if host is None else _at(host, port)
        self.port: int = listening.getsockname()[1]
        super().__init__(listening, lambda: offer, name=name, bounds=STRANGERS, channel=channel)


def _at(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except socket.gaierror:
        raise
    except OSError as err:  # with the address in its text, which our own lines have
        raise OSError(err.errno, os.strerror(err.errno or 0)) from err


def _everywhere(port: int) -> socket.socket:
    problem = OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # as the agent's UDP port
        try:
            return socket.create_server(
                (host, port), family=family, backlog=MOST_CONNECTIONS, dualstack_ipv6=family == socket.AF_INET6
            )
        except (OSError, ValueError) as err:  # the second: no dual stack is to be had
            problem = err if isinstance(err, OSError) else problem
    raise problem
