"""The `etcd-v2` store beyond the kit: what it is given, what goes wrong on the way, and what it leaves behind."""

import base64
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

import msgspec
import pytest

from elastic_core.api import ConfigError, PluginError, RendezvousSettings, WaitBudget
from elastic_core.api.stores import (
    BackendRefusedError,
    BackendUnavailableError,
    OutcomeUnknownError,
    Revisions,
    Topic,
    WaitCancelledError,
)
from elastic_plugin_kit.store_model import StoreModel
from elastic_rdzv_etcd.store import EtcdStore
from elastic_rdzv_etcd.v2 import channel
from elastic_rdzv_etcd.v2.errors import ForgottenError
from elastic_rdzv_etcd.v2.store import EtcdV2Store
from etcd_servers import EtcdCluster, EtcdServer, TlsEtcd
from foreign_content import begin, errors, is_refused
from patience import kept
from redis_servers import Proxy
from support import wait_for

ALL = tuple(Topic)
LEASE_S = 2.0


@pytest.fixture
def make_store(run_id):
    """Make stores of this test's run, or another's."""
    made = []

    def make(endpoint, *, run=run_id, **options):
        made.append(
            EtcdV2Store(
                RendezvousSettings(
                    backend="etcd-v2",
                    run_id=run,
                    endpoint=endpoint,
                    min_nodes=1,
                    max_nodes=2,
                    local_world_size=1,
                    options=options,
                )
            )
        )
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store, etcd_server):
    return make_store(etcd_server.endpoint)


@pytest.fixture
def private(tmp_path):
    """A server of the test's own."""
    server = EtcdServer(tmp_path / "etcd", v2=True)
    try:
        yield server.start()
    finally:
        server.stop()


def enlist(store, wait, name="a", ttl_s=30.0, record=b"record"):
    return store.enlist(record, incarnation=name, ttl_s=ttl_s, wait=wait)


def revisions(store, wait):
    return store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions


def request(server, method, path, **fields):
    """Return the status and the JSON of a request to the server itself."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=10)
    try:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request(method, f"/v2/{path}", urllib.parse.urlencode(fields), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")
    finally:
        connection.close()


def leaves(node):
    return [leaf for child in node.get("nodes", []) for leaf in leaves(child)] if node.get("dir") else [node]


def keys_of(server, store):
    """Return the keys of a store's run, with all that the server says of them."""
    status, answer = request(server, "GET", f"keys{store._paths.run}?recursive=true")
    return leaves(answer["node"]) if status == 200 else []


# --- what it is given


def test_where_is_the_endpoint_without_secrets(make_store):
    assert make_store("http://me:secret@h:1,h2").where == "etcd-v2 at h:1,h2:2379"
    assert make_store("h", protocol="https").where == "etcd-v2 at h:2379 (TLS)"
    assert make_store("", protocol="https").where == "etcd-v2 at localhost:2379 (TLS)"
    assert make_store("", protocol="http").where == "etcd-v2 at localhost:2379"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"protocol": "ftp"}, r"protocol: 'ftp'; expected http or https"),
        (
            {"ssl_cert": "x"},
            r"options for TLS were given, but h:2379 is without TLS. Try: --rdzv-endpoint https://h:2379",
        ),
        ({"read_timeout": -1.0}, r"read_timeout: -1; expected seconds, more than 0"),
    ],
)
def test_options_that_cannot_be_used(make_store, options, text):
    with pytest.raises(ConfigError, match=text):
        make_store("h", **options)


def test_torchs_prefix_is_where_the_runs_are(make_store, etcd_server, wait):
    store = make_store(etcd_server.endpoint, etcd_prefix="/torchelastic/p2p/")
    enlist(store, wait)
    assert all(leaf["key"].startswith("/torchelastic/p2p/test=2F=7B") for leaf in keys_of(etcd_server, store))
    assert make_store(etcd_server.endpoint).members(wait=wait).members == ()


@pytest.mark.parametrize("run", ["_hidden", "..", ".", "a=b", "é/ü", "%2F", "-", "+ &?#"])
def test_any_run_and_any_node_have_a_name(make_store, etcd_server, wait, run, run_id):
    store = make_store(etcd_server.endpoint, run=run, etcd_prefix=f"/{run_id.partition('{')[2][:-1]}")
    seat = enlist(store, wait, run)
    store.swap(run, b"x", expect=None, keep_s=60, wait=wait)
    [member] = store.members(wait=wait).members
    assert (member.seat, member.incarnation) == (seat.number, run)
    assert store.load(run, wait=wait).value == b"x"


def test_without_python_etcd_the_extra_is_named(make_store, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(PluginError, match=r"needs python-etcd.*Try: pip install 'python-etcd>="):
        make_store("h")


def test_choosing_it_imports_no_client():
    code = (
        "import sys\n"
        "from elastic_core.api import RendezvousSettings\n"
        "from elastic_rdzv_etcd.v2.store import EtcdV2Store\n"
        "EtcdV2Store(RendezvousSettings(backend='etcd-v2', run_id='x', endpoint='', min_nodes=1, max_nodes=1,"
        " local_world_size=1))\n"
        "print({'etcd', 'urllib3', 'dns', 'ssl'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() in ("set()", "{'ssl'}")


# --- a call that is cut off


class Lossy:
    """Makes a client lose the answer to its `at`-th request, which was carried out, and all after it."""

    def __init__(self, store, at):
        self.session, self.left, self.ask = store._session, at, store._session.ask
        self.session.ask = self

    def __call__(self, request, *, wait, writes):
        answer = self.ask(request, wait=wait, writes=writes) if self.left > 0 else None
        self.left -= 1
        if self.left <= 0:
            kind = OutcomeUnknownError if writes and self.left == 0 else BackendUnavailableError
            raise kind("lost")
        return answer

    def heal(self):
        self.session.ask = self.ask


ACTS = {
    "enlist": lambda store, seat, wait: enlist(store, wait, "new"),
    "enlist again": lambda store, seat, wait: enlist(store, wait, "a", record=b"again"),
    "update": lambda store, seat, wait: store.update(seat, b"new", wait=wait),
    "renew": lambda store, seat, wait: store.renew(seat, ttl_s=30, wait=wait),
    "withdraw": lambda store, seat, wait: store.withdraw(seat, wait=wait),
    "swap": lambda store, seat, wait: store.swap(
        "round", b"2", expect=document.version if (document := store.load("round", wait=wait)) else None,
        keep_s=60, wait=wait,
    ),
}  # fmt: skip
STEPS = range(1, 14)


@pytest.mark.parametrize("act", ACTS)
def test_a_call_that_ends_anywhere_leaves_the_run_in_order(make_store, etcd_server, wait, run_id, act):
    moved = set()
    for step in STEPS:
        run = f"{run_id}-{step}"
        store, other = make_store(etcd_server.endpoint, run=run), make_store(etcd_server.endpoint, run=run)
        seat, later = enlist(store, wait), enlist(other, wait, "b")
        store.swap("round", b"1", expect=None, keep_s=60, wait=wait)
        before = revisions(other, wait)
        lossy = Lossy(store, step)
        failure = None
        try:
            ACTS[act](store, seat, wait)
        except (BackendUnavailableError, OutcomeUnknownError) as error:
            failure = error
        between = revisions(other, wait)
        if isinstance(failure, BackendUnavailableError):
            assert between == before, f"step {step}: unavailable, and something was written"
        lossy.heal()
        ACTS[act](store, seat, wait)
        after = revisions(other, wait)
        assert all(after.of(topic) >= between.of(topic) >= before.of(topic) for topic in ALL), f"step {step}"
        moved.add(after.departures - before.departures)
        members = other.members(wait=wait)
        assert members.revision == after.members
        names = {member.incarnation for member in members.members}
        assert names == {"b"} | ({"a"} if act != "withdraw" else set()) | ({"new"} if act == "enlist" else set())
        assert len(members.members) == len(names)
        assert other.renew(later, ttl_s=30, wait=wait).live == len(names)
        if failure is None:
            break
    else:
        pytest.fail(f"{act} takes more than {len(STEPS)} requests")
    assert moved == {1 if act == "withdraw" else 0}, "a departure was counted twice, or not at all"


def test_who_clears_up_may_die_at_any_step(make_store, etcd_server, wait, run_id):
    for step in STEPS:
        run = f"{run_id}-{step}"
        store, other = make_store(etcd_server.endpoint, run=run), make_store(etcd_server.endpoint, run=run)
        enlist(store, wait)
        seats = [enlist(other, wait, name) for name in "bcd"]
        before = revisions(store, wait)
        lossy = Lossy(other, step)
        for seat in seats:
            try:
                other.withdraw(seat, wait=wait)
            except (BackendUnavailableError, OutcomeUnknownError):
                break
        lossy.heal()
        gone = revisions(store, wait).departures - before.departures
        for seat in seats:
            other.withdraw(seat, wait=wait)
        after = revisions(store, wait)
        assert after.departures - before.departures == 3, f"step {step}: {gone} had been counted"
        assert after.members - before.members == 3
        assert len(store.members(wait=wait).members) == 1
        seat_keys = [leaf["key"] for leaf in keys_of(etcd_server, store) if "/seat/" in leaf["key"]]
        assert len(seat_keys) == 1, "what is gone was not cleared up"


def test_a_lost_reply_is_an_unknown_outcome_and_nothing_is_repeated(make_store, etcd_server, wait):
    proxy = Proxy(etcd_server.port)
    try:
        behind, store = make_store(proxy.endpoint), make_store(etcd_server.endpoint)
        seat = enlist(behind, wait)
        sets = request(etcd_server, "GET", "stats/store")[1]["updateSuccess"]
        proxy.lose_next_answer()
        with pytest.raises(OutcomeUnknownError, match=r"the connection to .* was lost before the answer"):
            behind.renew(seat, ttl_s=30, wait=wait)
        assert request(etcd_server, "GET", "stats/store")[1]["updateSuccess"] == sets + 1
        proxy.lose_next_answer()
        with pytest.raises(BackendUnavailableError):
            behind.members(wait=wait)
        assert [member.seat for member in store.members(wait=wait).members] == [seat.number]
        assert behind.renew(seat, ttl_s=30, wait=wait).live == 1
    finally:
        proxy.close()


# --- leases


def test_a_removal_that_was_decided_before_a_renewal_fails(make_store, etcd_server, wait):
    store, judge = make_store(etcd_server.endpoint), make_store(etcd_server.endpoint)
    seat = enlist(store, wait, ttl_s=LEASE_S)
    wait_for(lambda: judge._run.look(wait).silent, within_s=5)
    [stale] = judge._run.look(wait).silent.values()
    assert store.renew(seat, ttl_s=LEASE_S, wait=wait) is not None
    assert not judge._run.remove(judge._paths.seat("a"), stale, wait)
    assert store.renew(seat, ttl_s=LEASE_S, wait=wait) is not None


def test_a_newcomer_does_not_judge(make_store, etcd_server, wait):
    enlist(make_store(etcd_server.endpoint), wait, ttl_s=LEASE_S)
    newcomer = make_store(etcd_server.endpoint)
    wait_for(lambda: newcomer._run.look(wait).silent, within_s=5)
    assert enlist(make_store(etcd_server.endpoint), wait, "b", ttl_s=LEASE_S).ahead == 1


def test_every_key_ends_by_itself_and_stays_while_it_is_needed(make_store, etcd_server, wait):
    store = make_store(etcd_server.endpoint)
    seat = enlist(store, wait, ttl_s=LEASE_S)
    version = store.swap("round", b"1", expect=None, keep_s=4, wait=wait).current.version
    version = store.swap("round", b"2", expect=version, keep_s=4, wait=wait).current.version
    store.update(seat, b"new", wait=wait)
    assert store.renew(seat, ttl_s=LEASE_S, wait=wait) is not None  # so that its lease is fresh, whatever that took
    kept = keys_of(etcd_server, store)
    assert len(kept) == 8  # state, keep, since, seat, record, lease, document, body
    assert all(0 < leaf.get("ttl", 0) <= 5 for leaf in kept), kept
    end_s = time.monotonic() + 7
    while time.monotonic() < end_s:
        assert store.renew(seat, ttl_s=LEASE_S, wait=wait) is not None
        WaitBudget().sleep(0.5)
    assert store.load("round", wait=wait).version == version
    wait_for(lambda: not keys_of(etcd_server, store), within_s=8)


def test_empty_directories_of_other_runs_go(make_store, private, wait):
    old = make_store(private.endpoint, run="old")
    old.withdraw(enlist(old, wait), wait=wait)
    live = make_store(private.endpoint, run="live")
    seat = enlist(live, wait)
    for leaf in keys_of(private, old):
        request(private, "DELETE", f"keys{leaf['key']}")
    assert request(private, "GET", "keys/elastic/old")[0] == 200
    enlist(make_store(private.endpoint, run="new"), wait)
    assert request(private, "GET", "keys/elastic/old")[0] == 404
    assert live.renew(seat, ttl_s=30, wait=wait).live == 1


def test_content_of_somebody_else_is_refused(make_store, etcd_server, wait):
    store = make_store(etcd_server.endpoint)
    enlist(store, wait)
    request(etcd_server, "PUT", f"keys{store._paths.state}", value="{}", ttl=60)
    with pytest.raises(BackendRefusedError, match=r"something that this version did not write.*Try: another --rdzv-id"):
        store.members(wait=wait)


# --- what somebody else has written


@pytest.mark.parametrize("value", ["rubbish", "\N{SNOWMAN}", "1" + "0" * 400, "Infinity", '["b",1,"x",[]]'])
@pytest.mark.parametrize("key", ["head/keep", "head/quiet/state", "head/quiet/document/round", "head/seat/a", "since"])
def test_a_key_of_a_live_run_that_somebody_else_has_written(make_store, etcd_server, key, value):
    live, new = make_store(etcd_server.endpoint), make_store(etcd_server.endpoint)
    seat = begin(live)
    whole = f"{live._paths.run}/{key}"
    assert request(etcd_server, "PUT", f"keys{whole}", value=value, ttl=60)[0] in (200, 201)
    for store in (live, new):
        assert is_refused(errors(store, seat), whole)


@pytest.mark.parametrize("value", ["rubbish", "\N{SNOWMAN}", "x" * (9 << 20)], ids=["rubbish", "not ASCII", "9 MB"])
@pytest.mark.parametrize("folder", ["record", "body"])
def test_a_content_that_somebody_else_has_written(make_store, etcd_server, folder, value):
    live, new = make_store(etcd_server.endpoint), make_store(etcd_server.endpoint)
    seat = begin(live)
    for leaf in keys_of(etcd_server, live):
        if leaf["key"].startswith(f"{live._paths.run}/{folder}/"):
            assert request(etcd_server, "PUT", f"keys{leaf['key']}", value=value, ttl=60)[0] in (200, 201)
    for store in (new, live) if folder == "body" else (new,):  # whose update has put the record in order
        assert is_refused(errors(store, seat), f"{live._paths.run}/{folder}/")


# --- watching


def test_a_watch_goes_on_after_the_server_has_forgotten_events(make_store, private, wait):
    store, other = make_store(private.endpoint), make_store(private.endpoint)
    seat = enlist(other, wait)
    since = revisions(store, wait)
    connection = http.client.HTTPConnection(private.host, private.port)
    for _ in range(1100):
        connection.request(
            "PUT", "/v2/keys/elsewhere", "value=1", {"Content-Type": "application/x-www-form-urlencoded"}
        )
        connection.getresponse().read()
    connection.close()
    nowhere = make_store(private.endpoint, run="nowhere")
    calls, ask = [], nowhere._session.ask
    nowhere._session.ask = lambda *given, **more: calls.append(1) or ask(*given, **more)
    assert nowhere.watch(Revisions(), ALL, timeout_s=0.5, wait=wait).revisions == Revisions()
    assert len(calls) == 1
    with pytest.raises(ForgottenError):
        store._session.event(store._paths.head, 2, timeout_s=1, wait=wait)
    timer = threading.Timer(0.2, lambda: other.update(seat, b"x", wait=wait))
    timer.start()
    assert store.watch(since, [Topic.MEMBERS], timeout_s=9, wait=wait).changed == {Topic.MEMBERS}
    timer.join()


@pytest.mark.parametrize("before", [0, 4])
def test_updates_and_renewals_do_not_wake_who_waits_for_rounds(make_store, etcd_server, wait, before):
    other = make_store(etcd_server.endpoint)
    seats = [enlist(other, wait, f"{at}") for at in range(before + 1)]
    store = make_store(etcd_server.endpoint)
    enlist(store, wait, "mine")  # one of the first few, who hear of everything; or one behind them
    since = revisions(store, wait)
    looks, look = [], store._run.look
    store._run.look = lambda wait: looks.append(1) or look(wait)

    def act():
        for seat in seats * 4:
            other.update(seat, b"x", wait=wait)
            other.renew(seat, ttl_s=30, wait=wait)
        enlist(other, wait, "new")

    timer = threading.Timer(0.1, act)
    timer.start()
    quiet = [Topic.ROUND, Topic.CONTROL, Topic.DEPARTURES]
    seen = store.watch(since, quiet, timeout_s=1, wait=wait)
    timer.join()
    assert not seen.changed
    assert not looks
    timer = threading.Timer(0.1, lambda: other.withdraw(seats[0], wait=wait))
    timer.start()
    assert store.watch(seen.revisions, quiet, timeout_s=9, wait=wait).changed == {Topic.DEPARTURES}
    timer.join()


def test_a_watch_is_not_misled_by_what_it_has_seen_before(make_store, etcd_server, wait):
    store, other = make_store(etcd_server.endpoint), make_store(etcd_server.endpoint)
    enlist(store, wait)
    seat = enlist(other, wait, "b")
    other.update(seat, b"x", wait=wait)
    since = revisions(other, wait)  # further than the store has looked
    seen = store.watch(since, ALL, timeout_s=0.3, wait=wait)
    assert (seen.reset, seen.changed, seen.revisions) == (False, frozenset(), since)


def test_a_wait_that_is_cancelled_as_it_begins_spoils_none_that_follows(make_store, etcd_server, wait, monkeypatch):
    """Its connection is ended for it, though the server had begun to answer: the next wait must not go on with that."""
    store = make_store(etcd_server.endpoint)
    seat = store.enlist(b"one", incarnation="a", ttl_s=30, wait=wait)
    since = store.watch(Revisions(), ALL, timeout_s=0, wait=wait).revisions
    cancelled = WaitBudget.lasting(30)
    answered = channel.Line.getresponse

    def then_cancelled(line):
        response = answered(line)
        cancelled.cancel()
        return response

    monkeypatch.setattr(channel.Line, "getresponse", then_cancelled)
    with pytest.raises(WaitCancelledError):
        store.watch(since, ALL, timeout_s=20, wait=cancelled)
    monkeypatch.undo()
    assert store.update(seat, b"two", wait=wait)
    assert store.watch(since, ALL, timeout_s=20, wait=wait).changed == {Topic.MEMBERS}


def test_the_first_few_hear_of_a_removal_though_nobody_clears_up(make_store, etcd_server, wait):
    store, other = make_store(etcd_server.endpoint), make_store(etcd_server.endpoint)
    enlist(store, wait)
    seat = enlist(other, wait, "b")
    since = revisions(store, wait)
    other._run.clear_up = lambda wait: None  # killed just then
    timer = threading.Timer(0.2, lambda: other.withdraw(seat, wait=wait))
    timer.start()
    began_s = time.monotonic()
    assert store.watch(since, [Topic.DEPARTURES], timeout_s=9, wait=wait).changed == {Topic.DEPARTURES}
    kept(time.monotonic() - began_s, 2)
    timer.join()


def test_only_the_first_few_look_when_many_fall_silent(make_store, etcd_server, wait):
    first = make_store(etcd_server.endpoint)
    seats = [enlist(first, wait, f"{at}") for at in range(4)]
    store, dead = make_store(etcd_server.endpoint), make_store(etcd_server.endpoint)
    enlist(store, wait, "mine")
    for at in range(10):
        enlist(dead, wait, f"dead{at}", ttl_s=LEASE_S)
    since = revisions(store, wait)
    looks, look = [], store._run.look
    store._run.look = lambda wait: looks.append(1) or look(wait)
    seen = store.watch(since, [Topic.DEPARTURES], timeout_s=2 * LEASE_S, wait=wait)
    assert (seen.changed, looks) == (frozenset(), [])
    assert first.renew(seats[0], ttl_s=30, wait=wait).live == 15


def test_a_watch_ends_when_its_server_dies_and_goes_on_with_its_data(make_store, private, wait):
    store = make_store(private.endpoint)
    seat = enlist(store, wait)
    now = revisions(store, wait)
    timer = threading.Timer(0.3, private.stop)
    timer.start()
    began_s = time.monotonic()
    with pytest.raises(BackendUnavailableError):
        store.watch(now, ALL, timeout_s=9, wait=wait)
    kept(time.monotonic() - began_s, 2)
    timer.join()
    with pytest.raises(BackendUnavailableError, match="Connection refused"):
        store.renew(seat, ttl_s=30, wait=wait)
    private.start()
    seen = store.watch(now, ALL, timeout_s=0, wait=wait)
    assert (seen.reset, seen.changed) == (False, frozenset())
    assert store.renew(seat, ttl_s=30, wait=wait).live == 1


# --- servers


def test_a_server_without_the_v2_api(make_store, tmp_path, wait):
    server = EtcdServer(tmp_path / "v3")
    try:
        with pytest.raises(BackendRefusedError, match=r"does not speak etcd's v2 API") as caught:
            make_store(server.start().endpoint).connect(wait=wait)
        assert "--enable-v2=true" in caught.value.hint
        assert "--rdzv-backend etcd" in caught.value.hint
    finally:
        server.stop()


def test_a_server_that_is_none(make_store, wait):
    def answer(listener):
        with listener.accept()[0] as connection:
            connection.recv(1000)
            connection.sendall(b"-ERR unknown command\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        with pytest.raises(BackendRefusedError, match=r"does not speak HTTP"):
            make_store(f"127.0.0.1:{listener.getsockname()[1]}").connect(wait=wait)


def test_the_member_that_answers_is_asked(make_store, tmp_path, wait):
    cluster = EtcdCluster(tmp_path / "cluster", config=("--enable-v2=true",))
    try:
        cluster.start()
        store = make_store(cluster.endpoint)
        seat = enlist(store, wait)
        since = revisions(store, wait)
        cluster.kill_leader()

        def attempt():
            try:
                return store.renew(seat, ttl_s=30, wait=WaitBudget.lasting(5))
            except (BackendUnavailableError, OutcomeUnknownError):
                return None

        assert wait_for(attempt, within_s=15).live == 1
        seen = store.watch(since, ALL, timeout_s=0, wait=WaitBudget.lasting(5))
        assert (seen.reset, seen.changed) == (False, frozenset())
    finally:
        cluster.stop()


def test_tls_by_torchs_names(make_store, tmp_path, wait):
    server = TlsEtcd(tmp_path / "tls", config=("--enable-v2=true",))
    try:
        endpoint = server.start().endpoint
        files = {"ca_cert": str(server.ca), "ssl_cert": str(server.cert), "ssl_cert_key": str(server.key)}
        store = make_store(endpoint, protocol="https", **files)
        assert store.connect(wait=wait) == "127.0.0.1"
        seat = enlist(store, wait)
        now = revisions(store, wait)
        other = make_store(f"https://{endpoint}", cacert=files["ca_cert"], cert=str(server.cert), key=str(server.key))
        timer = threading.Timer(0.2, lambda: other.withdraw(seat, wait=wait))
        timer.start()
        assert store.watch(now, [Topic.DEPARTURES], timeout_s=9, wait=wait).changed == {Topic.DEPARTURES}
        timer.join()
        with pytest.raises(BackendRefusedError, match="is not trusted"):
            make_store(endpoint, protocol="https", ca_cert=str(server.other_ca)).connect(wait=wait)
        with pytest.raises(BackendRefusedError, match="refused TLS"):
            make_store(endpoint, protocol="https", ca_cert=files["ca_cert"]).connect(wait=wait)
        with pytest.raises((BackendRefusedError, BackendUnavailableError)) as caught:
            make_store(endpoint).connect(wait=wait)
        assert "https" in str(caught.value)
    finally:
        server.stop()


def test_a_user_and_a_password(make_store, private, tmp_path, wait):
    assert request(private, "GET", "keys/")[0] == 200
    root = {"user": "root", "password": "r00t"}
    put(private, "auth/users/root", root)
    put(private, "auth/enable", {})
    put(private, "auth/roles/guest", {"role": "guest", "revoke": {"kv": {"read": ["/*"], "write": ["/*"]}}}, **root)
    secret = tmp_path / "secret"
    secret.write_text("r00t\n")
    enlist(make_store(f"http://root:r00t@{private.endpoint}"), wait)
    store = make_store(private.endpoint, username="root", password_file=str(secret))
    assert len(store.members(wait=wait).members) == 1
    with pytest.raises(BackendRefusedError, match="requires a user and a password, and none was given"):
        enlist(make_store(private.endpoint), wait)
    with pytest.raises(BackendRefusedError, match="does not let user 'root'") as caught:
        enlist(make_store(f"http://root:wr0ng@{private.endpoint}"), wait)
    assert "wr0ng" not in str(caught.value)
    with pytest.raises(BackendRefusedError, match=r"cannot read password_file '/no/such': No such file"):
        make_store(private.endpoint, username="root", password_file="/no/such").connect(wait=wait)


def put(server, path, body, user="", password=""):
    """Change who may do what."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=10)
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Basic {login}"} if user else {})
    connection.request("PUT", f"/v2/{path}", json.dumps(body), headers)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    assert response.status in (200, 201), text


# --- beside the model


def test_it_does_what_the_model_does(make_store, etcd_server, wait):
    draw, model = random.Random(os.environ["TESTS_SEED"]), StoreModel("birth")
    stores = [make_store(etcd_server.endpoint) for _ in range(3)]
    seats, versions, number_of = {}, {}, {}
    for _ in range(150):
        store, name = draw.choice(stores), draw.choice("abcd")
        record, key = draw.randbytes(4), draw.choice(("round", "control", "other"))
        ours, theirs = seats.get(name, (None, None))
        match draw.choice(("enlist", "update", "renew", "withdraw", "swap", "swap late")):
            case "enlist":
                ours = enlist(store, WaitBudget.lasting(5), name, record=record)
                theirs = model.enlist(record, incarnation=name, ttl_s=30, now_s=0)
                assert ours.ahead == theirs.ahead
                seats[name], number_of[ours.number] = (ours, theirs), theirs.number
            case "update" if ours:
                assert store.update(ours, record, wait=wait) == model.update(theirs, record, now_s=0)
            case "renew" if ours:
                got, right = store.renew(ours, ttl_s=30, wait=wait), model.renew(theirs, ttl_s=30, now_s=0)
                assert (got and (got.ahead, got.live)) == (right and (right.ahead, right.live))
            case "withdraw" if ours:
                store.withdraw(ours, wait=wait)
                model.withdraw(theirs, now_s=0)
            case "swap" | "swap late" as how:
                expect = versions.get(key, (None, None)) if how == "swap" else ("9-x", "y")
                got = store.swap(key, record, expect=expect[0], keep_s=60, wait=wait)
                right = model.swap(key, record, expect=expect[1], keep_s=60, now_s=0)
                assert got.applied == right.applied
                assert (got.current and got.current.value) == (right.current and right.current.value)
                if got.applied:
                    versions[key] = (got.current.version, right.current.version)
        found, right = draw.choice(stores).members(wait=wait), model.members(now_s=0)
        assert found.revision == right.revision
        assert [(number_of[m.seat], m.incarnation, m.record) for m in found.members] == [
            (m.seat, m.incarnation, m.record) for m in right.members
        ]
        now, right = revisions(draw.choice(stores), wait), model.revisions(now_s=0)
        assert [now.of(topic) for topic in ALL] == [right.of(topic) for topic in ALL]


def test_many_at_once_lose_no_change(make_store, etcd_server):
    stores = [make_store(etcd_server.endpoint) for _ in range(6)]
    changes, departures = [], []

    def live(at):
        draw, wait = random.Random(at), WaitBudget.lasting(60)
        for turn in range(4):
            seat = enlist(stores[at], wait, f"{at}.{turn}")
            for _ in range(draw.randrange(4)):
                assert stores[at].update(seat, b"x", wait=wait)
                changes.append(at)
            assert stores[at].renew(seat, ttl_s=30, wait=wait)
            stores[at].withdraw(seat, wait=wait)
            changes.extend((at, at))
            departures.append(at)

    threads = [threading.Thread(target=live, args=(at,)) for at in range(6)]
    for thread in threads:
        thread.start()
    watcher, wait, last = make_store(etcd_server.endpoint), WaitBudget.lasting(60), Revisions()
    while any(thread.is_alive() for thread in threads):
        seen = watcher.watch(last, ALL, timeout_s=0.2, wait=wait)
        assert not seen.reset, f"{last} is followed by {seen.revisions}"
        last = seen.revisions
    for thread in threads:
        thread.join()
    now = revisions(watcher, wait)
    assert (now.members, now.departures) == (len(changes), len(departures))


def test_of_a_member_s_seats_the_last_is_remembered(store, etcd_server, run_id, wait):
    settings = store.settings
    v3 = EtcdStore(msgspec.structs.replace(settings, backend="etcd"))
    try:
        for here, known in ((store, "_nonces"), (v3, "_leases")):
            for _ in range(3):
                seat = enlist(here, wait)
                here.withdraw(seat, wait=wait)
                getattr(here, known)[seat.number, seat.incarnation] = object()  # as if somebody else had removed it
            seat = enlist(here, wait)
            assert set(getattr(here, known)) == {(seat.number, seat.incarnation)}
    finally:
        v3.close()
