"""Orders that somebody outside a run puts into its store, and what they leave alone there."""

import json
from functools import partial

import pytest

from elastic_core.api import ConfigError, RendezvousSettings, WaitBudget
from elastic_core.api.commands import StoreChoice
from elastic_core.api.rendezvous import RendezvousStateError
from elastic_core.api.stores import CONTROL_KEY, OutcomeUnknownError
from elastic_ops import store as run_store
from elastic_ops.store import StoreWriter
from elastic_plugin_kit.memory_server import MemoryServer
from elastic_plugin_kit.memory_store import MemoryStore

CHOICE = StoreChoice(backend="memory", endpoint="", run_id="r", conf={})
WAIT = WaitBudget()
CONTROL = {"v": 5, "epoch": "e", "attempt": 0, "secret": "s", "of-a-newer-version": [1, {"x": None}]}


@pytest.fixture
def store(monkeypatch):
    """Return a client of the store that writers use, too."""
    settings = RendezvousSettings(
        backend="memory", run_id="r", endpoint="", min_nodes=1, max_nodes=1, local_world_size=1
    )
    make = partial(MemoryStore, settings, server=MemoryServer())
    monkeypatch.setattr(run_store, "open_store", lambda choice: make())
    made = make()
    made.connect(wait=WAIT)
    return made


def put(store, document):
    found = store.load(CONTROL_KEY, wait=WAIT)
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    assert store.swap(CONTROL_KEY, raw, expect=found and found.version, keep_s=60.0, wait=WAIT).applied


def control(store):
    return json.loads(store.load(CONTROL_KEY, wait=WAIT).value)


def test_orders_stand_beside_what_another_version_has_written(store):
    put(store, CONTROL)
    writer = StoreWriter(CHOICE)
    assert writer.order_drain({"i1": "n1"}, by="ada", grace_s=2.5) == ("i1",)
    assert writer.order_drain(None, by="ada") == ("",)
    orders = [
        {"incarnation": "i1", "node": "n1", "by": "ada", "grace_s": 2.5},
        {"incarnation": "", "node": "", "by": "ada"},
    ]
    assert control(store) == CONTROL | {"drains": orders}


def test_asked_again_nothing_is_written_unless_there_is_less_time(store):
    put(store, CONTROL)
    writer = StoreWriter(CHOICE)
    writer.order_drain({"i1": "n1"}, by="ada")
    before = store.load(CONTROL_KEY, wait=WAIT).version
    assert writer.order_drain({"i1": "n1"}, by="bob") == ()
    assert store.load(CONTROL_KEY, wait=WAIT).version == before
    assert writer.order_drain({"i1": "n1", "i2": "n2"}, by="bob", grace_s=1.0) == ("i2",)
    assert [(order["by"], order["grace_s"]) for order in control(store)["drains"]] == [("bob", 1.0)] * 2


def test_a_run_that_is_over_is_left_alone(store):
    decision = {"type": "stop", "reason": "r", "outcome": "done"}
    put(store, CONTROL | {"verdict": {"decision": decision, "exit_code": 0, "by": "n"}})
    StoreWriter(CHOICE).order_drain(None, by="ada")
    assert "drains" not in control(store)


def test_orders_to_those_who_have_gone_do_not_pile_up(store):
    put(store, CONTROL)
    seat = store.enlist(b'{"v":5}', incarnation="live", ttl_s=60.0, wait=WAIT)
    writer = StoreWriter(CHOICE)
    writer.order_drain({"live": "n"}, by="ada")
    for index in range(40):
        writer.order_drain({f"gone{index}": "g"}, by="ada")
    named = [order["incarnation"] for order in control(store)["drains"]]
    assert (len(named), "live" in named, "gone0" in named, "gone39" in named) == (34, True, False, True)
    store.withdraw(seat, wait=WAIT)


def test_what_others_write_meanwhile_stays(store, monkeypatch):
    put(store, CONTROL)
    writer = StoreWriter(CHOICE)
    load, busy = MemoryStore.load, [1, 2, 3]

    def load_slowly(self, key, *, wait):
        found = load(self, key, wait=wait)
        if self is not store and busy:
            monkeypatch.setattr(MemoryStore, "load", load)
            put(store, control(store) | {"attempt": busy.pop()})
            monkeypatch.setattr(MemoryStore, "load", load_slowly)
        return found

    monkeypatch.setattr(MemoryStore, "load", load_slowly)
    writer.order_drain(None, by="ada")
    monkeypatch.undo()
    assert (control(store)["attempt"], len(control(store)["drains"]), busy) == (1, 1, [])


def test_a_reply_that_was_lost_is_looked_after(store, monkeypatch):
    put(store, CONTROL)
    swap, lost = MemoryStore.swap, ["once"]

    def swap_unseen(self, *args, **given):
        swapped = swap(self, *args, **given)
        if lost:
            raise OutcomeUnknownError(lost.pop())
        return swapped

    monkeypatch.setattr(MemoryStore, "swap", swap_unseen)
    StoreWriter(CHOICE).order_drain(None, by="ada")
    assert len(control(store)["drains"]) == 1


def test_no_run_and_what_is_none_of_ours_are_one_line(store):
    with pytest.raises(ConfigError, match=r"^no run 'r' in .*Try: its --rdzv-id$"):
        StoreWriter(CHOICE).order_drain(None, by="ada")
    put(store, CONTROL | {"v": 99})
    with pytest.raises(RendezvousStateError, match="format 99"):
        StoreWriter(CHOICE).order_drain(None, by="ada")
    assert control(store)["v"] == 99
