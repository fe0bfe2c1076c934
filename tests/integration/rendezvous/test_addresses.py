"""The names and routes of this host, as the system has them."""

import os
import threading

from elastic_core.rendezvous import address
from elastic_core.system.clock import WaitBudget


def test_the_full_name_may_be_unknown(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(address, "_FULL_NAME_LIMIT_S", 0.1)
    monkeypatch.setattr(address.socket, "getfqdn", lambda: never.wait(20) and "")
    try:
        assert address.full_name(wait=WaitBudget()) == os.uname().nodename
    finally:
        never.set()
    monkeypatch.setattr(address.socket, "getfqdn", lambda: "gpu-017.example")
    assert address.full_name(wait=WaitBudget()) == "gpu-017.example"


def test_route_source():
    assert address.route_source("127.0.0.1") == "127.0.0.1"
    assert address.route_source("not-an-address") == ""
    assert address.route_source("") == ""
