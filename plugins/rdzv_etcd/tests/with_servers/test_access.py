"""TLS, certificates, users, roles, tokens: who is let in, what refusals say, and that no secret is shown."""

import threading
import time
import traceback

import pytest

from elastic_backend_net.tls import Login
from elastic_core.api.stores import BackendRefusedError, BackendUnavailableError
from elastic_rdzv_etcd.coding import b64, prefix_end, unb64
from etcd_servers import PASSWORD, PREFIX, ROOT_PASSWORD, USER, EtcdServer
from patience import kept
from support import wait_for

SECRET = "hunter2-of-the-test"
KEY = f"{PREFIX}key".encode()
RANGE = {"key": b64(KEY)}


def put(gateway, wait, key=KEY, value=b"v"):
    return gateway.ask("kv/put", {"key": b64(key), "value": b64(value)}, wait=wait, writes=True)


def versions(gateway, wait):
    return [int(kv["version"]) for kv in gateway.ask("kv/range", RANGE, wait=wait, writes=False).get("kvs", [])]


def watch(gateway, wait, text=PREFIX):
    prefix = text.encode()
    return gateway.stream([{"key": b64(prefix), "range_end": b64(prefix_end(prefix))}], wait=wait)


def refused(call, *secrets):
    """Return the text of a refusal; no form of it shows a secret."""
    with pytest.raises(BackendRefusedError) as caught:
        call()
    error = caught.value
    assert error.hint
    everything = "".join([str(error), repr(error), *traceback.format_exception(error)])
    assert not any(secret in everything for secret in (SECRET, PASSWORD, *secrets))
    assert "\n" not in str(error)
    return str(error)


@pytest.fixture
def guarded(tmp_path):
    """A server with users; its tokens are forgotten a second after their last use."""
    server = EtcdServer(tmp_path / "guarded", config=("--auth-token-ttl", "1"))
    try:
        server.start()
        server.enable_auth()
        yield server
    finally:
        server.stop()


def url(server, username=USER, password=PASSWORD):
    return f"http://{username}:{password}@{server.endpoint}"


# --- users


def test_a_user_writes_reads_and_watches(make_gateway, guarded, wait):
    gateway = make_gateway(url(guarded))
    assert gateway.open(wait) == "127.0.0.1"
    stream = watch(gateway, wait)
    put(gateway, wait)
    assert versions(gateway, wait) == [1]
    assert [event["value"] for event in stream.events(5, wait)] == [b"v"]


def test_no_user_a_wrong_password_and_an_unknown_user(make_gateway, guarded, wait):
    text = refused(lambda: make_gateway(guarded.endpoint).open(wait))
    assert "requires a user and a password, and none was given" in text
    assert "ELASTIC_ETCD_PASSWORD" in text
    assert "password_file=PATH" in text
    for username in (USER, "nobody"):
        text = refused(lambda name=username: make_gateway(url(guarded, name, SECRET)).open(wait))
        assert f"refused the password of user {username!r}" in text
    nobody = make_gateway(guarded.endpoint)
    for call in (lambda: put(nobody, wait), lambda: versions(nobody, wait), lambda: watch(nobody, wait)):
        assert "none was given" in refused(call)


def test_a_user_for_a_server_that_knows_none(make_gateway, etcd_server, wait):
    text = refused(lambda: make_gateway(url(etcd_server)).open(wait))
    assert "has authentication switched off" in text
    assert repr(USER) in text


def test_keys_that_a_user_may_not_touch(make_gateway, guarded, wait):
    gateway = make_gateway(url(guarded))
    gateway.open(wait)
    for call in (lambda: put(gateway, wait, b"/other"), lambda: watch(gateway, wait, "/other")):
        text = refused(call)
        assert f"does not permit user {USER!r}" in text
        assert f"readwrite {PREFIX}" in text
    put(gateway, wait)


def test_a_token_that_has_expired_is_renewed(make_gateway, guarded, wait):
    gateway, other = make_gateway(url(guarded)), make_gateway(url(guarded))
    for each in (gateway, other):
        each.open(wait)
    stream = watch(gateway, wait)
    threading.Event().wait(2.2)  # only the server's clock ends a token, and to ask about it would prolong it
    put(gateway, wait)
    again = watch(other, wait)
    put(gateway, wait)
    assert versions(gateway, wait) == [2]  # and each once only
    assert stream.events(5, wait)  # an old one does not need it
    assert again.events(5, wait)


def test_a_restart_and_a_change_of_users_forget_tokens(make_gateway, guarded, wait):
    gateway = make_gateway(url(guarded))
    put(gateway, wait)
    root = make_gateway(url(guarded, "root", ROOT_PASSWORD))
    root.ask("auth/user/add", {"name": "more", "password": "x"}, wait=wait, writes=True)
    put(gateway, wait)
    # A server alone may lose, when it is killed, the last write that it has acknowledged.
    root.ask("auth/user/add", {"name": "last", "password": "x"}, wait=wait, writes=True)
    guarded.restart()
    put(gateway, wait)
    assert versions(gateway, wait) == [3]


def test_a_password_is_asked_for_anew_with_each_token(make_gateway, guarded, wait):
    passwords = [PASSWORD]
    gateway = make_gateway(guarded.endpoint, login=lambda: Login(username=USER, password=passwords[-1]))
    put(gateway, wait)
    root = make_gateway(url(guarded, "root", ROOT_PASSWORD))
    root.ask("auth/user/changepw", {"name": USER, "password": SECRET}, wait=wait, writes=True)
    assert "refused the password" in refused(lambda: put(gateway, wait))
    passwords.append(SECRET)
    put(gateway, wait)
    assert versions(gateway, wait) == [2]


# --- the gateway itself


def test_a_server_without_a_gateway(make_gateway, tmp_path, wait):
    server = EtcdServer(tmp_path / "etcd", config=("--enable-grpc-gateway=false",))
    server.launch()
    try:
        gateway = make_gateway(server.endpoint)

        def refusal():
            try:
                gateway.open(wait)
            except BackendUnavailableError:
                return None  # not yet
            except BackendRefusedError as error:
                return error
            raise AssertionError("it has one")

        error = wait_for(refusal)
        assert "no JSON gateway" in str(error)
        assert "enable-grpc-gateway: true" in error.hint
    finally:
        server.stop()


# --- TLS


def files(server, **others):
    return {"ca_cert": str(server.ca), "cert": str(server.cert), "key": str(server.key)} | others


def test_tls_with_client_certificates_and_a_user(make_gateway, tls_etcd, wait):
    gateway, other = (make_gateway(tls_etcd.login_url, **files(tls_etcd)) for _ in range(2))
    assert gateway.open(wait) == "127.0.0.1"
    stream = watch(gateway, wait)
    sizes = [1, 16_384, 100_000, *range(20)]
    writer = threading.Timer(0.1, lambda: [put(other, wait, value=b"x" * size) for size in sizes])
    writer.start()
    seen = []
    while len(seen) < len(sizes):  # what TLS has decrypted already is no reason to wait
        new = stream.events(5, wait)
        assert new
        seen += [len(event["value"]) for event in new]
    writer.join()
    assert seen == sizes
    (kv,) = gateway.ask("kv/range", RANGE, wait=wait, writes=False)["kvs"]
    assert len(unb64(kv["value"])) == 19
    began_s = time.monotonic()
    assert stream.events(0.2, wait) == []
    kept(time.monotonic() - began_s, 1)


def test_a_certificate_with_a_common_name(make_gateway, tls_etcd, wait):
    named = {"cert": str(tls_etcd.named_cert), "key": str(tls_etcd.named_key)}
    gateway = make_gateway(tls_etcd.login_url, **files(tls_etcd, **named))
    text = refused(lambda: gateway.open(wait))
    assert "certificate has a CommonName" in text
    assert "without a CommonName" in text


@pytest.mark.parametrize(
    ("change", "seen", "hint"),
    [
        ({"ca_cert": "other"}, "is not trusted", "ca_cert"),
        ({"ca_cert": ""}, "is not trusted", "ca_cert"),
        ({"ca_cert": "/nonexistent.pem"}, "cannot use ca_cert", "ca_cert"),
        ({"cert": "", "key": ""}, "refused TLS", "cert=PATH"),
        ({"cert": "key"}, "cannot use cert and key", "cert=PATH"),
        ({"cert": "/nonexistent.pem"}, "cannot use cert and key", "cert=PATH"),
    ],
)
def test_tls_that_does_not_fit(make_gateway, tls_etcd, wait, change, seen, hint):
    paths = {"other": str(tls_etcd.other_ca), "key": str(tls_etcd.key)}
    options = files(tls_etcd) | {name: paths.get(value, value) for name, value in change.items()}
    text = refused(lambda: make_gateway(tls_etcd.login_url, **options).open(wait))
    assert seen in text
    assert hint in text


def test_an_insecure_connection_trusts_any_server(make_gateway, tls_etcd, wait):
    assert make_gateway(tls_etcd.login_url, **files(tls_etcd, ca_cert="", insecure=True)).open(wait)


def test_a_wrong_password_over_tls(make_gateway, tls_etcd, wait):
    gateway = make_gateway(f"https://{USER}:{SECRET}@{tls_etcd.endpoint}", **files(tls_etcd))
    assert f"refused the password of user {USER!r}" in refused(lambda: gateway.open(wait))


def test_tls_to_a_plain_server_and_the_other_way_round(make_gateway, etcd_server, tls_etcd, wait):
    for endpoint, hint in ((f"https://{etcd_server.endpoint}", "http://"), (tls_etcd.endpoint, "https://")):
        with pytest.raises((BackendRefusedError, BackendUnavailableError)) as caught:
            make_gateway(endpoint).open(wait)
        assert hint in caught.value.hint
