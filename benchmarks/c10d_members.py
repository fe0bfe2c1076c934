"""Many nodes of torch's dynamic rendezvous in one process, a thread each, on one TCPStore.

    python -m benchmarks.c10d_members PORT RUN_ID COUNT TOTAL

A port of 0: this process is the one that hosts the store; it writes the port behind `ready`. Protocol and report are
those of `benchmarks.members`. The bytes are those of keys and values, both ways: the least that was on the wire.
"""

import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is there
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

HOST = "127.0.0.1"
LIMIT = timedelta(seconds=300)


class Counting:
    """What the backend asks of a store, counted."""

    def __init__(self, store: Any) -> None:  # noqa: ANN401 -- torch's own, untyped
        self._store = store
        self.operations = self.refused = self.bytes = 0

    def get(self, key: str) -> bytes:
        """Return a value."""
        value: bytes = self._store.get(key)
        self.operations += 1
        self.bytes += len(key) + len(value)
        return value

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Replace a value."""
        value: bytes = self._store.compare_set(key, expected, desired)
        self.operations += 1
        self.refused += value != desired.encode()
        self.bytes += len(key) + len(expected) + len(desired) + len(value)
        return value


class Node(threading.Thread):
    """Joins one round."""

    def __init__(self, port: int, run_id: str, total: int) -> None:
        super().__init__(daemon=True)
        store = TCPStore(HOST, port, is_master=False, timeout=LIMIT)
        self.counting = Counting(store)
        self._handler = DynamicRendezvousHandler.from_backend(
            run_id,
            store,
            C10dRendezvousBackend(self.counting, run_id),  # type: ignore[arg-type]  # it calls two methods only
            total,
            total,
            local_addr=HOST,
            timeout=RendezvousTimeout(join=LIMIT),
        )
        self.joined_s = self.formed_s = 0.0
        self.rank = -1

    def run(self) -> None:
        """Join, and note when."""
        self.joined_s = time.monotonic()
        self.rank = self._handler.next_rendezvous().rank
        self.formed_s = time.monotonic()


def main() -> None:
    """Join as many nodes as asked for."""
    port, run_id, count, total = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    hosted = None if port else TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    nodes = [Node(port if hosted is None else hosted.port, run_id, total) for _ in range(count)]
    print("ready", port if hosted is None else hosted.port, flush=True)
    sys.stdin.readline()
    cpu_s = time.process_time()
    for node in nodes:
        node.start()
    for node in nodes:
        node.join()
    report = {
        "ranks": [node.rank for node in nodes],
        "joined_s": min(node.joined_s for node in nodes),
        "formed_s": max(node.formed_s for node in nodes),
        "operations": {"all": sum(node.counting.operations for node in nodes)},
        "refused": sum(node.counting.refused for node in nodes),
        "cpu_s": time.process_time() - cpu_s,
        "bytes": sum(node.counting.bytes for node in nodes),
    }
    print(json.dumps(report), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
