"""The client: what is sent once, what is tried elsewhere, what every answer means, and that nothing blocks for long."""

import threading
import time
from contextlib import contextmanager

import pytest

from elastic_core.api import WaitBudget
from elastic_core.api.stores import (
    BackendRefusedError,
    BackendUnavailableError,
    OutcomeUnknownError,
    WaitCancelledError,
    WaitExpiredError,
)
from elastic_rdzv_etcd.coding import b64, unb64
from elastic_rdzv_etcd.errors import CompactedError, LeaseGoneError
from gateway_kit import Fake, put, watching
from patience import kept, promised
from ports import free_port
from redis_servers import Proxy
from time_limits import CANCELLED_S, OVERRUN_S


def get(gateway, key, wait):
    kvs = gateway.ask("kv/range", {"key": b64(key)}, wait=wait, writes=False).get("kvs", [])
    return [(unb64(kv["value"]), int(kv["version"])) for kv in kvs]


@contextmanager
def cancelled_soon(seconds=0.2):
    """A budget that is cancelled after a moment; what is blocked on it must end at once."""
    wait = WaitBudget.lasting(20)
    times = []

    def cancel():
        times.append(time.monotonic())
        wait.cancel()

    timer = threading.Timer(seconds, cancel)
    timer.start()
    with pytest.raises(WaitCancelledError):
        yield wait
    ended_s = time.monotonic()
    timer.join()
    kept(ended_s - times[0], CANCELLED_S)


# --- requests


def test_a_key_is_written_and_read(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    assert gateway.open(wait) == "127.0.0.1"
    assert int(put(gateway, key, wait)["header"]["revision"]) > 1
    assert get(gateway, key, wait) == [(b"v", 1)]
    assert gateway.notices == []


def test_a_request_needs_no_open_and_survives_one(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(f"http://{etcd_server.endpoint}/")
    put(gateway, key, wait)
    gateway.open(wait)
    gateway.drop()
    assert get(gateway, key, wait) == [(b"v", 1)]


def test_a_name_is_resolved(make_gateway, etcd_server, wait):
    assert make_gateway(f"localhost:{etcd_server.port}").open(wait) in ("127.0.0.1", "::1")


def test_leases_are_kept_alive_and_gone(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    lease = gateway.ask("lease/grant", {"TTL": "30"}, wait=wait, writes=True)["ID"]
    put(gateway, key, wait, lease=lease)
    assert gateway.ask("lease/keepalive", {"ID": lease}, wait=wait, writes=True)["TTL"] == "30"
    gateway.ask("lease/revoke", {"ID": lease}, wait=wait, writes=True)
    assert get(gateway, key, wait) == []
    assert "TTL" not in gateway.ask("lease/keepalive", {"ID": lease}, wait=wait, writes=True)
    with pytest.raises(LeaseGoneError, match="no such lease"):
        put(gateway, key, wait, lease=lease)
    with pytest.raises(LeaseGoneError):
        gateway.ask("lease/revoke", {"ID": lease}, wait=wait, writes=True)


def test_a_request_that_is_not_understood_is_refused(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    with pytest.raises(BackendRefusedError, match="no request of that size"):
        put(gateway, key, wait, b"x" * 2_000_000)
    with pytest.raises(BackendRefusedError, match="answered"):
        gateway.ask("kv/range", {"key": 7}, wait=wait, writes=False)
    assert get(gateway, key, wait) == []


def test_proxies_of_the_environment_are_ignored(make_gateway, etcd_server, wait, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert make_gateway(etcd_server.endpoint).open(wait)


# --- lost answers


@pytest.fixture
def proxy(etcd_server):
    proxy = Proxy(etcd_server.port)
    yield proxy
    proxy.close()


def test_a_write_whose_answer_was_lost_is_not_repeated(make_gateway, etcd_server, proxy, wait, key):
    gateway = make_gateway(f"{proxy.endpoint},{etcd_server.endpoint}")
    put(gateway, key, wait)
    proxy.lose_next_answer()
    with pytest.raises(OutcomeUnknownError, match=f"connection to {proxy.endpoint} was lost before the answer"):
        put(gateway, key, wait)
    assert proxy.lost.is_set()
    assert get(gateway, key, wait) == [(b"v", 2)]  # once, and not twice


def test_a_read_whose_answer_was_lost_is_asked_of_the_next_member(make_gateway, etcd_server, proxy, wait, key):
    gateway = make_gateway(f"{proxy.endpoint},{etcd_server.endpoint}")
    put(gateway, key, wait)
    proxy.lose_next_answer()
    assert get(gateway, key, wait) == [(b"v", 1)]
    assert proxy.lost.is_set()


def test_a_read_whose_answer_was_lost_fails_where_there_is_one_member(make_gateway, proxy, wait, key):
    gateway = make_gateway(proxy.endpoint)
    put(gateway, key, wait)
    proxy.lose_next_answer()
    with pytest.raises(BackendUnavailableError, match="was lost"):
        get(gateway, key, wait)
    assert get(gateway, key, wait) == [(b"v", 1)]


def test_a_connection_that_is_closed_while_idle_is_noticed_before_a_write(make_gateway, etcd_private, wait, key):
    gateway = make_gateway(etcd_private.endpoint)
    put(gateway, key, wait)
    etcd_private.restart()
    put(gateway, key, wait)
    assert get(gateway, key, wait) == [(b"v", 2)]


# --- servers that do not answer


def test_the_next_member_is_asked_where_nobody_listens(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(f"127.0.0.1:{free_port()},{etcd_server.endpoint}")
    put(gateway, key, wait)
    assert gateway.open(wait) == "127.0.0.1"
    gateway.drop()  # to the first again
    assert get(gateway, key, wait) == [(b"v", 1)]


def test_a_paused_server(make_gateway, etcd_private, wait, key):
    gateway = make_gateway(etcd_private.endpoint)
    put(gateway, key, wait)
    etcd_private.pause()
    short = 0.4
    with promised(short + OVERRUN_S), pytest.raises(OutcomeUnknownError, match="no answer"):
        put(gateway, key, WaitBudget.lasting(short))
    with promised(short + OVERRUN_S), pytest.raises(BackendUnavailableError, match="no answer"):
        get(gateway, key, WaitBudget.lasting(short))
    with promised(short + OVERRUN_S), pytest.raises(BackendUnavailableError, match="no answer"):
        watching(gateway, WaitBudget.lasting(short), key)
    with promised(short + OVERRUN_S), pytest.raises(BackendUnavailableError, match="no answer"):
        gateway.open(WaitBudget.lasting(short))
    etcd_private.resume()
    assert get(gateway, key, wait)[0][0] == b"v"


def test_no_call_outlasts_five_seconds(make_gateway, etcd_private, key):
    gateway = make_gateway(etcd_private.endpoint)
    etcd_private.pause()
    with promised(5.5), pytest.raises(OutcomeUnknownError):
        put(gateway, key, WaitBudget.lasting(60))


def test_a_cancelled_wait_ends_every_call_at_once(make_gateway, etcd_private, wait, key):
    gateway = make_gateway(etcd_private.endpoint)
    stream = watching(gateway, wait, key)
    with cancelled_soon() as budget:
        stream.events(9, budget)
    etcd_private.pause()
    with cancelled_soon() as budget:
        stream.events(9, budget)
    with cancelled_soon() as budget:
        put(gateway, key, budget)
    with cancelled_soon() as budget:
        get(gateway, key, budget)
    with cancelled_soon() as budget:
        watching(gateway, budget, key)
    with cancelled_soon() as budget:
        gateway.open(budget)
    etcd_private.resume()
    put(gateway, key, wait)


def test_a_budget_that_is_over_sends_nothing(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    for call in (gateway.open, lambda wait: put(gateway, key, wait), lambda wait: watching(gateway, wait, key)):
        with pytest.raises(WaitExpiredError):
            call(WaitBudget.lasting(0))
    assert get(gateway, key, wait) == []


# --- watches


def test_events_of_several_watches(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    put(gateway, key + b"/a/1", wait, b"old")
    stream = watching(gateway, wait, key + b"/a/", key + b"/b/", prev_kv=True)
    began = stream.revision
    assert stream.events(0, wait) == []
    put(gateway, key + b"/b/1", wait, b"new")
    put(gateway, key + b"/c/1", wait, b"not watched")
    gateway.ask("kv/deleterange", {"key": b64(key + b"/a/1")}, wait=wait, writes=True)
    events = []
    while len(events) < 2:
        events += stream.events(5, wait)
    added, removed = sorted(events, key=lambda event: event["mod_revision"])
    assert (added["type"], added["key"], added["value"]) == ("PUT", key + b"/b/1", b"new")
    assert added["prev_value"] is None
    assert (removed["type"], removed["key"], removed["value"]) == ("DELETE", key + b"/a/1", b"")
    assert removed["prev_value"] == b"old"
    assert began < added["mod_revision"] < removed["mod_revision"] <= stream.revision


def test_a_watch_blocks_until_there_is_something(make_gateway, etcd_server, wait, key):
    gateway, other = make_gateway(etcd_server.endpoint), make_gateway(etcd_server.endpoint)
    stream = watching(gateway, wait, key)
    began_s = time.monotonic()
    assert stream.events(0.2, wait) == []
    took_s = time.monotonic() - began_s
    assert took_s > 0.15
    kept(took_s, 1)
    assert stream.events(5, WaitBudget.lasting(0.1)) == []
    timer = threading.Timer(0.2, put, (other, key, wait))
    timer.start()
    with promised(2):
        assert [event["value"] for event in stream.events(5, wait)] == [b"v"]
    timer.join()


def test_many_and_large_events_lose_nothing(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    stream = watching(gateway, wait, key)
    sizes = [1, 100_000, 2_047, 2_048, 2_049, *range(50), 300_000]
    for size in sizes:
        put(gateway, key, wait, b"x" * size)
    seen = []
    while len(seen) < len(sizes):
        new = stream.events(5, wait)
        assert new
        seen += [len(event["value"]) for event in new]
    assert seen == sizes
    assert stream.events(0, wait) == []


def test_a_watch_begins_at_a_revision(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    first = int(put(gateway, key, wait, b"1")["header"]["revision"])
    put(gateway, key, wait, b"2")
    stream = watching(gateway, wait, key, start_revision=str(first + 1))
    assert [event["value"] for event in stream.events(5, wait)] == [b"2"]


def test_a_deletion_by_the_end_of_a_lease_is_seen(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    lease = gateway.ask("lease/grant", {"TTL": 2}, wait=wait, writes=True)["ID"]
    written = int(put(gateway, key, wait, lease=lease)["header"]["revision"])
    stream = watching(gateway, wait, key, start_revision=str(written + 1))  # the lease may be over by now
    (event,) = stream.events(9, wait)
    assert event["type"] == "DELETE"


def test_a_watch_from_a_forgotten_revision(make_gateway, etcd_private, wait, key):
    gateway = make_gateway(etcd_private.endpoint)
    for _ in range(3):
        put(gateway, key, wait)
    etcd_private.compact()
    with pytest.raises(CompactedError, match="forgotten"):
        watching(gateway, wait, key, start_revision="2").events(5, wait)
    with pytest.raises(CompactedError):
        gateway.ask("kv/range", {"key": b64(key), "revision": "2"}, wait=wait, writes=False)
    assert get(gateway, key, wait) == [(b"v", 3)]


def test_a_watch_is_over_with_its_server(make_gateway, etcd_private, wait, key):
    gateway = make_gateway(etcd_private.endpoint)
    stream = watching(gateway, wait, key)
    etcd_private.stop()
    for _ in range(2):
        with promised(1), pytest.raises(BackendUnavailableError):
            stream.events(5, wait)
    etcd_private.start()
    again = watching(gateway, wait, key)
    put(gateway, key, wait)
    assert again.events(5, wait)


def test_watches_end_with_the_connections(make_gateway, etcd_server, wait, key):
    gateway = make_gateway(etcd_server.endpoint)
    for end in (gateway.drop, lambda: gateway.open(wait), gateway.close):
        stream = watching(gateway, wait, key)
        end()
        with pytest.raises(BackendUnavailableError, match="is over"):
            stream.events(5, wait)
        stream.close()


def test_a_failed_request_ends_the_watches_of_the_same_server(make_gateway, etcd_private, wait, key):
    gateway = make_gateway(etcd_private.endpoint)
    stream = watching(gateway, wait, key)
    etcd_private.pause()
    with pytest.raises(OutcomeUnknownError):
        put(gateway, key, WaitBudget.lasting(0.2))
    with promised(CANCELLED_S), pytest.raises(BackendUnavailableError):
        stream.events(5, wait)


# --- what is not etcd


def test_a_member_that_is_not_etcd_is_passed_by(make_gateway, etcd_server, wait, key):
    with Fake(b"-ERR\r\n") as server:
        gateway = make_gateway(f"{server.endpoint},{etcd_server.endpoint}")
        gateway.open(wait)
        gateway.drop()
        put(gateway, key, wait)
        assert get(gateway, key, wait) == [(b"v", 1)]


# --- what etcd's errors mean
