"""Clients of the workers' store wait until rank 0 listens: with a class in place of torch's."""

import os
import socket
import sys
import time
from datetime import timedelta
from types import ModuleType

import pytest

from elastic_standby import spare

PLACE = {"RANK": "1", "GROUP_RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "False"}


@pytest.fixture
def port():
    """Hold a port as the agent does: bound, reusable and not listened on."""
    with socket.socket() as held:
        held.bind(("", 0))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield held.getsockname()[1]


@pytest.fixture
def store(port, monkeypatch):
    """Give this process the place of rank 1, and a class that notes whether the port is taken when it connects."""

    class TCPStore:
        def __init__(self, host_name, port, world_size=None, is_master=False, timeout=None):
            self.taken = spare._is_taken(port)

    module = ModuleType("torch._C._distributed_c10d")
    module.TCPStore = TCPStore
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, value in {**PLACE, "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    # `object` accepts no arguments, unlike the class that torch's derives from.
    TCPStore.__new__ = staticmethod(lambda cls, *_, **__: object.__new__(cls))
    TCPStore.before = (vars(TCPStore)["__new__"],)  # a plain attribute would be unwrapped
    return TCPStore


@pytest.fixture
def pauses(port, monkeypatch):
    """Let rank 0 listen during the third pause. Return the pauses."""
    taken = []

    def sleep(pause_s):
        taken.append(pause_s)
        if len(taken) == 3:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", port))
            listener.listen()

    with socket.socket() as listener:
        monkeypatch.setattr(time, "sleep", sleep)
        yield taken


def test_a_client_is_made_when_the_port_is_listened_on(store, port, pauses):
    spare._let_client_wait()
    assert store("localhost", port, 2, False, timedelta(seconds=600)).taken
    assert len(pauses) == 3
    assert pauses == sorted(pauses)
    assert vars(store)["__new__"] is store.before[0]  # as it was
    store("localhost", port)
    assert len(pauses) == 3


def test_other_stores_and_servers_do_not_wait(store, port, pauses):
    spare._let_client_wait()
    assert not store("localhost", port=0).taken
    assert vars(store)["__new__"] is not store.before[0]  # the first one for this port is still to come
    assert not store("localhost", port, is_master=True).taken
    assert vars(store)["__new__"] is store.before[0]
    assert not pauses


@pytest.mark.parametrize(
    "place",
    [
        {"RANK": "0"},
        {"GROUP_RANK": "1"},
        {"TORCHELASTIC_USE_AGENT_STORE": "True"},
        {"MASTER_PORT": ""},
    ],
    ids=lambda place: next(iter(place)),
)
def test_where_it_could_not_help_the_class_is_left_as_it_is(store, place, monkeypatch):
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    spare._let_client_wait()
    assert vars(store)["__new__"] is store.before[0]


def test_without_torch_there_is_no_class(store, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._C._distributed_c10d")
    spare._let_client_wait()
    assert vars(store)["__new__"] is store.before[0]


def test_a_child_of_the_worker_does_not_wait(store, port, pauses, monkeypatch):
    spare._let_client_wait()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not store("localhost", port).taken
    assert not pauses


@pytest.mark.parametrize(("limit", "longest_s"), [(timedelta(milliseconds=20), 0.02), (None, spare._LISTENS_S)])
def test_it_waits_no_longer_than_the_stores_own_limit(store, port, limit, longest_s, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda pause_s: now.__setitem__(0, now[0] + pause_s))
    spare._let_client_wait()
    assert not store("localhost", port, timeout=limit).taken
    assert now[0] - 100.0 == pytest.approx(longest_s)
