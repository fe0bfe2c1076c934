"""HTTP servers on owner-only unix sockets, and on TCP ports, where a POST needs the run's proof."""

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
    """Serves on an owner-only unix socket until `shutdown`.

    Args:
        path: Path of the socket. Its directory must be this user's (or root's, with the sticky bit), and not writable
            by others. The socket of a server that has ended is replaced.
        make_offer: Called for each connection, on its thread: returns pages and handlers.

    Raises:
        ConfigError: the path can't be used.
        RuntimeError: no thread can be started.
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
        """The path of the socket."""
        return self._path

    def hide(self) -> None:
        """Remove the socket."""
        remove_socket(self._path)


class TcpServer(HttpServer):
    """Serves at a TCP port until `shutdown`: pages to all clients, handlers to clients with the run's proof.

    Args:
        host: The address; IPv6 if it has a colon. `None` means all addresses, of both families if the host has both.
        port: The port; 0 means any free port.
        offer: Pages and handlers.
        name: Name of the thread that waits for connections.
        channel: Returns the run's secret channel between agents. `None` means that POST is rejected. Threading: any.

    Raises:
        OSError: the port can't be opened.
        RuntimeError: no thread can be started.
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
