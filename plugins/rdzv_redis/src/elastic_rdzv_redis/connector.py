"""Connections to the server in charge: name or path, TLS, and login."""

import socket
from collections.abc import Callable, Sequence
from typing import Final

from elastic_backend_net.endpoint import Endpoint, dial
from elastic_backend_net.interrupt import Interrupt
from elastic_backend_net.tls import waker
from elastic_core.api import SYSTEM_CLOCK, WaitBudget
from elastic_core.api.stores import BackendError, BackendRefusedError, BackendUnavailableError
from elastic_rdzv_redis.line import Line
from elastic_rdzv_redis.tls import begin_tls, tls_failure
from elastic_rdzv_redis.url import Login, Tls

DIAL_S: Final = 3.0
"""The time limit of one try to connect, with name resolution and TLS."""
_ALERT_S: Final = 1.0
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class Connector:
    """Opens connections to hosts and unix sockets; each method tries once."""

    def __init__(self, tls: Tls | None, interrupt: Interrupt) -> None:
        """Keep the TLS settings (`None` means no TLS)."""
        self._tls = tls
        self.interrupt = interrupt

    def reach(
        self, place: Endpoint | str, *, login: Login, wait: WaitBudget, db: int = 0, within_s: float = DIAL_S
    ) -> Line:
        """Return a connection to a host, or to a unix socket's path, on which the server has responded.

        Raises:
            BackendUnavailableError, BackendRefusedError: there is none; with the reason, the place and the tried
                addresses.
            WaitCancelledError, WaitExpiredError: from `wait`.
        """
        wait.check()
        end_s = SYSTEM_CLOCK.monotonic_s() + wait.remaining_s(within_s)
        if isinstance(place, str):
            sock, peer = _unix_socket(place), f"unix:{place}"
        else:
            sock, peer = dial(place.host, place.port, timeout_s=within_s, wait=wait), str(place)
        try:
            if isinstance(place, Endpoint):
                sock = self._prepared(sock, place, peer, end_s, wait)
            line = Line(sock, peer=peer, interrupt=self.interrupt, login=login, db=db)
        except BaseException:
            sock.close()
            raise
        try:
            line.ask("PING", wait=wait, first=True)
        except BaseException as error:
            line.end()
            if isinstance(error, BackendUnavailableError) and isinstance(place, Endpoint) and self._tls is not None:
                self._hear_alert(place, peer, wait)
            raise
        return line

    def _hear_alert(self, place: Endpoint, peer: str, wait: WaitBudget) -> None:
        """Raise the server's TLS alert about this client's certificate, if the server closed the connection for that.

        The server sends it after the handshake, and a client that is sending then may never read it, so this method
        reads.
        """
        import ssl  # now that it is used anyway

        end_s = SYSTEM_CLOCK.monotonic_s() + wait.remaining_s(_ALERT_S)
        try:
            plain = dial(place.host, place.port, timeout_s=_ALERT_S, wait=wait)
            with self._prepared(plain, place, peer, end_s, wait) as sock, self.interrupt.by(wait, waker(sock)):
                sock.recv(1)
        except ssl.SSLError as error:
            failure = tls_failure(error, peer)
            if isinstance(failure, BackendRefusedError):
                raise failure from error
        except (OSError, BackendUnavailableError):
            return  # it was something else

    def _prepared(
        self, sock: socket.socket, place: Endpoint, peer: str, end_s: float, wait: WaitBudget
    ) -> socket.socket:
        """Return the socket with its options set, and with TLS if that is configured."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if self._tls is None:
            return sock
        return begin_tls(
            sock,
            self._tls,
            host=place.host,
            peer=peer,
            timeout_s=end_s - SYSTEM_CLOCK.monotonic_s(),
            interrupt=self.interrupt,
            wait=wait,
        )


def _unix_socket(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(DIAL_S)
        sock.connect(path)
    except PermissionError as error:
        sock.close()
        raise BackendRefusedError(
            f"not permitted to connect to unix socket {path!r}", hint="a user in the group of the socket"
        ) from error
    except OSError as error:  # of the path's length, too
        sock.close()
        raise BackendUnavailableError(f"cannot connect to unix socket {path!r}: {error.strerror or error}") from error
    return sock


class Sentinels:
    """Finds the server in charge through sentinels, beginning with the one that responded last."""

    def __init__(self, hosts: Sequence[Endpoint], name: str, login: Callable[[], Login]) -> None:
        """Keep the sentinels' hosts, the name of the servers, and the login."""
        self._hosts = list(hosts)
        self._name = name
        self._login = login

    def master(self, connector: Connector, wait: WaitBudget) -> Endpoint:
        """Return the address of the server in charge from the first sentinel that responds.

        Raises:
            BackendUnavailableError: none responds, or none knows a server in charge.
            BackendRefusedError: all reject this client.
        """
        failures: list[BackendError] = []
        for host in tuple(self._hosts):
            try:
                found = self._ask(host, connector, wait)
            except BackendError as error:
                failures.append(error)
                continue
            self._hosts.remove(host)
            self._hosts.insert(0, host)
            return found
        refused = all(isinstance(failure, BackendRefusedError) for failure in failures)
        text = "; ".join(dict.fromkeys(failure.what for failure in failures))
        kind = BackendRefusedError if refused else BackendUnavailableError
        raise kind(f"no sentinel knows where the master {self._name!r} is: {text}", hint=failures[0].hint)

    def _ask(self, host: Endpoint, connector: Connector, wait: WaitBudget) -> Endpoint:
        line = connector.reach(host, login=self._login(), wait=wait, within_s=DIAL_S / len(self._hosts))
        try:
            reply = line.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name, wait=wait)
        finally:
            line.end()
        if not reply:
            raise BackendUnavailableError(f"sentinel {host} knows no master of that name")
        return Endpoint(host=reply[0].decode(), port=int(reply[1]))
