"""Passwords, ACL users, TLS, sentinels, clusters: who is let in, what refusals say, and that no secret is shown."""

import threading
import time

import pytest

from elastic_core.api.stores import Revisions, Topic
from patience import kept
from redis_access_kit import ALL, SECRET, enlist, refused
from redis_servers import RedisServer


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


# --- sentinels


# --- a cluster
