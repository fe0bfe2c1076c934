"""Torch's rendezvous on etcd by name: backend and store on the v2 API, and the legacy handler."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from elastic_core.compat.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousParameters,
)
from elastic_core.compat.elastic.rendezvous.etcd_rendezvous import EtcdRendezvous, EtcdRendezvousHandler
from elastic_core.compat.elastic.rendezvous.etcd_server import EtcdServer
from elastic_core.compat.elastic.rendezvous.registry import get_rendezvous_handler
from elastic_torchrun.rendezvous.etcd_v2_backend import EtcdRendezvousBackend
from ports import free_port


@pytest.fixture(scope="module")
def server():
    with EtcdServer() as server:
        yield server


@pytest.fixture
def store(server, run_id):
    from elastic_core.compat.elastic.rendezvous.etcd_store import EtcdStore

    return EtcdStore(server.get_client(), f"torch/{abs(hash(run_id))}", timeout=timedelta(seconds=5))


def test_the_state_is_replaced_by_who_knows_it(server):
    backend = EtcdRendezvousBackend(server.get_client(), "run", key_prefix="/states")
    assert (backend.name, backend.get_state()) == ("etcd-v2", None)
    first, token, applied = backend.set_state(b"one")
    assert (first, applied, backend.get_state()) == (b"one", True, (b"one", token))
    assert backend.set_state(b"two")[::2] == (b"one", False)
    assert backend.set_state(b"two", "another's")[::2] == (b"one", False)
    assert backend.set_state(b"two", token)[::2] == (b"two", True)
    assert backend.set_state(b"three", token)[::2] == (b"two", False)


def test_no_server_is_an_error_of_the_rendezvous():
    etcd = pytest.importorskip("etcd")
    client = etcd.Client("127.0.0.1", free_port(), allow_reconnect=False, read_timeout=1)
    with pytest.raises(RendezvousConnectionError, match="etcd failed"):
        EtcdRendezvousBackend(client, "run").get_state()


def test_a_store_on_etcd(store):
    store.set("text", "é")
    store.set("bytes", b"\0\xff")
    assert (store.get("text"), store.get("bytes")) == ("é".encode(), b"\0\xff")
    store.set(b"key", b"raw")  # keys may be bytes, too, as torch takes them
    assert (store.get("key"), store.get(b"key"), store.add(b"number", 1)) == (b"raw", b"raw", 1)
    assert store.check([b"key", "key"])
    store.wait([b"key"])
    assert [store.add("count", 2), store.add("count", -5)] == [2, -3]
    assert store.check(["text", "bytes"])
    assert not store.check(["text", "none"])
    store.wait(["text", "bytes"])
    assert [store.delete_key("text"), store.delete_key("text")] == [True, False]
    with pytest.raises(LookupError, match=r"'none' not there within 0\.2 s"):
        store.wait(["none"], timedelta(seconds=0.2))


def test_counting_at_once_loses_nothing(store):
    with ThreadPoolExecutor(4) as pool:
        counted = [each.result() for each in [pool.submit(store.add, "many", 1) for _ in range(12)]]
    assert sorted(counted) == list(range(1, 13))


def test_who_waits_is_woken(store):
    got = []
    reader = threading.Thread(target=lambda: got.append(store.get("late")))
    reader.start()
    store.set("other", "x")
    store.set("late", "here")
    reader.join(5)
    assert got == [b"here"]


def test_what_comes_between_a_look_and_the_watch_wakes_too(store, monkeypatch):
    watch, overslept = store.client.watch, []

    def late(*args, **more):
        store.set("late", "here")
        try:
            return watch(*args, **more)
        except Exception as error:
            overslept.append(error)
            raise

    monkeypatch.setattr(store.client, "watch", late)
    assert store.get("late") == b"here"
    assert not overslept


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_nodes_meet(server, run_id, backend):
    params = RendezvousParameters(backend, server.get_endpoint(), run_id, 2, 2, "127.0.0.1")
    handlers = [get_rendezvous_handler(params) for _ in range(2)]
    assert {handler.get_backend() for handler in handlers} == {backend}
    with ThreadPoolExecutor(2) as pool:
        infos = [each.result(30) for each in [pool.submit(handler.next_rendezvous) for handler in handlers]]
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    assert sorted(info.rank for info in infos) == [0, 1]
    assert infos[0].bootstrap_store_info == infos[1].bootstrap_store_info
    for handler in handlers:
        assert handler.shutdown()


def test_the_legacy_classes(server, run_id):
    run = EtcdRendezvous(server.get_client(), "/torchelastic/p2p", run_id, 1, 1, 20, 1)
    token, rank, world = run.rendezvous_barrier()
    assert (token > 0, rank, world) == (True, 0, 1)
    run.set_closed()
    with pytest.raises(RendezvousClosedError):
        run.rendezvous_barrier()
    assert run.shutdown()
    handler = EtcdRendezvousHandler(
        EtcdRendezvous(server.get_endpoint(), "p2p", f"{run_id}-2", 1, 2, 600, 30), "10.0.0.1"
    )
    assert (handler.get_backend(), handler.settings.local_addr) == ("etcd", "10.0.0.1")
    assert {key: handler.settings.options[key] for key in ("join_timeout", "last_call_timeout", "etcd_prefix")} == {
        "join_timeout": 600.0,
        "last_call_timeout": 30.0,
        "etcd_prefix": "p2p",
    }
    params = RendezvousParameters("etcd", server.get_endpoint(), run_id, 1, 2, timeout=300)
    assert get_rendezvous_handler(params).settings.options["join_timeout"] == 300.0
