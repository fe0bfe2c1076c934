"""Torch's rendezvous by name with torch's stores: as a library, in threads and processes of its own."""

import json
import pickle
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from elastic_core.compat.elastic.rendezvous import RendezvousParameters
from elastic_core.compat.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from elastic_core.compat.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from elastic_core.compat.elastic.rendezvous.registry import get_rendezvous_handler
from elastic_core.compat.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from elastic_core.compat.elastic.utils.distributed import create_c10d_store
from elastic_core.compat.elastic.utils.store import barrier, synchronize
from elastic_core.errors import RendezvousClosedError, RendezvousConnectionError, RendezvousTimeoutError
from elastic_torchrun.rendezvous import c10d_backend
from elastic_torchrun.rendezvous.c10d_backend import create_backend
from patience import patience
from ports import free_port
from support import wait_for

NODE = """
import json, sys, threading
from elastic_core.compat.elastic.rendezvous import RendezvousParameters
from elastic_core.compat.elastic.rendezvous.registry import get_rendezvous_handler

conf = {"last_call_timeout": 3, "lease_ttl": float(sys.argv[2])}
params = RendezvousParameters("c10d", sys.argv[1], "run", 1, 2, "127.0.0.1", **conf)
handler = get_rendezvous_handler(params)
while True:
    info = handler.next_rendezvous()
    info.store.set(f"said/{info.rank}", f"rank {info.rank}")
    said = [info.store.get(f"said/{rank}").decode() for rank in range(info.world_size)]
    place = info.bootstrap_store_info
    print(json.dumps([info.rank, info.world_size, said, place.master_addr, place.master_port]), flush=True)
    while not handler.num_nodes_waiting():
        if threading.Event().wait(0.05):
            break
"""


class Node:
    def __init__(self, endpoint):
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODE, endpoint, f"{patience(2):g}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def close(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def node():
    nodes = []

    def start(endpoint):
        nodes.append(Node(endpoint))
        return nodes[-1]

    yield start
    for each in nodes:
        each.close()


def test_two_processes_meet_in_a_tcp_store_and_one_goes_on_alone(node):
    endpoint = f"127.0.0.1:{free_port()}"
    host = node(endpoint)
    wait_for(lambda: host.said or host.process.poll() is not None, within_s=40)
    assert host.said[0][:3] == [0, 1, ["rank 0"]]
    other = node(endpoint)
    wait_for(lambda: len(host.said) > 1 and other.said, within_s=40)
    assert [host.said[1][:3], other.said[0][:3]] == [[0, 2, ["rank 0", "rank 1"]], [1, 2, ["rank 0", "rank 1"]]]
    assert host.said[1][3:] == other.said[0][3:] != host.said[0][3:]
    other.process.kill()
    wait_for(lambda: len(host.said) > 2, within_s=20)
    assert host.said[2][:3] == [0, 1, ["rank 0"]]


AGENT = """
import sys
from elastic_core.compat.elastic.agent.server import WorkerSpec
from elastic_core.compat.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from elastic_core.compat.elastic.rendezvous import RendezvousParameters
from elastic_core.compat.elastic.rendezvous.registry import get_rendezvous_handler

SAYS = "' '.join(('{', e['RANK'], e['WORLD_SIZE'], e['MASTER_PORT'], '}', os.linesep))"
WORKER = f"import os; e = os.environ; os.write(1, {SAYS}.encode())"

if __name__ == "__main__":
    params = RendezvousParameters("c10d", sys.argv[1], "run", 2, 2, "127.0.0.1", lease_ttl=float(sys.argv[2]))
    handler = get_rendezvous_handler(params)
    args = ("-c", WORKER)
    spec = WorkerSpec("trainer", 2, rdzv_handler=handler, entrypoint=sys.executable, args=args)
    result = LocalElasticAgent(spec).run()
    print(result.state.name, sorted(result.return_values))
"""


def test_two_agents_of_the_library_meet_in_a_tcp_store(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    command = [sys.executable, str(tmp_path / "agent.py"), f"127.0.0.1:{free_port()}", f"{patience(3):g}"]
    agents = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) for _ in range(2)]
    try:
        said = [agent.communicate(timeout=patience(60))[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    workers = sorted(line.split()[1:4] for each in said for line in each.splitlines() if line.startswith("{"))
    assert [line[:2] for line in workers] == [["0", "4"], ["1", "4"], ["2", "4"], ["3", "4"]]
    assert len({port for _, _, port in workers}) == 1
    ends = sorted(line for each in said for line in each.splitlines() if line.startswith("SUCC"))
    assert ends == ["SUCCEEDED [0, 1]", "SUCCEEDED [2, 3]"]


WAITING = """
import sys, threading, time
from elastic_core.compat.elastic.rendezvous import RendezvousParameters
from elastic_core.compat.elastic.rendezvous.registry import get_rendezvous_handler

handler = get_rendezvous_handler(RendezvousParameters("c10d", "127.0.0.1:0", "run", 2, 2, "127.0.0.1"))
threading.Thread(target=handler.next_rendezvous, daemon=True).start()
ours = lambda: [each for each in threading.enumerate() if each.name.startswith("elastic-")]
while not {"elastic-member", "elastic-peers", "elastic-state"} <= {each.name for each in ours()}:
    time.sleep(0.01)
print(*{each.daemon for each in ours()}, flush=True)
sys.exit(3)
"""


def test_a_program_ends_though_its_handler_waits_and_was_never_shut_down():
    done = subprocess.run(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True, timeout=patience(40), check=False
    )
    assert (done.returncode, done.stdout) == (3, "True\n")


def on_threads(*works):
    with ThreadPoolExecutor(len(works)) as pool:
        return [each.result(30) for each in [pool.submit(work) for work in works]]


def test_two_handlers_on_one_file_meet_and_the_end_is_for_both(tmp_path):
    from torch.distributed import FileStore

    def made(address):
        store = FileStore(str(tmp_path / "store"), -1)
        backend = C10dRendezvousBackend(store, "run")
        return DynamicRendezvousHandler.from_backend("run", store, backend, 2, 2, local_addr=address)

    handlers = [made("127.0.0.1"), made("127.0.0.1")]
    infos = on_threads(*(handler.next_rendezvous for handler in handlers))
    assert sorted((info.rank, info.world_size) for info in infos) == [(0, 2), (1, 2)]
    assert not any(handler.is_closed() or handler.num_nodes_waiting() for handler in handlers)
    again = on_threads(*(handler.next_rendezvous for handler in handlers))  # e.g. after workers failed
    assert again[0].bootstrap_store_info == again[1].bootstrap_store_info != infos[0].bootstrap_store_info
    assert handlers[0].shutdown()
    wait_for(handlers[1].is_closed)
    with pytest.raises(RendezvousClosedError):
        handlers[1].next_rendezvous()
    assert handlers[1].shutdown()


def test_too_few_nodes_are_a_timeout_of_ours(tmp_path):
    params = RendezvousParameters("c10d", str(tmp_path / "s"), "run", 2, 2, store_type="file", join_timeout=patience(1))
    handler = get_rendezvous_handler(params)
    with pytest.raises(RendezvousTimeoutError, match="1 of at least 2 nodes"):
        handler.next_rendezvous()
    handler.shutdown()


def test_somebody_who_listens_and_says_nothing_is_not_waited_for():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        params = RendezvousParameters("c10d", endpoint, "run", 1, 1, is_host="false", read_timeout=1)
        with pytest.raises(RendezvousConnectionError, match=f"no c10d store at {endpoint} within 1 s"):
            create_backend(params)


@pytest.mark.parametrize(("name", "config"), [("nowhere.test", {}), ("elsewhere.test", {"is_host": "true"})])
def test_the_host_of_a_tcp_store_needs_no_name_that_resolves(monkeypatch, name, config):
    monkeypatch.setattr(c10d_backend.socket, "gethostname", lambda: "nowhere.test")
    endpoint = f"{name}:{free_port()}"
    backend, store = create_backend(RendezvousParameters("c10d", endpoint, "run", 1, 2, read_timeout=10, **config))
    assert backend.hosting
    store.set("key", "value")
    if not config:  # another agent of the host
        other = RendezvousParameters("c10d", endpoint, "run", 1, 2, read_timeout=10, is_host="false")
        assert create_backend(other)[1].get("key") == b"value"


@pytest.mark.parametrize("config", [{"store_type": "paper"}, {"read_timeout": 0}, {"is_host": "perhaps"}])
def test_options_of_the_c10d_backend_that_cannot_be(config):
    with pytest.raises(ValueError, match=next(iter(config))):
        create_backend(RendezvousParameters("c10d", "127.0.0.1:1", "run", 1, 1, **config))


def test_static_nodes_share_a_store():
    port = free_port()
    handlers = [StaticTCPRendezvous("127.0.0.1", port, rank, 2, "run", 20) for rank in (0, 1)]
    infos = on_threads(*(handler.next_rendezvous for handler in handlers))
    infos[1].store.set("key", "value")
    assert infos[0].store.get("key") == b"value"
    assert infos[1].bootstrap_store_info.master_port == port
    assert [handler.num_nodes_waiting() for handler in handlers] == [0, 0]
    params = RendezvousParameters("static", f"127.0.0.1:{port}", "run", 1, 2, rank=1, timeout=9)
    assert get_rendezvous_handler(params).timeout.total_seconds() == 9


@pytest.mark.parametrize(
    ("endpoint", "config", "told"), [("h:1", {}, "rank"), ("", {"rank": 0}, "endpoint"), ("h", {"rank": 0}, "port")]
)
def test_static_nodes_must_know_who_and_where_they_are(endpoint, config, told):
    with pytest.raises(ValueError, match=told):
        get_rendezvous_handler(RendezvousParameters("static", endpoint, "run", 1, 2, **config))


@pytest.fixture
def stores():
    first = create_c10d_store(True, "127.0.0.1", world_size=1, timeout=20)
    return [first, create_c10d_store(False, "127.0.0.1", first.port, timeout=20, wait_for_workers=False)]


def test_exchange_and_barrier(stores):
    said = on_threads(
        *(lambda rank=rank: synchronize(stores[rank], b"%d" % rank, rank, 2, "said", timeout=10) for rank in (0, 1))
    )
    assert said == [[b"0", b"1"]] * 2
    on_threads(*(lambda store=store: barrier(store, 2, "wall", barrier_timeout=10) for store in stores))
    assert [store.timeout.total_seconds() for store in stores] == [20, 20]


@pytest.mark.parametrize(("value", "libuv"), [("0", False), ("1", True), (None, True)])
def test_a_store_does_without_libuv_where_the_variable_says_so(monkeypatch, value, libuv):
    monkeypatch.delenv("USE_LIBUV", raising=False)
    if value is not None:
        monkeypatch.setenv("USE_LIBUV", value)
    assert create_c10d_store(True, "127.0.0.1", world_size=1, timeout=20).libuvBackend is libuv


def test_a_barrier_names_who_is_missing(stores):
    def wait(rank):
        with pytest.raises(RuntimeError) as caught:
            barrier(stores[rank], 3, "wall", patience(0.5), rank, lambda rank: f"host{rank}", trace_timeout=patience(2))
        return str(caught.value)

    first, second = on_threads(lambda: wait(0), lambda: wait(1))
    assert "missing_ranks=[host2]" in first
    assert "<rank 0 (host0) names them>" in second


def test_not_all_members_of_a_store():
    from torch.distributed import DistStoreError

    with pytest.raises(DistStoreError, match="not all 2 members") as caught:
        create_c10d_store(True, "127.0.0.1", free_port(), world_size=2, timeout=1)
    assert isinstance(caught.value, TimeoutError)  # torch raises one or the other
    assert type(pickle.loads(pickle.dumps(caught.value))) is DistStoreError
