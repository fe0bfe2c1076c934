"""Several nodes of one run on this host: agents as processes of their own, in one store, with workers that tell.

Each worker prints one JSON line at its start (`SAYS`), leaves a mark of its life every few milliseconds, and ends well
once the run's folder has a file `finish`. Nodes are lost the way that machines are: agent, guard and workers at once.
"""

import ctypes
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from etcd_servers import PREFIX, EtcdCluster, EtcdServer
from patience import patience, slowness
from ports import free_port
from proc_kit import descendants
from redis_servers import RedisServer
from support import Elastic, processes_with, wait_for

Server = RedisServer | EtcdServer | EtcdCluster

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
LEASE_S = float(round(3.0 * min(2.0, slowness())))
"""So long that a node is not taken for lost on a busy machine, where an agent may get no turn for a second or two."""
SLACK_S = 3.0
"""What the scenarios add to the lease, for the survivors' new workers to be there."""
FULL_FIRST = "last_call_timeout=60"
"""With it as options of the backend the first round has all nodes, however long a busy machine takes to start them."""

WORKER = """
import json, os, pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
started = time.monotonic()
env, shared = os.environ, pathlib.Path(os.environ["TEST_SHARED"])
says = dict(
    node=env["ELASTIC_NODE_ID"], rank=int(env["RANK"]), world=int(env["WORLD_SIZE"]), group=int(env["GROUP_RANK"]),
    role_rank=int(env["ROLE_RANK"]), role_world=int(env["ROLE_WORLD_SIZE"]), gen=int(env["ELASTIC_ROUND"]),
    master=env["MASTER_ADDR"] + ":" + env["MASTER_PORT"], restarts=int(env["TORCHELASTIC_RESTART_COUNT"]),
    changes=int(env["ELASTIC_MEMBERSHIP_CHANGES"]), pid=os.getpid(), at=started,
)
mark = os.open(shared / f"alive-{os.getpid()}", os.O_CREAT | os.O_WRONLY, 0o600)
os.pwrite(mark, b"%020.6f" % started, 0)
os.write(1, (json.dumps(says) + os.linesep).encode())
while not (shared / "finish").exists():
    order = shared / f"exit-{env['RANK']}-{env['ELASTIC_ROUND']}"
    if order.exists():
        sys.exit(int(order.read_text()))
    os.pwrite(mark, b"%020.6f" % time.monotonic(), 0)
    time.sleep(0.02)
"""


class Node:
    """One agent of the run."""

    def __init__(self, name: str, agent: Elastic, shared: Path) -> None:
        self.name, self.agent, self._shared = name, agent, shared

    def says(self) -> list[dict[str, object]]:
        """What its workers said so far, in order."""
        found = []
        for line in self.agent.out.splitlines():
            with suppress(json.JSONDecodeError):  # being written
                found.append(json.loads(line[max(0, line.find("{")) :]))  # behind the prefix that --tee adds
        return found

    def said(self, within_s: float = 15.0, count: int = 1, **wanted: object) -> dict[str, object]:
        """Return the first line with these values, once there are `count` of them."""

        def found() -> list[dict[str, object]]:
            assert self.agent.process.poll() is None or self._matching(wanted), f"{self.name} ended:\n{self.agent.err}"
            fits = self._matching(wanted)
            return fits if len(fits) >= count else []

        what = f"{self.name}: {wanted}"
        try:
            return wait_for(found, within_s=within_s, what=what)[0]  # type: ignore[index]  # what found returns
        except AssertionError as err:
            raise AssertionError(f"{err}; it said {self.says()}\n{self.agent.err}") from None

    def _matching(self, wanted: dict[str, object]) -> list[dict[str, object]]:
        return [line for line in self.says() if all(line[key] == value for key, value in wanted.items())]

    def told(self, text: str, within_s: float = 15.0) -> None:
        """Wait until the agent has said so on stderr."""
        try:
            wait_for(lambda: text in self.agent.err, within_s=within_s, what=f"{self.name}: {text!r}")
        except AssertionError as err:
            raise AssertionError(f"{err}\n{self.agent.err}") from None

    def last_alive_s(self, pid: int) -> float:
        """Return when a worker last did something, by the host's monotonic clock."""
        return float((self._shared / f"alive-{pid}").read_text())

    def ends(self, code: int, within_s: float = 15.0) -> None:
        """Wait for the agent's end, with this code and without a traceback of ours."""
        got = self.agent.wait(within_s)
        assert got == code, f"{self.name} exited {got}, not {code}\n{self.agent.err}"
        assert "Traceback" not in self.agent.err, self.agent.err

    def power_off(self) -> None:
        """Kill agent, guard and workers so that none can do anything about it."""
        for pid in {*self.fall_silent(), *descendants(self.agent.pid), self.agent.pid}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.agent.wait()

    def fall_silent(self) -> list[int]:
        """Stop agent, guard and workers, as a host whose kernel stands still: connections stay open. Return their pids.

        The agent itself is not among them. `power_off` ends all.
        """
        os.kill(self.agent.pid, signal.SIGSTOP)
        everybody = descendants(self.agent.pid)
        for pid in everybody:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return everybody

    def kill_agent(self) -> None:
        """Kill the agent alone: its guard is left."""
        self.agent.signal(signal.SIGKILL)
        self.agent.wait()


class Run:
    """One run id in one store: in that of a server, or in one that its first node brings.

    Args:
        start: Starts an agent.
        folder: Where the run may write.
        server: The server; its kind says which backend is meant.
        endpoint: Where the server is, if it is not known by its own endpoint.
        conf: Options of the backend for all nodes.
    """

    def __init__(
        self,
        start: Callable[..., Elastic],
        folder: Path,
        *,
        server: Server | None = None,
        endpoint: str = "",
        conf: str = "",
    ) -> None:
        self._start, self.server, self._conf = start, server, conf
        self.backend = "c10d" if server is None else "redis" if isinstance(server, RedisServer) else "etcd"
        self.endpoint = endpoint or (f"127.0.0.1:{free_port()}" if server is None else server.endpoint)
        self.lease_s = LEASE_S
        self.id = f"run-{os.getpid()}-{time.monotonic_ns()}"
        self.shared = folder / f"shared-{self.id}"
        self.shared.mkdir()
        self.script = self.shared / "train.py"
        self.script.write_text(WORKER)
        self.logs = self.shared / "logs"
        self.nodes: list[Node] = []

    def node(
        self,
        name: str,
        nnodes: str,
        *options: str,
        conf: str = "",
        within: str = "",
        env: dict[str, str] | None = None,
        start: Callable[..., Elastic] | None = None,
        words: tuple[object, ...] = (),
        **popen: object,
    ) -> Node:
        """Start an agent.

        Args:
            name: The node's id.
            nnodes: The value of `--nnodes`.
            options: Further options of the agent.
            conf: Further options of the backend.
            within: A network namespace.
            env: Variables.
            start: Starts the agent, if the run's own function does not.
            words: The arguments of the script.
            popen: Arguments of `Popen`.
        """
        env = {"TEST_SHARED": str(self.shared), **(env or {})}
        args = [
            *("--rdzv-id", self.id, "--rdzv-backend", self.backend, "--rdzv-endpoint", self.endpoint),
            *("--node-id", name, "--nnodes", nnodes, "--shutdown-timeout", "5"),
            *("--restart-backoff", "0", *self._settings(conf), *options),
            str(self.script),
            *words,
        ]
        begin = start or self._start
        agent = inside(within, lambda: begin(*args, env=env)) if within else begin(*args, env=env, **popen)
        agent.run_id = self.id
        self.nodes.append(Node(name, agent, self.shared))
        if self.backend == "c10d" and len(self.nodes) == 1 and not within:
            wait_for(
                lambda: agent.process.poll() is not None or _listens(self.endpoint), what=f"{name} to host the store"
            )
        return self.nodes[-1]

    def _settings(self, conf: str) -> list[str]:
        own = f"lease_ttl={self.lease_s:g},last_call_timeout=1,join_timeout={patience(20):g}"
        return ["--rdzv-conf", ",".join(filter(None, (own, self._conf, conf)))]

    def processes(self, *names: str) -> set[int]:
        """Return the live processes of the run's workers and of whatever they started, of these nodes or of all."""
        ours = set(processes_with(f"TORCHELASTIC_RUN_ID={self.id}"))
        return ours & {pid for name in names for pid in processes_with(f"ELASTIC_NODE_ID={name}")} if names else ours

    def has_seats(self, count: int) -> None:
        """Wait until so many nodes have a seat in the server of the test."""
        wait_for(lambda: self._seats() == count, what=f"{count} seats")

    def _seats(self) -> int:
        if isinstance(self.server, RedisServer):
            return int(self.server.call(f"ZCARD elastic:{{{self.id}}}:seats").strip().lstrip(":") or 0)
        assert isinstance(self.server, EtcdServer)
        return len(self.server.keys(f"{PREFIX}{self.id}/seat/"))

    def forget(self) -> None:
        """Remove all that the server knows of the run, while it runs."""
        if isinstance(self.server, RedisServer):
            self.server.call("FLUSHALL")
        else:
            assert isinstance(self.server, EtcdServer)
            self.server.delete(f"{PREFIX}{self.id}/")

    def finish(self) -> None:
        """Let all workers end well."""
        (self.shared / "finish").touch()

    def exit_rank(self, rank: int, gen: int, code: int) -> None:
        """Let a worker end with this code."""
        order = self.shared / "order"
        order.write_text(str(code))
        order.rename(self.shared / f"exit-{rank}-{gen}")

    def all_end(self, *nodes: Node, code: int = 0, within_s: float = 15.0) -> None:
        """Finish, and wait until these nodes have ended with this code."""
        self.finish()
        for node in nodes:
            node.ends(code, within_s)


class StaticRun(Run):
    """One run whose nodes were told who they are, and exchange no word: each is held to what it can know."""

    def __init__(self, start: Callable[..., Elastic], folder: Path) -> None:
        super().__init__(start, folder)
        self.backend = "static"

    def _settings(self, conf: str) -> list[str]:
        return ["--node-rank", str(len(self.nodes))]


def inside(namespace: str, call: Callable[[], T]) -> T:
    """Call something in a network namespace: what a thread starts and opens is where the thread is."""

    def go() -> None:
        try:
            with Path(f"/run/netns/{namespace}").open("rb") as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"setns {namespace}")
            done.append(call())
        except Exception as err:  # noqa: BLE001  # raised again in the thread that asked
            failed.append(err)

    done: list[T] = []
    failed: list[Exception] = []
    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def _listens(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


def _server(kind: str, request: pytest.FixtureRequest) -> Server | None:
    fixture = {"redis": "redis_server", "etcd": "etcd_server", "own etcd": "etcd_private", "c10d": ""}[kind]
    server: Server | None = request.getfixturevalue(fixture) if fixture else None
    return server


@pytest.fixture(params=["redis", "etcd", "c10d"])
def run(elastic: Callable[..., Elastic], tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """Return a run in a server that others may use, and one in a server that its first node brings."""
    return Run(elastic, tmp_path, server=_server(request.param, request))


@pytest.fixture(params=["redis", "etcd", "c10d", "static"])
def any_run(elastic: Callable[..., Elastic], tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """Return the same, and one whose nodes exchange no word."""
    if request.param == "static":
        return StaticRun(elastic, tmp_path)
    return Run(elastic, tmp_path, server=_server(request.param, request))


@pytest.fixture(params=["redis", "etcd"])
def served_run(elastic: Callable[..., Elastic], tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """Return a run in a server that others may use."""
    return Run(elastic, tmp_path, server=_server(request.param, request))


@pytest.fixture(params=["redis", pytest.param("own etcd", id="etcd")])
def troubled_run(elastic: Callable[..., Elastic], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Return a run in a server that the test may pause, stop and start."""
    server = _server(request.param, request)
    yield Run(elastic, tmp_path, server=server)
    if isinstance(server, EtcdServer) and server.process and server.process.poll() is not None:
        print(f"etcd has ended by itself with {server.process.returncode}: {server.log[-3000:]}")


@pytest.fixture
def redis_run(elastic: Callable[..., Elastic], tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """Return a run in a server that the test may pause, stop and start: for what is no store's business."""
    return Run(elastic, tmp_path, server=_server("redis", request))
