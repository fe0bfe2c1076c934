"""What a handler returns becomes ranks and a meeting point, or an error that names the handler."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.errors import (
    RendezvousConnectionError,
    RendezvousStateError,
    WaitCancelledError,
    WaitExpiredError,
)
from elastic_core.rendezvous.rounds import resolve_round
from elastic_core.system.clock import WaitBudget
from elastic_core.types import RendezvousInfo, RendezvousSettings, RosterMember


class Wait(WaitBudget):
    """Sleeps by calling back: what happens meanwhile is the test's."""

    def __init__(self, meanwhile=lambda: None):
        super().__init__()
        self.meanwhile = meanwhile
        self.sleeps = []

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.check()
        self.meanwhile()


class DictStore:
    """Raises where a key is not there yet."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]


class TorchLikeStore(DictStore):
    """Would block in `get` for ever; `check` tells."""

    def get(self, key):
        assert key in self.values, "a blocking get was begun that nobody could cancel"
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)


def settings(**changes):
    base = {"backend": "fake", "run_id": "r", "endpoint": "", "min_nodes": 1, "max_nodes": 8, "local_world_size": 4}
    return RendezvousSettings(**(base | changes))


def resolve(info, *, wait=None, token=9, index=3, choose=lambda: ("chosen", 4242), **changes):
    return resolve_round(
        info, index=index, settings=settings(**changes), token=token, choose_master=choose, wait=wait or Wait()
    )


def never():
    raise AssertionError("only rank 0 chooses")


# --- ranks


def test_what_the_handler_counts_for_the_run_is_in_the_round():
    info = RendezvousInfo(rank=0, world_size=1, index=7, restart_count=2, membership_changes=3, history=())
    round_ = resolve(info, index=1)
    assert (round_.index, round_.restart_count, round_.membership_changes) == (7, 2, 3)


def test_each_agent_counts_where_the_handler_does_not():
    round_ = resolve(RendezvousInfo(rank=0, world_size=1), index=1)
    assert (round_.index, round_.restart_count, round_.membership_changes) == (1, None, None)


def test_tuple_of_one_node():
    round_ = resolve((None, 0, 1))
    assert (round_.index, round_.token, round_.node_rank, round_.node_count) == (3, 9, 0, 1)
    assert (round_.base_rank, round_.world_size, round_.local_world_size) == (0, 4, 4)
    assert (round_.master_addr, round_.master_port) == ("chosen", 4242)
    assert round_.global_rank(2) == 2


def test_nodes_without_roster_are_taken_to_be_equal():
    info = RendezvousInfo(rank=2, world_size=3, master_addr="h", master_port=1, round_token=5, nonce="n")
    round_ = resolve(info, choose=never)
    assert (round_.base_rank, round_.world_size) == (8, 12)
    assert (round_.role_base_rank, round_.role_world_size) == (8, 12)
    assert (round_.token, round_.nonce) == (5, "n")


def test_unequal_nodes_and_roles():
    members = tuple(
        RosterMember(node_id=f"n{i}", local_world_size=size, role=role)
        for i, (size, role) in enumerate([(2, "ps"), (4, "trainer"), (1, "ps"), (8, "trainer")])
    )
    info = RendezvousInfo(rank=3, world_size=4, members=members, master_addr="h", master_port=1)
    round_ = resolve(info, local_world_size=8, role="trainer")
    assert (round_.base_rank, round_.world_size) == (7, 15)
    assert (round_.role_base_rank, round_.role_world_size) == (4, 12)
    assert round_.role == "trainer"


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["a", "b"])), min_size=1, max_size=6))
def test_ranks_are_a_bijection_whatever_the_nodes(nodes):
    members = tuple(RosterMember(node_id=str(i), local_world_size=n, role=r) for i, (n, r) in enumerate(nodes))
    ranks, role_ranks = [], {"a": [], "b": []}
    for rank, (size, role) in enumerate(nodes):
        info = RendezvousInfo(rank=rank, world_size=len(nodes), members=members, master_addr="h", master_port=1)
        round_ = resolve(info, local_world_size=size, role=role)
        ranks += [round_.global_rank(local) for local in range(size)]
        role_ranks[role] += range(round_.role_base_rank, round_.role_base_rank + size)
        assert round_.world_size == sum(n for n, _ in nodes)
        assert round_.role_world_size == sum(n for n, r in nodes if r == role)
    assert ranks == list(range(len(ranks)))
    assert all(found == list(range(len(found))) for found in role_ranks.values())


MEMBER = RosterMember(node_id="n", local_world_size=4)


@pytest.mark.parametrize(
    ("info", "needle"),
    [
        (None, "returned NoneType; expected a RendezvousInfo or (store, rank, world_size)"),
        ((None, 0), "returned tuple"),
        ((None, "0", 1), "returned rank '0'; expected a whole number"),
        ((None, True, 2), "returned rank True"),
        ((None, 0, None), "returned world_size None"),
        ((None, 1, 1), "returned rank 1 of 1 nodes; ranks begin at 0"),
        ((None, -1, 1), "returned rank -1 of 1 nodes"),
        ((None, 0, 0), "returned rank 0 of 0 nodes"),
        ((None, 0, 9), "formed a round of 9 nodes; --nnodes allows 1:8"),
        ((None, 0, 2), "gave neither a master address and port nor a store"),
        (RendezvousInfo(rank=0, world_size=1, master_port=0), "gave the master port 0"),
        (RendezvousInfo(rank=0, world_size=1, master_port=65536), "gave the master port 65536"),
        (RendezvousInfo(rank=0, world_size=2, members=(MEMBER,)), "named 1 members in a round of 2 nodes"),
        (
            RendezvousInfo(rank=0, world_size=1, members=(RosterMember(node_id="n", local_world_size=3),)),
            "knows this node (rank 0) with 3 workers in role 'default'; it has 4 in role 'default'",
        ),
        (
            RendezvousInfo(rank=0, world_size=2, members=(MEMBER, RosterMember(node_id="m", local_world_size=0))),
            "gave node 1 0 workers",
        ),
    ],
)
def test_what_cant_be_a_round_names_the_handler(info, needle):
    with pytest.raises(RendezvousStateError) as caught:
        resolve(info)
    assert str(caught.value).startswith("rendezvous 'fake' ")
    assert needle in str(caught.value)
    assert caught.value.exit_code == 4


# --- where the workers meet


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"master_addr": "h", "master_port": 1}, ("h", 1)),
        ({"master_addr": "h"}, ("h", 4242)),
        ({"master_port": 7}, ("chosen", 7)),
        ({}, ("chosen", 4242)),
    ],
)
def test_one_node_fills_in_what_the_handler_left_open(given, expected):
    round_ = resolve(RendezvousInfo(rank=0, world_size=1, **given))
    assert (round_.master_addr, round_.master_port) == expected


@pytest.mark.parametrize("store", [DictStore(), TorchLikeStore()])
def test_rank_0_publishes_and_the_others_read(store):
    first = resolve((store, 0, 2))
    assert set(store.values) == {"elastic/9/MASTER_ADDR", "elastic/9/MASTER_PORT"}
    second = resolve((store, 1, 2), choose=never)
    assert (second.master_addr, second.master_port) == (first.master_addr, first.master_port) == ("chosen", 4242)


def test_key_is_the_handlers_token_and_rounds_dont_mix():
    store = DictStore()
    resolve(RendezvousInfo(rank=0, world_size=2, store=store, round_token=1))
    resolve(RendezvousInfo(rank=0, world_size=2, store=store, round_token=2), choose=lambda: ("later", 1))
    read = resolve(RendezvousInfo(rank=1, world_size=2, store=store, round_token=2), choose=never)
    assert read.master_addr == "later"


def test_index_stands_in_where_there_is_no_token():
    store = DictStore()
    resolve((store, 0, 2), token=0, index=6)
    assert "elastic/6/MASTER_ADDR" in store.values


def test_address_in_the_roster_comes_before_the_chosen_one():
    store = DictStore()
    members = (RosterMember(node_id="a", local_world_size=4, address="10.0.0.7"), MEMBER)
    round_ = resolve(RendezvousInfo(rank=0, world_size=2, store=store, members=members))
    assert (round_.master_addr, round_.master_port) == ("10.0.0.7", 4242)


@pytest.mark.parametrize("store", [DictStore(), TorchLikeStore()])
def test_reader_waits_for_rank_0(store):
    late = [lambda: None, lambda: None, lambda: resolve((store, 0, 2))]
    wait = Wait(lambda: late.pop(0)())
    assert resolve((store, 1, 2), wait=wait, choose=never).master_port == 4242
    assert len(wait.sleeps) == 3


def test_text_and_none_from_a_store_are_understood():
    class TextStore(DictStore):
        def set(self, key, value):
            self.values[key] = value

        def get(self, key):
            return self.values.get(key)

    store = TextStore()
    wait = Wait(lambda: resolve((store, 0, 2)))
    assert resolve((store, 1, 2), wait=wait).master_addr == "chosen"


def test_cancelled_and_expired_waits_end_the_reading():
    wait = Wait(lambda: wait.cancel())
    with pytest.raises(WaitCancelledError):
        resolve((DictStore(), 1, 2), wait=wait)
    with pytest.raises(WaitExpiredError):
        resolve((DictStore(), 1, 2), wait=WaitBudget.lasting(0.0))


@pytest.mark.parametrize("operation", ["get", "set", "check"])
def test_store_that_fails_is_told_with_its_handler(operation):
    class Broken(TorchLikeStore):
        pass

    def fail(self, *args):
        raise OSError("connection\nreset")

    setattr(Broken, operation, fail)
    store = Broken()
    store.values = {"elastic/9/MASTER_ADDR": b"h", "elastic/9/MASTER_PORT": b"1"}
    with pytest.raises(RendezvousConnectionError, match="store of rendezvous 'fake' failed: OSError: connection reset"):
        resolve((store, 0 if operation == "set" else 1, 2))


def test_nonsense_in_the_store_is_refused():
    store = DictStore()
    store.values = {"elastic/9/MASTER_ADDR": b"h", "elastic/9/MASTER_PORT": b"http"}
    with pytest.raises(RendezvousStateError, match="gave the master port 'http'"):
        resolve((store, 1, 2))
    store.values["elastic/9/MASTER_ADDR"] = b""
    with pytest.raises(RendezvousStateError, match="empty master address"):
        resolve((store, 1, 2))
