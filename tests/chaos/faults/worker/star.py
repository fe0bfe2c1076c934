"""An all-reduce for few ranks and small arrays, without torch: all send to rank 0, which answers with the sum.

It fails as gloo does: who loses a peer says that a connection was reset. The tests copy it to a folder
`torch/distributed`, where the hang detection looks for calls that wait for peers.
"""

import os
import socket
import threading
import time
from contextlib import suppress

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CONNECT_S = 60.0


class Star:
    """The ranks of one round; made by all of them at about the same time."""

    def __init__(self) -> None:
        env = os.environ
        self._rank, self._world_size = int(env["RANK"]), int(env["WORLD_SIZE"])
        self._round = env["ELASTIC_ROUND"]
        address = (env["MASTER_ADDR"], int(env["MASTER_PORT"]))
        self._peers = self._accept(address) if self._rank == 0 else [self._connect(address)]

    def sum(self, part: Floats) -> Floats:
        """Return the sum of all ranks' arrays, the same on each."""
        if self._rank == 0:
            parts = [part, *(_receive(peer, part) for peer in self._peers)]
            total: Floats = np.sum(parts, axis=0)
            for peer in self._peers:
                _send(peer, total.tobytes())
            return total
        _send(self._peers[0], part.tobytes())
        return _receive(self._peers[0], part)

    def close(self) -> None:
        """Leave."""
        for peer in self._peers:
            peer.close()

    def _accept(self, address: tuple[str, int]) -> list[socket.socket]:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # the agent holds the port for us
        listener.bind(address)
        listener.listen()
        listener.settimeout(CONNECT_S)
        peers: dict[int, socket.socket] = {}
        while len(peers) < self._world_size - 1:
            peer, _ = listener.accept()
            peer.settimeout(CONNECT_S)
            round_, _, rank = _read(peer, 16).decode().strip().partition("/")
            if round_ != self._round:
                peer.close()
                continue
            peers[int(rank)] = peer
        listener.close()
        for peer in peers.values():
            _prepare(peer)
        return [peers[rank] for rank in sorted(peers)]

    def _connect(self, address: tuple[str, int]) -> socket.socket:
        end_s = time.monotonic() + CONNECT_S
        pause = threading.Event()
        while time.monotonic() < end_s:
            with suppress(ConnectionRefusedError):
                peer = socket.create_connection(address, timeout=CONNECT_S)
                _prepare(peer)
                _send(peer, f"{self._round}/{self._rank}".ljust(16).encode())
                return peer
            pause.wait(0.02)
        raise TimeoutError(f"connect timeout: rank 0 did not listen within {CONNECT_S:g} s")


def _prepare(peer: socket.socket) -> None:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.settimeout(None)


def _send(peer: socket.socket, data: bytes) -> None:
    peer.sendall(data)


def _receive(peer: socket.socket, like: Floats) -> Floats:
    return np.frombuffer(_read(peer, like.nbytes)).reshape(like.shape)


def _read(peer: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            raise ConnectionResetError("Connection closed by remote peer")
        data += part
    return bytes(data)
