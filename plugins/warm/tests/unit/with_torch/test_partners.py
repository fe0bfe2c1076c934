"""Copies on another rank whose transfer is under way when its round is over: they have no part in the next round."""

import threading
import weakref
from functools import partial

import pytest
import torch
import torch.distributed as dist

import elastic_warm as warm
from elastic_warm import partners as module
from elastic_warm.agreement import Copy, Key
from elastic_warm.host_copy import SLOTS
from elastic_warm.partners import Kept, Partners
from elastic_warm.state_errors import StateError
from interrupts import Interrupt, cut_at
from patience import patience


class Group:
    """The new group of a rank, of two."""

    rank, size = 0, 2

    def side_group(self):
        return self


class Gloo:
    """Plays the other rank, which sends what this one sends; each wait is noted, and ends when the test wants."""

    def __init__(self):
        self.waits = threading.Semaphore(0)
        self.ends = threading.Semaphore(0)
        self.error = None
        self.of_thread = threading.local()
        """One that was left behind may go on beside that of the next round: each has a group of its own."""

    def isend(self, data, to, *, group):
        self.of_thread.sent = data.clone()
        return self

    def irecv(self, data, sender, *, group):
        data.copy_(self.of_thread.sent)
        return self

    def all_reduce(self, data, *, group):
        self.wait()

    def wait(self):
        self.waits.release()
        assert self.ends.acquire(timeout=patience(60))
        if self.error is not None:
            raise self.error

    def until_waiting(self):
        assert self.waits.acquire(timeout=patience(60))


@pytest.fixture
def gloo(monkeypatch):
    gloo = Gloo()
    for name in ("isend", "irecv", "all_reduce"):
        monkeypatch.setattr(dist, name, getattr(gloo, name))
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    yield gloo
    gloo.ends.release(100)


@pytest.fixture
def slot():
    state = warm.State(part=torch.arange(4.0), sharded=True, random=False)
    state.commit()
    return state._copies.newest()


def begin(partners):
    partners.join_group(Group(), [1, 0])


def left_behind(partners, slot, gloo, *, steps):
    """Let a transfer wait for the other rank after some steps of it, and end its round."""
    begin(partners)
    partners.send(slot)
    thread = partners._sending.thread
    for _ in range(steps):
        gloo.until_waiting()
        gloo.ends.release()
    gloo.until_waiting()
    partners.end()
    assert thread.is_alive()
    return thread


def test_a_transfer_of_two_ranks_keeps_the_other_s_part(slot, gloo):
    partners = Partners()
    begin(partners)
    gloo.ends.release(100)
    partners.send(slot)
    partners.wait()
    assert [copy.key for copy in partners.copies()] == [slot.commit.key]
    assert partners.copies()[0].owner == slot.commit.owner


@pytest.mark.parametrize("steps", [0, 2, 4, 6], ids=["before it keeps anything", "heads", "tensors", "confirmation"])
def test_an_error_of_a_round_that_is_over_is_no_error_of_the_next(slot, gloo, steps):
    partners = Partners()
    thread = left_behind(partners, slot, gloo, steps=steps)
    begin(partners)
    gloo.error = RuntimeError("Connection closed by peer")
    gloo.ends.release(100)
    thread.join(patience(60))
    assert not thread.is_alive()
    partners.wait()


@pytest.mark.parametrize("steps", [0, 2, 4])
def test_a_transfer_of_a_round_that_is_over_changes_nothing_that_is_kept(slot, gloo, steps):
    partners = Partners()
    thread = left_behind(partners, slot, gloo, steps=steps)
    begin(partners)
    whole = [Copy(Key(5, serial, serial), 1, 2, False, True) for serial in range(SLOTS)]
    partners.kept = tuple(Kept() for _ in whole)
    for kept, commit in zip(partners.kept, whole, strict=True):
        kept.commit = commit
        kept.block = torch.full((4,), 7, dtype=torch.uint8)
    gloo.ends.release(100)
    thread.join(patience(60))
    assert not thread.is_alive()
    partners.end()
    assert partners.copies() == whole
    assert all(kept.block.tolist() == [7] * 4 for kept in partners.kept)


@pytest.mark.parametrize("call", ["wait", "send", "end"])
def test_an_interrupt_at_any_line_can_be_followed_by_another_round(slot, gloo, call):
    gloo.ends.release(10_000)
    done, line = False, 0
    while not done:
        line += 1
        partners = Partners()
        begin(partners)
        for _ in range(2):
            partners.send(slot)
            partners.wait()
        if call != "send":
            partners.send(slot)
        calls = {"wait": partners.wait, "send": partial(partners.send, slot), "end": partners.end}
        done = cut_at(line, calls[call])
        partners.end()
        assert {copy.key for copy in partners.copies()} == {slot.commit.key}
        begin(partners)
        for _ in range(3):
            partners.send(slot)
            partners.wait()
        assert len(partners.kept) <= SLOTS
    assert line > 3


def test_a_commit_after_an_interrupted_one_is_refused(slot, gloo, monkeypatch):
    partners = Partners()
    begin(partners)

    def start(thread):
        raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(Interrupt):
            partners.send(slot)
    with pytest.raises(StateError, match=r"the commit before was interrupted\. Try: sync\(\) on all ranks"):
        partners.wait()
    partners.end()
    begin(partners)
    gloo.ends.release(100)
    partners.send(slot)
    partners.wait()


class Net:
    """Has a group, as a model in DistributedDataParallel does."""


def test_an_error_does_not_keep_what_the_script_has(slot, gloo):
    partners = Partners()
    begin(partners)
    gloo.error = RuntimeError("Connection closed by peer")
    gloo.ends.release(100)
    partners.send(slot)
    nets = []

    def train():
        net = Net()
        nets.append(weakref.ref(net))
        partners.wait()

    for _ in range(2):  # it stays an error until the next round
        with pytest.raises(RuntimeError, match="Connection closed by peer") as caught:
            train()
        del caught
        assert nets.pop()() is None, "its connections must end, since other ranks wait for that"
