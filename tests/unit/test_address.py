"""What is known of this host's addresses."""

import pytest

from elastic_core.rendezvous.address import host_identity, is_loopback


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("0.0.0.0", True),
        ("::", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost", False),
    ],
)
def test_is_loopback(address, loopback):
    assert is_loopback(address) is loopback


def test_host_identity_is_the_same_each_time():
    assert host_identity() == host_identity()
    assert "\n" not in host_identity()
