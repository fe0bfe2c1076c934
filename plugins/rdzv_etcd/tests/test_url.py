"""What endpoints are read as, and that no text shows a password."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.api import ConfigError
from elastic_rdzv_etcd.coding import b64, prefix_end, unb64
from elastic_rdzv_etcd.url import Login, parse_target


def target(endpoint, environ=None):
    return parse_target(endpoint, environ=environ or {})


@pytest.mark.parametrize(
    ("endpoint", "shown", "tls"),
    [
        ("", "localhost:2379", False),
        ("etcd.example", "etcd.example:2379", False),
        ("10.0.0.1:7000", "10.0.0.1:7000", False),
        ("[::1]:7000", "[::1]:7000", False),
        ("::1", "[::1]:2379", False),
        ("a,b:1,[::1]", "a:2379,b:1,[::1]:2379", False),
        (" a , b ", "a:2379,b:2379", False),
        ("a,a:2379", "a:2379", False),
        ("http://h", "h:2379", False),
        ("https://h/", "h:2379", True),
        ("HTTPS://h:1", "h:1", True),
        ("https://a:1,b:2", "a:1,b:2", True),
        ("https://a:1,https://b:2/", "a:1,b:2", True),
        ("https://u:p@[fe80::1]:1,b", "[fe80::1]:1,b:2379", True),
    ],
)
def test_an_endpoint_is_read(endpoint, shown, tls):
    found = target(endpoint)
    assert (str(found), found.tls) == (shown, tls)


def test_an_empty_endpoint_is_that_of_the_environment():
    theirs = {"ETCDCTL_ENDPOINTS": "https://me:pw@a:1,b:2"}
    found = target(" ", theirs)
    assert (str(found), found.tls, found.login.username) == ("a:1,b:2", True, "me")
    assert str(target("", theirs | {"ELASTIC_ETCD_ENDPOINTS": "ours"})) == "ours:2379"
    assert str(target("given", theirs)) == "given:2379"


@pytest.mark.parametrize(
    ("endpoint", "username", "password"),
    [
        ("https://h", "", ""),
        ("https://me:pw@h", "me", "pw"),
        ("http://me@h", "me", ""),
        ("https://me:p%40w%3A@h,h2", "me", "p@w:"),
        ("https://me:p,w/x?#y@z@h:1,h2:2", "me", "p,w/x?#y@z"),
        ("https://me:pw@h,https://me:pw@h2", "me", "pw"),
        ("https://h,https://me:pw@h2", "me", "pw"),
    ],
)
def test_credentials_are_taken_from_a_url(endpoint, username, password):
    assert target(endpoint).login == Login(username=username, password=password)


@pytest.mark.parametrize(
    ("endpoint", "seen"),
    [
        ("ftp://h", "the scheme 'ftp'"),
        ("http://a,https://b", "with TLS and without it"),
        ("a,,b", "a part without a host"),
        ("https://", "a part without a host"),
        ("https://h/v3", "a path after the host"),
        ("https://a:x@h,https://b:y@h2", "more than one user"),
        ("me:pw@h", "a user, but no scheme"),
        ("h:0", "port '0'"),
        ("a,h:99999", "port '99999'"),
        ("h h", "characters that no host name has"),
    ],
)
def test_what_cant_be_read_is_named(endpoint, seen):
    with pytest.raises(ConfigError, match="--rdzv-endpoint") as caught:
        target(endpoint)
    assert seen in str(caught.value)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["ELASTIC_ETCD_ENDPOINTS", "ETCDCTL_ENDPOINTS"])
def test_the_environment_is_named_where_it_is_wrong(name):
    with pytest.raises(ConfigError, match=f"\\${name}"):
        target("", {name: "ftp://h"})


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://me:hunter2@h:x",
        "https://me:hunter2@h/x",
        "ftp://me:hunter2@h",
        "hunter2:x@y://h",
        "https://me:hunter2@a,http://b",
        "https://me:hunter2@a,https://you:hunter2@b",
        "me:hunter2@h:1",
        "https://me:hunter2@,b",
    ],
)
def test_a_mistake_in_an_endpoint_does_not_show_its_password(endpoint):
    with pytest.raises(ConfigError) as caught:
        target(endpoint)
    assert "hunter2" not in f"{caught.value} {caught.value!r}"


def test_no_text_shows_a_password():
    found = target("https://me:hunter2@h")
    assert "hunter2" not in f"{found} {found!r} {found.login} {found.login!r}"
    assert found.login.hidden_in("no hunter2 here") == "no *** here"
    assert Login().hidden_in("as it is") == "as it is"


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_the_range_of_a_prefix_has_its_keys_and_no_others(prefix, key):
    end = prefix_end(prefix)
    inside = key >= prefix and (end == b"\0" or key < end)
    assert inside == key.startswith(prefix)
    assert unb64(b64(key)) == key


def test_what_is_imported_to_choose_the_plugin_imports_no_client():
    modules = ("url", "errors", "coding", "tls")
    program = f"import sys\nfrom elastic_rdzv_etcd import {', '.join(modules[:3])}\n"
    program += "print({'urllib3', 'ssl', 'http.client'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
