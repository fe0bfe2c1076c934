"""The floor of a rendezvous over etcd: what many nodes must at least ask of it, by bare sockets in one process.

    python -m benchmarks.etcd_floor PORT RUN_ID FIRST COUNT TOTAL

Each has a connection for requests and one on which it watches, a lease, and a key on it that says who it is; the first
one reads all keys when all are there and writes the roster, which is pushed to each. No lease is renewed, nothing is
checked, and no failure is thought of. Protocol and report are those of `benchmarks.members`.
"""

import base64
import json
import os
import select
import socket
import sys
import time
from typing import Any

HOST = "127.0.0.1"
HEAD_BYTES = 512
ENTRY_BYTES = 53
"""What the roster says of a node."""


def b64(text: str) -> str:
    """Return text as etcd's gateway wants it."""
    return base64.b64encode(text.encode()).decode()


class Wire:
    """A connection; `moved` counts the bytes of all."""

    moved = 0

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection((HOST, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, path: str, body: dict[str, Any]) -> None:
        """Send one request."""
        content = json.dumps(body).encode()
        raw = b"POST /v3/%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(content)) + content
        self.sock.sendall(raw)
        Wire.moved += len(raw)

    def receive(self) -> bytes:
        """Return what has come, and block until something has."""
        raw = self.sock.recv(1 << 20)
        Wire.moved += len(raw)
        return raw

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        self.send(path, body)
        raw = self.receive()
        while not self._whole(raw):
            raw += self.receive()
        content = raw.partition(b"\r\n\r\n")[2]
        if b"chunked" in raw[:HEAD_BYTES].lower():
            content = b"".join(content.split(b"\r\n")[1::2])  # JSON has no line ends of that kind
        answer: dict[str, Any] = json.loads(content)
        return answer

    @staticmethod
    def _whole(raw: bytes) -> bool:
        head, _, content = raw.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return len(content) >= int(length) if length else content.endswith(b"\r\n0\r\n\r\n")


class Node:
    """One node: `join`, then `hear` when its watch has something."""

    def __init__(self, port: int, run_id: str, number: int, total: int) -> None:
        self._port, self.number, self._total = port, number, total
        self._nodes, self._round = f"/floor/{run_id}/node/", f"/floor/{run_id}/round"
        self.rank = -1

    def join(self) -> None:
        """Say that it is there."""
        self._line, self.watch = Wire(self._port), Wire(self._port)
        watched = {"key": b64(self._round)}
        if self.number == 0:
            watched = {"key": b64(self._nodes), "range_end": b64(self._nodes[:-1] + "0")}
        self.watch.send("watch", {"create_request": watched})
        while b'"created":true' not in self.watch.receive():
            pass
        lease = self._line.ask("lease/grant", {"TTL": "60"})["ID"]
        key, value = b64(f"{self._nodes}{self.number:06}"), b64("x" * ENTRY_BYTES)
        self._line.ask("kv/put", {"key": key, "value": value, "lease": lease})

    def hear(self) -> None:
        """Take what was pushed; as the first one, see whether all are there."""
        pushed = self.watch.receive()
        while not pushed.endswith(b"\n\r\n"):
            pushed += self.watch.receive()
        if self.number == 0:
            everybody = {"key": b64(self._nodes), "range_end": b64(self._nodes[:-1] + "0")}
            if int(self._line.ask("kv/range", everybody | {"count_only": True})["count"]) < self._total:
                return
            found = self._line.ask("kv/range", everybody)["kvs"]
            roster = "".join(base64.b64decode(kv["value"]).decode() for kv in found)
            self._line.ask("kv/put", {"key": b64(self._round), "value": b64(roster)})
        self.rank = self.number


def main() -> None:
    """Join as many nodes as asked for."""
    port, run_id = int(sys.argv[1]), sys.argv[2]
    first, count, total = (int(text) for text in sys.argv[3:6])
    nodes = [Node(port, run_id, number, total) for number in range(first, first + count)]
    print("ready", flush=True)
    sys.stdin.readline()
    cpu_s, joined_s = time.process_time(), time.monotonic()
    epoll, by_fd = select.epoll(), {}
    for node in nodes:
        node.join()
        epoll.register(node.watch.sock, select.EPOLLIN)
        by_fd[node.watch.sock.fileno()] = node
    while any(node.rank < 0 for node in nodes):
        for fd, _ in epoll.poll():
            by_fd[fd].hear()
            if by_fd[fd].rank >= 0:
                epoll.unregister(fd)
    report = {
        "ranks": [node.rank for node in nodes],
        "joined_s": joined_s,
        "formed_s": time.monotonic(),
        "refused": 0,
        "cpu_s": time.process_time() - cpu_s,
        "bytes": Wire.moved,
    }
    print(json.dumps(report), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
