"""An etcd server for the benchmarks, and what it counts."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks import procfs

STARTS_WITHIN_S = 20.0
_SERVICES = ("etcdserverpb.KV", "etcdserverpb.Lease", "etcdserverpb.Watch")


@dataclass(frozen=True)
class Traffic:
    """What a server has been asked for since it was last reset."""

    requests: Counter[str]
    """By the name of the call: `Txn`, `LeaseGrant`, `LeaseKeepAlive`, `Watch` …"""
    cpu_s: float


class EtcdServer:
    """One member on free ports of the loopback interface, which also serves v2. Leaving it ends it.

    Args:
        folder: Where its data is.
        fsync: Whether it writes to the disk before it answers, as a cluster's members must; else it leaves that to
            the kernel, as the etcd of a run's own does.
    """

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        """Start it, and return when it answers."""
        from elastic_rdzv_etcd.hosting.program import find_program

        with socket.create_server(("127.0.0.1", 0)) as client, socket.create_server(("127.0.0.1", 0)) as peer:
            self.port: int = client.getsockname()[1]
            urls = [f"http://127.0.0.1:{held.getsockname()[1]}" for held in (client, peer)]
        folder.mkdir(parents=True, exist_ok=True)
        config = [
            *("--name", "bench", "--data-dir", str(folder / "data"), "--log-level", "error", "--enable-v2=true"),
            *("--listen-client-urls", urls[0], "--advertise-client-urls", urls[0]),
            *("--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1]),
            *("--initial-cluster", f"bench={urls[1]}", *(() if fsync else ("--unsafe-no-fsync",))),
        ]
        self._process = subprocess.Popen(
            [find_program(os.environ), *config],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._await()
        self.reset()

    def _await(self) -> None:
        end_s = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.endpoint}/health", timeout=1) as answer:
                    if b"true" in answer.read():
                        return
            except (OSError, urllib.error.URLError):
                pass
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise OSError("etcd does not start")
            time.sleep(0.02)  # noqa: TID251 -- a server has no other way to say that it is ready

    @property
    def endpoint(self) -> str:
        """`HOST:PORT`."""
        return f"127.0.0.1:{self.port}"

    def reset(self) -> None:
        """Forget what was counted; the content stays."""
        self._requests, self._cpu_s = self._counted(), self._cpu()

    def _cpu(self) -> float:
        return procfs.activity(self._process.pid).cpu_ms / 1000

    def _counted(self) -> Counter[str]:
        with urllib.request.urlopen(f"http://{self.endpoint}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
        counted: Counter[str] = Counter()
        for line in text.splitlines():
            if line.startswith("grpc_server_started_total{") and any(f'"{name}"' in line for name in _SERVICES):
                counted[line.partition('grpc_method="')[2].partition('"')[0]] += int(float(line.rsplit(" ", 1)[1]))
        return counted

    def traffic(self) -> Traffic:
        """Return what was counted."""
        return Traffic(requests=self._counted() - self._requests, cpu_s=self._cpu() - self._cpu_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
