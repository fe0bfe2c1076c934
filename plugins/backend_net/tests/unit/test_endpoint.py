"""Endpoints as people write them."""

import pytest

from elastic_backend_net.endpoint import Endpoint, parse_endpoint
from elastic_core.api import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("", "localhost", 29400),
        ("  ", "localhost", 29400),
        ("gpu-017", "gpu-017", 29400),
        (" gpu-017:7000 ", "gpu-017", 7000),
        ("gpu_017.cluster.example.:1", "gpu_017.cluster.example.", 1),
        ("10.0.0.7", "10.0.0.7", 29400),
        ("10.0.0.7:65535", "10.0.0.7", 65535),
        ("bücher.example:80", "bücher.example", 80),
        ("::1", "::1", 29400),
        ("2001:db8::1:7000", "2001:db8::1:7000", 29400),  # an address as a whole
        ("2001:db8::1:29400", "2001:db8::1", 29400),  # none as a whole: five digits
        ("[::1]", "::1", 29400),
        ("[2001:db8::1]:7000", "2001:db8::1", 7000),
        ("[fe80::1%eth0]:7000", "fe80::1%eth0", 7000),
        ("fe80::1%eth0", "fe80::1%eth0", 29400),
        ("[gpu-017]:7000", "gpu-017", 7000),  # torch takes the brackets off whatever is in them
        ("host:00080", "host", 80),
    ],
)
def test_reads_host_and_port(text, host, port):
    assert parse_endpoint(text, default_port=29400) == Endpoint(host=host, port=port)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (":29400", "has no host"),
        ("[]:29400", "has no host"),
        ("host:", "has the port ''; expected a number from 1 to 65535"),
        ("host:65536", "has the port '65536'; expected a number from 1 to 65535"),
        ("host:123456", "has the port '123456'"),
        ("host:0", "has the port '0'; expected a number from 1 to 65535"),
        ("host:-1", "has the port '-1'"),
        ("host:١٢", "has the port '١٢'"),
        ("host:80a", "has the port '80a'"),
        ("ho st", "has characters that no host name has; expected HOST or HOST:PORT"),
        ("host/path", "has characters"),
        ("a,b:80", "has characters"),
        ("host\0", "has characters"),
        ("[::1", "has the host '[::1'; expected an IPv6 address"),
        ("[::1]x", "expected an IPv6 address"),
        ("a:b:80", "has the host 'a:b'; expected an IPv6 address"),
        ("redis://host:6379", "is a URL; expected a host and a port"),
    ],
)
def test_says_what_is_wrong(text, what):
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(text, default_port=29400)
    assert what in str(caught.value)
    assert str(caught.value).startswith("--rdzv-endpoint: ")
    assert str(caught.value).endswith("Try: HOST:29400, or [IPV6]:29400")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["redis://me:s3cret@host:6379", "s3cret@host:1", ":s3cret@host", "me:s3cret@host:x"])
def test_shows_no_password(text):
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(text, default_port=1)
    assert "s3cret" not in str(caught.value)
    assert "host" in str(caught.value)


def test_port_zero_where_it_may_be_asked_for():
    assert parse_endpoint("localhost:0", default_port=1, lowest_port=0).port == 0
    with pytest.raises(ConfigError, match="from 0 to 65535"):
        parse_endpoint("localhost:70000", default_port=1, lowest_port=0)


def test_another_option_and_default_host():
    assert parse_endpoint("", default_port=5, default_host="127.0.0.1") == Endpoint(host="127.0.0.1", port=5)
    with pytest.raises(ConfigError, match=r"^--here: ':5' has no host"):
        parse_endpoint(":5", default_port=5, option="--here")


@pytest.mark.parametrize("text", ["a:1", "[::1]:2", "10.0.0.7:3", "[fe80::1%eth0]:4"])
def test_text_reads_back(text):
    assert str(parse_endpoint(text, default_port=9)) == text
