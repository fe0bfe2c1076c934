"""TLS, sentinels, clusters: who is let in, what refusals say, and that no secret is shown."""

import threading

import pytest

from elastic_core.api.stores import BackendRefusedError, BackendUnavailableError, OutcomeUnknownError, Revisions, Topic
from ports import free_port
from redis_access_kit import ALL, SECRET, enlist, refused
from redis_servers import PASSWORD, USER, RedisServer
from support import wait_for


def files(server, **others):
    return {"ca_cert": str(server.ca), "cert": str(server.cert), "key": str(server.key)} | others


def test_tls_with_client_certificates_and_a_user(make_store, tls_redis, wait):
    store = make_store(tls_redis.url, **files(tls_redis))
    assert store.connect(wait=wait) == "127.0.0.1"
    seat = enlist(store, wait)
    now = store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions
    other = make_store(tls_redis.url, **files(tls_redis))
    timer = threading.Timer(0.2, lambda: other.update(seat, b"x" * 100_000, wait=wait))
    timer.start()
    assert store.watch(now, ALL, timeout_s=9, wait=wait).changed == {Topic.MEMBERS}
    timer.join()
    assert len(store.members(wait=wait).members[0].record) == 100_000
    for _ in range(3):
        assert store.renew(seat, ttl_s=30, wait=wait).live == 1
    assert store.where == f"redis at {tls_redis.endpoint} (TLS)"
    assert not store.notices


@pytest.mark.parametrize(
    ("change", "seen", "hint"),
    [
        ({"ca_cert": "other"}, "is not trusted", "ca_cert"),
        ({"ca_cert": ""}, "is not trusted", "ca_cert"),
        ({"ca_cert": "/nonexistent.pem"}, "cannot use ca_cert", "ca_cert"),
        ({"cert": "", "key": ""}, "refused TLS", "cert=PATH"),
        ({"cert": "key"}, "cannot use cert and key", "cert=PATH"),
    ],
)
def test_tls_that_does_not_fit(make_store, tls_redis, wait, change, seen, hint):
    paths = {"other": str(tls_redis.other_ca), "key": str(tls_redis.key)}
    options = files(tls_redis) | {name: paths.get(value, value) for name, value in change.items()}
    text = refused(make_store(tls_redis.url, **options), wait, PASSWORD)
    assert seen in text
    assert hint in text


def test_an_insecure_connection_trusts_any_server(make_store, tls_redis, wait):
    store = make_store(tls_redis.url, **files(tls_redis, ca_cert="", insecure=True))
    assert store.connect(wait=wait)


def test_a_wrong_password_over_tls(make_store, tls_redis, wait):
    url = f"rediss://{USER}:{SECRET}@{tls_redis.endpoint}"
    assert f"refused the password of user {USER!r}" in refused(make_store(url, **files(tls_redis)), wait)


def test_tls_to_a_plain_server_and_the_other_way_round(make_store, redis_server, tls_redis, wait):
    with pytest.raises((BackendRefusedError, BackendUnavailableError), match="TLS") as caught:
        make_store(f"rediss://{redis_server.endpoint}").connect(wait=wait)
    assert "redis://" in caught.value.hint
    with pytest.raises((BackendRefusedError, BackendUnavailableError)) as caught:
        make_store(f"redis://{tls_redis.endpoint}").connect(wait=wait)
    assert "rediss://" in caught.value.hint


def test_a_failover_by_sentinels(make_store, sentinel, wait):
    store = make_store(sentinel.endpoint, sentinel_master=sentinel.name)
    assert store.connect(wait=wait) == "127.0.0.1"
    seat = enlist(store, wait)
    now = store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions
    wait_for(lambda: "elastic" in sentinel.replica.call("KEYS *"))
    sentinel.fail_over()

    def renewed():
        try:
            return store.renew(seat, ttl_s=30, wait=wait)
        except (BackendUnavailableError, OutcomeUnknownError):
            return None

    assert wait_for(renewed, within_s=20).live == 1
    assert not store.watch(now, ALL, timeout_s=0.1, wait=wait).reset
    assert store.swap("round", b"1", expect=None, keep_s=60, wait=wait).applied


def test_a_name_that_sentinels_do_not_know_and_none_that_answer(make_store, sentinel, wait):
    with pytest.raises(BackendUnavailableError, match="knows no master of that name"):
        make_store(sentinel.endpoint, sentinel_master="nobody").connect(wait=wait)
    endpoint = sentinel.endpoint
    for _, process in sentinel.sentinels:
        process.kill()
        process.wait()
    with pytest.raises(BackendUnavailableError, match=r"no sentinel knows where the master 'elastic' is.*refused"):
        make_store(endpoint, sentinel_master=sentinel.name).connect(wait=wait)


def test_a_sentinel_taken_for_a_server(make_store, sentinel, wait):
    store = make_store(sentinel.endpoint.partition(",")[0])
    store.connect(wait=wait)
    with pytest.raises(BackendRefusedError, match="does not run scripts") as caught:
        enlist(store, wait)
    assert "sentinel_master=NAME" in caught.value.hint


def test_any_node_of_a_cluster_will_do(make_store, tmp_path, wait):
    bus_ports = [free_port(), free_port()]
    nodes = [
        RedisServer(tmp_path / str(bus_port), config=("--cluster-enabled", "yes", "--cluster-port", str(bus_port)))
        for bus_port in bus_ports
    ]
    try:
        for node, slots in zip(nodes, ("0 8191", "8192 16383"), strict=True):
            node.start()
            node.call(f"CLUSTER ADDSLOTSRANGE {slots}")
        nodes[0].call(f"CLUSTER MEET 127.0.0.1 {nodes[1].port} {bus_ports[1]}")
        for node in nodes:
            wait_for(lambda node=node: "cluster_state:ok" in node.call("CLUSTER INFO"))
            wait_for(lambda node=node: "cluster_known_nodes:2" in node.call("CLUSTER INFO"))
        stores = [make_store(node.endpoint) for node in nodes]
        assert [enlist(store, wait, name).ahead for store, name in zip(stores, "ab", strict=True)] == [0, 1]
        now = stores[0].watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions
        timer = threading.Timer(0.2, lambda: enlist(stores[1], wait, "c"))
        timer.start()
        assert stores[0].watch(now, ALL, timeout_s=9, wait=wait).changed == {Topic.MEMBERS}
        timer.join()
    finally:
        for node in nodes:
            node.stop()
