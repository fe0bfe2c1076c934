"""A Valkey or Redis server for the benchmarks, and what it counts."""

import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

STARTS_WITHIN_S = 20.0
_COMMANDS = ("evalsha", "eval", "ping", "subscribe", "unsubscribe")
"""What clients of ours send; everything else in the server's statistics is called by scripts."""


@dataclass(frozen=True)
class Traffic:
    """What a server has been asked for since it was last reset."""

    scripts: int
    commands: int
    bytes_in: int
    bytes_out: int
    cpu_s: float

    @property
    def bytes(self) -> int:
        """Both ways together."""
        return self.bytes_in + self.bytes_out


class RedisServer:
    """One server on a free port of the loopback interface, in memory only. Leaving it ends it."""

    def __init__(self, folder: Path) -> None:
        """Start it, and return when it answers."""
        from elastic_rdzv_redis.server import find_program

        with socket.create_server(("127.0.0.1", 0)) as held:
            self.port: int = held.getsockname()[1]
        folder.mkdir(parents=True, exist_ok=True)
        config = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        self._process = subprocess.Popen(
            [find_program(os.environ), *config, "--appendonly", "no", "--tcp-backlog", "4096"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end_s = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                self._client, self._cpu_s = self._connected(), 0.0
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end_s:
                    raise
                time.sleep(0.01)  # noqa: TID251 -- a server has no other way to say that it is ready

    def _connected(self) -> Any:  # noqa: ANN401 -- a client library's own class
        import redis

        client = redis.Redis(host="127.0.0.1", port=self.port)
        try:
            client.ping()
        except redis.exceptions.ConnectionError as error:
            raise OSError(str(error)) from error
        return client

    @property
    def endpoint(self) -> str:
        """`HOST:PORT`."""
        return f"127.0.0.1:{self.port}"

    def reset(self) -> None:
        """Forget all content, and what was counted."""
        self._client.flushall()
        self._client.config_resetstat()
        self._cpu_s = self._cpu()

    def _cpu(self) -> float:
        used = self._client.info("cpu")
        return float(used["used_cpu_sys"] + used["used_cpu_user"])

    def traffic(self) -> Traffic:
        """Return what was counted."""
        bytes_ = self._client.info("stats")
        calls = self._client.info("commandstats")
        commands = {name: calls.get(f"cmdstat_{name}", {}).get("calls", 0) for name in _COMMANDS}
        return Traffic(
            scripts=commands["evalsha"] + commands["eval"],
            commands=sum(commands.values()),
            bytes_in=bytes_["total_net_input_bytes"],
            bytes_out=bytes_["total_net_output_bytes"],
            cpu_s=self._cpu() - self._cpu_s,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._process.kill()
        self._process.wait()
