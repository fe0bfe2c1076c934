"""What endpoints are read as, and that no text shows a password."""

import pytest

from elastic_core.api import API_VERSION, ConfigError
from elastic_rdzv_redis.store import RedisStore
from elastic_rdzv_redis.url import Login, parse_target


def target(endpoint, **given):
    return parse_target(endpoint, environ=given.pop("environ", {}), **given)


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("", "localhost:6379"),
        ("redis.example", "redis.example:6379"),
        ("10.0.0.1:7000", "10.0.0.1:7000"),
        ("[::1]:7000", "[::1]:7000"),
        ("::1", "[::1]:6379"),
        ("redis://h", "h:6379"),
        ("redis://h:1/3", "h:1/3"),
        ("redis://h:1/", "h:1"),
        ("redis://h:1?db=3", "h:1/3"),
        ("redis://u:p@[fe80::1]:1", "[fe80::1]:1"),
        ("unix:///run/redis.sock", "unix:/run/redis.sock"),
        ("unix:///run/a%20b.sock?db=2", "unix:/run/a b.sock/2"),
        ("unix://u:p@/run/redis.sock", "unix:/run/redis.sock"),
    ],
)
def test_an_endpoint_is_read(endpoint, shown):
    assert str(target(endpoint)) == shown


def test_an_empty_endpoint_is_that_of_the_environment():
    found = target("", environ={"REDIS_URL": "rediss://me:pw@cache.example:7000/1"})
    assert (str(found), found.tls, found.login.username) == ("cache.example:7000/1", True, "me")


@pytest.mark.parametrize(
    ("endpoint", "username", "password"),
    [
        ("redis://h", "", ""),
        ("redis://:pw@h", "", "pw"),
        ("redis://me:pw@h", "me", "pw"),
        ("redis://me@h", "me", ""),
        ("redis://me:p%40w%3A@h", "me", "p@w:"),
        ("redis://me:p/w?x#y@z@h:1/0", "me", "p/w?x#y@z"),
    ],
)
def test_credentials_are_taken_from_a_url(endpoint, username, password):
    login = target(endpoint).login
    assert (login.username, login.password) == (username, password)


def test_sentinels_are_several_hosts_with_a_port_of_their_own():
    found = target("rediss://a,b:7000,[::1]:7001/2", sentinels=True)
    assert (str(found), found.tls) == ("a:26379, b:7000, [::1]:7001/2", True)


@pytest.mark.parametrize(
    ("endpoint", "seen"),
    [
        ("http://h", "the scheme 'http'"),
        ("a,b", "2 servers"),
        ("redis://h/x", "the database 'x'"),
        ("redis://h?ssl=1", "the parameter 'ssl'"),
        ("redis://h/1?db=2", "the databases 1 and 2"),
        ("redis://h:0", "port '0'"),
        ("redis://h:99999", "port '99999'"),
        ("unix://run/redis.sock", "no absolute path"),
        ("redis://", ""),
    ],
)
def test_what_cant_be_read_is_named(endpoint, seen):
    if not seen:
        assert str(target(endpoint)) == "localhost:6379"
        return
    with pytest.raises(ConfigError, match="--rdzv-endpoint") as caught:
        target(endpoint)
    assert seen in str(caught.value)
    assert caught.value.hint


def test_the_environment_is_named_where_it_is_wrong():
    with pytest.raises(ConfigError, match="REDIS_URL"):
        target("", environ={"REDIS_URL": "ftp://h"})


@pytest.mark.parametrize(
    "endpoint",
    [
        "redis://me:hunter2@h:x",
        "redis://me:hunter2@h/x",
        "ftp://me:hunter2@h",
        "redis://me:hunter2@a,b",
        "redis://me:hunter2@h?z=1",
        "me:hunter2@h:1",
    ],
)
def test_a_mistake_in_an_endpoint_does_not_show_its_password(endpoint):
    with pytest.raises(ConfigError) as caught:
        target(endpoint)
    assert "hunter2" not in f"{caught.value} {caught.value!r}"


def test_no_text_shows_a_password(make_store):
    store = make_store("redis://me:hunter2@h:1/2")
    login = Login(username="me", password="hunter2")
    assert store.where == "redis at h:1/2"
    assert "hunter2" not in f"{store.where} {store!r} {login!r} {login} {target('redis://me:hunter2@h')!r}"


def test_where_names_sentinels_and_tls(make_store):
    store = make_store("rediss://a,b", sentinel_master="m")
    assert store.where == "redis at 'm' by the sentinels at a:26379, b:26379 (TLS)"


def test_options_for_tls_need_an_endpoint_with_tls(make_store):
    with pytest.raises(ConfigError, match="without TLS") as caught:
        make_store("h:1", ca_cert="ca.pem")
    assert caught.value.hint == "--rdzv-endpoint rediss://h:1"


def test_credentials_come_from_url_then_options_then_environment(make_store, tmp_path, monkeypatch):
    monkeypatch.setenv("ELASTIC_REDIS_USERNAME", "env")
    monkeypatch.setenv("ELASTIC_REDIS_PASSWORD", "env-pw")
    file = tmp_path / "pw"
    file.write_text("file-pw\n")

    def login(endpoint, **options):
        found = make_store(endpoint, **options).login()
        return found.username, found.password

    assert login("h") == ("env", "env-pw")
    assert login("h", username="option", password_file=str(file)) == ("option", "file-pw")
    assert login("redis://url:url-pw@h", username="option", password_file=str(file)) == ("url", "url-pw")


def test_the_class_states_what_it_is():
    assert vars(RedisStore)["api_version"] == API_VERSION
    assert all(spec.help for spec in RedisStore.options)


def test_the_module_of_the_entry_point_does_not_import_redis():
    import subprocess
    import sys

    program = "import sys, elastic_rdzv_redis.store; print('redis' in sys.modules, 'ssl' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
