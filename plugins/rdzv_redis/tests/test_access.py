"""Passwords, ACL users, TLS, sentinels, clusters: who is let in, what refusals say, and that no secret is shown."""

import threading
import time
import traceback

import pytest

from elastic_core.api import BackendRefusedError, BackendUnavailableError, OutcomeUnknownError, Revisions, Topic
from patience import kept
from ports import free_port
from redis_servers import PASSWORD, USER, RedisServer
from support import wait_for

ALL = tuple(Topic)
SECRET = "hunter2-of-the-test"


def enlist(store, wait, name="a"):
    return store.enlist(b"record", incarnation=name, ttl_s=30, wait=wait)


def refused(store, wait, secret=SECRET):
    """Return the text of a refusal; no form of it shows the secret."""
    with pytest.raises(BackendRefusedError) as caught:
        enlist(store, wait)
    error = caught.value
    assert error.hint
    assert secret not in "".join([str(error), repr(error), *traceback.format_exception(error)])
    assert "\n" not in str(error)
    return str(error)


@pytest.fixture
def guarded(tmp_path):
    """A server with a password for everybody."""
    server = RedisServer(tmp_path / "guarded", config=("--requirepass", SECRET))
    try:
        yield server.start()
    finally:
        server.stop()


def acl_server(tmp_path, rules, kind=""):
    users = tmp_path / "users.acl"
    users.write_text(f"user default off\nuser agent on >{SECRET} {rules}\n")
    return RedisServer(tmp_path / "acl", kind=kind, config=("--aclfile", str(users)))


def test_a_password_of_the_url_a_file_or_the_environment(make_store, guarded, tmp_path, monkeypatch, wait):
    assert make_store(f"redis://:{SECRET}@{guarded.endpoint}").connect(wait=wait)
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    assert make_store(guarded.endpoint, password_file=str(file)).connect(wait=wait)
    monkeypatch.setenv("ELASTIC_REDIS_PASSWORD", SECRET)
    assert make_store(guarded.endpoint).connect(wait=wait)


def test_a_password_is_read_again_for_each_connection(make_store, guarded, tmp_path, wait):
    file = tmp_path / "password"
    file.write_text("old")
    store = make_store(guarded.endpoint, password_file=str(file))
    assert "refused the password" in refused(store, wait)
    file.write_text(SECRET)
    assert store.connect(wait=wait)


def test_no_password_and_a_wrong_one(make_store, guarded, wait):
    assert "asks for a password, and none was given" in refused(make_store(guarded.endpoint), wait)
    text = refused(make_store(f"redis://me:{SECRET}@{guarded.endpoint}"), wait)
    assert "refused the password of user 'me'" in text
    assert "ELASTIC_REDIS_PASSWORD" in text


def test_a_password_file_that_cant_be_read(make_store, guarded, tmp_path, wait):
    text = refused(make_store(guarded.endpoint, password_file=str(tmp_path / "none")), wait)
    assert "cannot read password_file" in text


def test_a_password_for_a_server_that_has_none(make_store, redis_server, wait):
    text = refused(make_store(f"redis://:{SECRET}@{redis_server.endpoint}"), wait)
    assert "has no password, and one was given" in text
    stranger = make_store(f"redis://me:{SECRET}@{redis_server.endpoint}")
    assert "refused the password of user 'me'" in refused(stranger, wait)


@pytest.mark.parametrize("kind", ["valkey", "redis"])
@pytest.mark.parametrize(
    "rules",
    [
        "~other:* &* +@all",  # no key of ours
        "~elastic:* &* +@all -@scripting",
        "~elastic:* &* +@all -zadd",  # within the script
        "~elastic:* &* +@all -ping",
    ],
)
def test_a_user_who_is_not_permitted(make_store, tmp_path, wait, rules, kind):
    server = acl_server(tmp_path, rules, kind)
    try:
        server.start()
        text = refused(make_store(f"redis://agent:{SECRET}@{server.endpoint}"), wait)
        assert "does not permit this user" in text
        assert "ACL rules" in text
    finally:
        server.stop()


def test_the_permissions_that_the_readme_names_are_enough(make_store, tmp_path, wait):
    rules = "+eval +evalsha +ping +select +publish +subscribe +unsubscribe +time +del +pexpireat +@hash +@sortedset"
    server = acl_server(tmp_path, f"~elastic:* &elastic:* {rules}")
    try:
        store = make_store(f"redis://agent:{SECRET}@{server.start().endpoint}/1")
        seat = enlist(store, wait)
        assert store.update(seat, b"x", wait=wait)
        assert store.renew(seat, ttl_s=30, wait=wait).live == 1
        assert store.swap("round", b"1", expect=None, keep_s=60, wait=wait).applied
        assert store.load("round", wait=wait).value == b"1"
        assert len(store.members(wait=wait).members) == 1
        now = store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions
        store.watch(now, [Topic.ROUND], timeout_s=0, wait=wait)
        store.withdraw(seat, wait=wait)
        assert not store.notices
    finally:
        server.stop()


@pytest.mark.parametrize("rules", ["~elastic:* resetchannels +@all", "~elastic:* &* +@all -subscribe"])
def test_where_pushes_are_not_permitted_changes_are_polled(make_store, tmp_path, wait, rules):
    server = acl_server(tmp_path, rules)
    try:
        server.start()
        store, other = (make_store(f"redis://agent:{SECRET}@{server.endpoint}") for _ in range(2))
        seat = enlist(other, wait)
        now = store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions
        timer = threading.Timer(0.3, lambda: other.update(seat, b"x", wait=wait))
        timer.start()
        began_s = time.monotonic()
        assert store.watch(now, ALL, timeout_s=9, wait=wait).changed == {Topic.MEMBERS}
        kept(time.monotonic() - began_s, 2)
        timer.join()
        (notice,) = store.notices
        assert "pushes are not permitted" in notice
        assert SECRET not in notice
    finally:
        server.stop()


def test_one_member_who_may_not_publish_makes_all_poll(make_store, tmp_path, wait):
    users = tmp_path / "users.acl"
    users.write_text(f"user default on nopass ~* &* +@all\nuser mute on >{SECRET} ~elastic:* resetchannels +@all\n")
    server = RedisServer(tmp_path / "acl", config=("--aclfile", str(users)))
    try:
        store = make_store(server.start().endpoint)
        mute = make_store(f"redis://mute:{SECRET}@{server.endpoint}")
        seat = enlist(mute, wait)
        now = store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions
        timer = threading.Timer(0.3, lambda: mute.update(seat, b"x", wait=wait))
        timer.start()
        began_s = time.monotonic()
        assert store.watch(now, ALL, timeout_s=9, wait=wait).changed == {Topic.MEMBERS}
        kept(time.monotonic() - began_s, 2)
        timer.join()
    finally:
        server.stop()


# --- TLS


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


# --- sentinels


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


# --- a cluster


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
