"""Calls that nobody can wake: made on a thread of their own, which may be left waiting, but not unawares."""

import threading

import pytest

from elastic_core.api import WaitBudget
from elastic_core.api.stores import WaitExpiredError
from elastic_torchrun.rendezvous import blocking_calls
from elastic_torchrun.rendezvous.blocking_calls import Asker
from patience import patience


def threads():
    return [each for each in threading.enumerate() if each.name == "asker"]


@pytest.fixture
def asker(monkeypatch):
    monkeypatch.setattr(blocking_calls, "END_S", patience(30))  # a limit for calls that never end
    asker = Asker("asker")
    yield asker
    asker.close()
    assert not threads()


def test_a_call_gives_what_it_returns_or_raises(asker):
    assert asker.ask(lambda: 7, wait=WaitBudget.lasting(5)) == 7
    with pytest.raises(ZeroDivisionError):
        asker.ask(lambda: 1 // 0, wait=WaitBudget.lasting(5))
    asker.close()
    assert asker.ask(lambda: 8, wait=WaitBudget.lasting(5)) == 8


def test_the_end_waits_until_a_call_that_was_given_up_is_over(asker):
    """Its thread would abort a process that ends while it is in C++."""
    entered, release = threading.Event(), threading.Event()

    def call():
        entered.set()
        release.wait(30)

    with pytest.raises(WaitExpiredError):
        asker.ask(call, wait=WaitBudget.lasting(0.3))
    assert entered.wait(30)
    threading.Timer(0.05, release.set).start()
    asker.close()
    assert not threads()
