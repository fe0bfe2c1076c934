"""The client of NCCL's RAS service: a TCP connection to this node, with lines of text."""

import socket
from typing import Final

from elastic_core.api import SYSTEM_CLOCK, Clock
from elastic_watch.ras.report import RasReport, parse

VARIABLE: Final = "NCCL_RAS_ADDR"
"""The variable with the address at which NCCL serves; workers of other runs on this host must have another one."""
ENABLED: Final = "NCCL_RAS_ENABLE"
QUERY_S: Final = 8.0
"""How long a query may take in all."""
_PEERS_S: Final = 3
"""How long NCCL itself waits for its other processes."""
_MOST_BYTES: Final = 4 << 20
_PROTOCOL: Final = 2
_LINE_BYTES: Final = 1024


class RasUnavailableError(Exception):
    """The service does not respond, or not with JSON. The text says why."""


def free_address() -> str:
    """Return an address of this host at which nothing listens now.

    Raises:
        OSError: the host has no free port.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def look(address: str, *, within_s: float = QUERY_S, clock: Clock = SYSTEM_CLOCK) -> RasReport:
    """Return the state of the communicators. Blocks for at most `within_s` seconds.

    Args:
        address: Host and port, as in `NCCL_RAS_ADDR`.
        within_s: The time limit of the whole query.
        clock: This node's.

    Raises:
        RasUnavailableError: nothing listens there, the time is over, or the response is not understood.
    """
    host, _, port = address.rpartition(":")
    try:
        return _Query(host.strip("[]"), int(port), clock.monotonic_s() + within_s, clock).report()
    except (OSError, ValueError, OverflowError) as error:
        raise RasUnavailableError(f"NCCL's RAS service at {address}: {error}") from error


class _Query:
    def __init__(self, host: str, port: int, until_s: float, clock: Clock) -> None:
        self._until_s = until_s
        self._clock = clock
        self._socket = socket.create_connection((host, port), timeout=self._left_s())

    def report(self) -> RasReport:
        with self._socket:
            self._expect(f"CLIENT PROTOCOL {_PROTOCOL}", "SERVER PROTOCOL ")
            self._expect(f"TIMEOUT {_PEERS_S}", "OK")
            self._expect("SET FORMAT json", "OK")  # NCCL before 2.28 has text only
            self._write("VERBOSE STATUS")
            return parse(self._rest())

    def _left_s(self) -> float:
        left_s = self._until_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError("no response in time")
        return left_s

    def _write(self, line: str) -> None:
        self._socket.settimeout(self._left_s())
        self._socket.sendall(line.encode() + b"\n")

    def _expect(self, line: str, beginning: str) -> None:
        self._write(line)
        found = b""
        while not found.endswith(b"\n") and len(found) < _LINE_BYTES:
            part = self._read(1)
            if not part:
                raise ValueError("the connection was closed")
            found += part
        if not found.decode("utf-8", "replace").upper().startswith(beginning):
            raise ValueError(f"{line!r} was answered with {found[:80]!r}")

    def _rest(self) -> bytes:
        found = bytearray()
        while part := self._read(1 << 16):
            found += part
            if len(found) > _MOST_BYTES:
                raise ValueError(f"more than {_MOST_BYTES} bytes")
        return bytes(found)

    def _read(self, size: int) -> bytes:
        self._socket.settimeout(self._left_s())
        return self._socket.recv(size)
