"""The TCP port of a round: its agent reserves it, its worker can listen on it, other processes can't use it."""

import _socket as socket  # `socket` defines enumerations on top, a millisecond of each start
import errno
import os
from contextlib import closing

from elastic_core.errors import ConfigError, RendezvousError


class HeldPort:
    """A TCP port that is bound but not listened on, for rank 0's worker to listen on.

    A port that the kernel chooses is bound without any reuse option, so that no other process has it. Only then are
    SO_REUSEADDR and SO_REUSEPORT set. A worker that sets one of them (torch's store does) can bind and listen on the
    port beside the agent, even after a crash that left connections. A plain bind by another process fails, and the
    kernel never chooses the port for another process.
    """

    def __init__(self, bound: socket.socket, *, fresh: bool) -> None:
        """Own a bound socket, and the name of its port; another agent may have the name unless the port is fresh."""
        self._socket = bound
        self.port: int = bound.getsockname()[1]
        # Sockets that reuse their address can all be bound to a port without a listener; the name has one owner.
        self._name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._name.bind(f"\0elastic-core/master-port/{self.port}")
        except OSError as error:  # the system may lack such names: then the bound socket must suffice
            if error.errno == errno.EADDRINUSE and not fresh and not _held_for_us(self.port):
                self.close()
                raise

    @classmethod
    def reserve(cls) -> "HeldPort":
        """Return a reserved port that the kernel chooses.

        Raises:
            RendezvousError: no port can be reserved.
        """
        try:
            return cls(_bind(0, reuse=False), fresh=True)
        except OSError as error:
            raise RendezvousError(
                f"no TCP port could be reserved for MASTER_PORT ({error.strerror})",
                hint="look for exhausted ports (ss -s) or descriptors (ulimit -n) on this host",
            ) from error

    @classmethod
    def hold(cls, port: int) -> "HeldPort":
        """Return the reserved port that the user chose.

        Raises:
            ConfigError: the port can't be bound, or another process uses it.
        """
        if port == 0:
            return cls.reserve()
        try:
            # With reuse, because connections of an earlier run would block the port for a minute. A listening process
            # blocks it anyway.
            return cls(_bind(port, reuse=True), fresh=False)
        except OverflowError as error:
            raise ConfigError(f"--master-port: {port}; expected a TCP port, 1 to 65535") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"--master-port {port} is in use on this host",
                    hint=f"end what uses it (a run: elastic status; else ss -ltnp 'sport = :{port}'), "
                    "or choose another --master-port",
                ) from error
            raise ConfigError(
                f"--master-port {port} can't be bound on this host ({error.strerror})",
                hint="choose a --master-port from 1024 to 65535",
            ) from error

    def close(self) -> None:
        """Release the port; idempotent. Called: when the round's workers have ended."""
        self._socket.close()
        self._name.close()


def is_this_host(host: str, *, look_up: bool = True) -> bool | None:
    """Return whether a name or an address belongs to this host, so that it can be bound here.

    With `look_up` False, no name server is queried, which could block; the result is `None` if a query is needed.
    """
    if host.rstrip(".").lower() in ("localhost", socket.gethostname().lower()):
        return True
    flags = 0 if look_up else socket.AI_NUMERICHOST
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError):
        return False if look_up else None
    return any(_can_be_bound(family, address) for family, _, _, _, address in found)


def _held_for_us(port: int) -> bool:
    """Return whether an outer agent holds the port for its worker with rank 0, and that worker started this agent."""
    own = {"RANK": "0", "MASTER_PORT": str(port)}
    return "ELASTIC_INCARNATION" in os.environ and own.items() <= os.environ.items()


def _can_be_bound(family: int, address: object) -> bool:
    try:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as sock:
            sock.bind(address)  # type: ignore[arg-type]  # its type depends on the family
    except OSError:
        return False
    return True


def _bind(port: int, *, reuse: bool) -> socket.socket:
    """Bind on every address: IPv6 and IPv4 together, or IPv4 alone if the host has no IPv6."""
    try:
        return _bound(socket.AF_INET6, "::", port, reuse=reuse)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT):
            raise
    return _bound(socket.AF_INET, "0.0.0.0", port, reuse=reuse)


def _bound(family: int, address: str, port: int, *, reuse: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except BaseException:
        sock.close()
        raise
    return sock
