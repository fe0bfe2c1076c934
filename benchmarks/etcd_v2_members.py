"""Many nodes of torch's dynamic rendezvous in one process, a thread each, on etcd's v2 API, as its `etcd-v2` does it.

    python -m benchmarks.etcd_v2_members PORT RUN_ID COUNT TOTAL

Protocol and report are those of `benchmarks.members`. Operations are HTTP requests, bytes those on the sockets.
"""

import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import etcd  # type: ignore[import-untyped]
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout
from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

from benchmarks.sockets import Sockets

HOST = "127.0.0.1"
LIMIT = timedelta(seconds=300)


class Client(etcd.Client):  # type: ignore[misc]  # untyped
    """python-etcd's client, its requests counted."""

    operations = refused = 0

    def api_execute(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 -- untyped
        """Send one request."""
        self.operations += 1
        try:
            return super().api_execute(*args, **options)
        except (etcd.EtcdAlreadyExist, etcd.EtcdCompareFailed):
            self.refused += 1
            raise


class Node(threading.Thread):
    """Joins one round."""

    def __init__(self, port: int, run_id: str, total: int) -> None:
        super().__init__(daemon=True)
        self.client = Client(host=HOST, port=port, read_timeout=60, allow_reconnect=True)
        self._handler = DynamicRendezvousHandler.from_backend(
            run_id,
            EtcdStore(self.client, f"/torch/elastic/store-{run_id}"),
            EtcdRendezvousBackend(self.client, run_id, key_prefix="/torch/elastic/rendezvous"),
            total,
            total,
            local_addr=HOST,
            timeout=RendezvousTimeout(join=LIMIT),
        )
        self.joined_s = self.formed_s = 0.0
        self.rank = -1
        self.failure = ""

    def run(self) -> None:
        """Join, and note when."""
        self.joined_s = time.monotonic()
        try:
            self.rank = self._handler.next_rendezvous().rank
        except Exception as error:  # noqa: BLE001 -- the report has it
            self.failure = f"{type(error).__name__}: {error}"
        self.formed_s = time.monotonic()


def main() -> None:
    """Join as many nodes as asked for."""
    port, run_id, count, total = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    Sockets.count()
    nodes = [Node(port, run_id, total) for _ in range(count)]
    print("ready", flush=True)
    sys.stdin.readline()
    cpu_s = time.process_time()
    for node in nodes:
        node.start()
    for node in nodes:
        node.join()
    report = {
        "ranks": [node.rank for node in nodes],
        "failures": sorted({node.failure for node in nodes} - {""}),
        "joined_s": min(node.joined_s for node in nodes),
        "formed_s": max(node.formed_s for node in nodes),
        "operations": {"all": sum(node.client.operations for node in nodes)},
        "refused": sum(node.client.refused for node in nodes),
        "cpu_s": time.process_time() - cpu_s,
        "bytes": Sockets.sent + Sockets.received,
    }
    print(json.dumps(report), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
