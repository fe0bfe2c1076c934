"""Promises about every call: cancellation, deadlines, servers that are paused or missing, and the end."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import ClassVar, Final

import pytest

from elastic_core.api import CoordinationStore, ElasticError, WaitBudget
from elastic_core.api.stores import (
    BackendError,
    BackendUnavailableError,
    OutcomeUnknownError,
    Revisions,
    Seat,
    Topic,
    WaitCancelledError,
    WaitExpiredError,
)
from elastic_plugin_kit.conformance.kit import Kit, Started, cancel_s, late_s, settle
from elastic_plugin_kit.conformance.kit_process import nothing_left
from elastic_plugin_kit.conformance.requirements import Requirements
from elastic_plugin_kit.conformance.store_run import CALL_S, KEEP_S, Pause, StoreRun, budget

DEADLINE_S: Final = 0.3
LATE_S: Final = 0.5
"""How much later than its deadline a call may end on a busy machine."""
OPEN_S: Final = 5.0
"""A server that is not there must be known within this time: on this host a connection is refused at once."""

READS: Final = frozenset({"connect", "members", "load", "survey", "watch"})
"""The calls that write nothing."""

Call = Callable[[CoordinationStore, WaitBudget], object]


class WaitPromises(Kit):
    """No call outlasts its budget."""

    def test_a_cancelled_budget_ends_every_call(self, run: StoreRun) -> None:
        """At once, with WaitCancelledError, and nothing is written."""
        client = run.client()
        seat = client.enlist(record=b"old")
        wait = budget()
        wait.cancel()
        for name, call in _calls(seat, run.lease_s).items():
            ended = Started(partial(call, client.store, wait)).ended(within_s=cancel_s(), what=name)
            assert isinstance(ended.error, WaitCancelledError), (
                f"{name} with a cancelled budget: {_told(ended.error)}; expected WaitCancelledError"
            )
        assert client.records() == {seat.number: b"old"}, (
            "a call with a cancelled budget wrote a record; expected no write"
        )
        assert client.load() is None, "a swap with a cancelled budget wrote a document; expected no write"

    def test_a_passed_deadline_ends_every_call(self, run: StoreRun) -> None:
        """At once, with WaitExpiredError, and nothing is written."""
        client = run.client()
        seat = client.enlist(record=b"old")
        for name, call in _calls(seat, run.lease_s).items():
            work = Started(partial(call, client.store, WaitBudget.lasting(0)))
            ended = work.ended(within_s=late_s(LATE_S), what=f"{name} whose deadline has passed")
            assert isinstance(ended.error, WaitExpiredError), (
                f"{name}, its deadline passed: {_told(ended.error)}; expected WaitExpiredError"
            )
        assert client.records() == {seat.number: b"old"}, (
            "a call whose deadline had passed wrote a record; expected no write"
        )
        assert client.load() is None, "a swap whose deadline had passed wrote a document; expected no write"

    def test_one_budget_serves_many_calls(self, run: StoreRun) -> None:
        """Nothing of a call is left on its budget that a later cancellation could hurt."""
        client, wait = run.client(), budget()
        for _ in range(20):
            client.watch(Revisions(), Topic.MEMBERS, timeout_s=0, wait=wait)
        wait.cancel()
        client.enlist()
        assert len(client.members().members) == 1, (
            "cancelling an earlier call's budget broke the client; expected no effect on later calls"
        )

    def test_a_client_may_change_threads(self, run: StoreRun) -> None:
        """One thread at a time, not always the same."""
        client = run.client()
        for count in range(3):
            Started(client.enlist).ended(within_s=5, what="enlist on another thread").value()
            assert len(client.members().members) == count + 1


class ClosePromises(Kit):
    """`close` is always safe."""

    def test_close_is_idempotent(self, run: StoreRun) -> None:
        """Also on a client that has never connected."""
        for store in (run.client().store, run.store()):
            store.close()
            store.close()

    def test_close_may_come_from_another_thread(self, run: StoreRun) -> None:
        """When no call is under way."""
        client = run.client()
        client.watch(Revisions(), Topic.MEMBERS, timeout_s=0)
        Started(client.store.close).ended(within_s=5, what="close").value()

    def test_close_leaves_members_and_other_clients_alone(self, run: StoreRun) -> None:
        """A client's end is not its member's: the lease is what counts."""
        client, other = run.client(), run.client()
        seat = client.enlist()
        client.store.close()
        assert other.numbers() == [seat.number], (
            "close removed the client's member; expected it to stay until its lease ends"
        )
        assert other.renew(seat) is not None

    def test_close_leaves_nothing(self, run: StoreRun) -> None:
        """Threads, sockets and files end with the client."""
        for last in (False, True):
            # What is imported or cached at the first time is no leak.
            with nothing_left("the client") if last else nullcontext():
                client = run.client()
                seat = client.enlist()
                client.watch(Revisions(), Topic.MEMBERS, timeout_s=0)
                client.withdraw(seat)
                client.store.close()


class TroublePromises(Kit):
    """A server that is paused, or is missing."""

    requirements: ClassVar[Requirements] = Requirements()
    """What the store can't do, and why."""

    def test_writes_to_a_paused_server_end_at_their_deadline(self, run: StoreRun, pause_server: Pause) -> None:
        """With an error that distinguishes whether the write may have happened. The client works again afterwards."""
        _expect_deadlines(_each_on_its_own_client(run, reads=False), pause_server)

    def test_reads_of_a_paused_server_end_at_their_deadline(self, run: StoreRun, pause_server: Pause) -> None:
        """So do calls that write nothing, unless the store declares that they are served."""
        if self.requirements.paused_reads_wait:
            pytest.skip(self.requirements.paused_reads_wait)
        _expect_deadlines(_each_on_its_own_client(run, reads=True), pause_server)

    def test_writes_to_a_paused_server_end_when_cancelled(self, run: StoreRun, pause_server: Pause) -> None:
        """Within 100 ms, with WaitCancelledError. The client works again afterwards."""
        _expect_cancellation(_each_on_its_own_client(run, reads=False), pause_server)

    def test_reads_of_a_paused_server_end_when_cancelled(self, run: StoreRun, pause_server: Pause) -> None:
        """So do calls that write nothing, unless the store declares that they are served."""
        if self.requirements.paused_reads_wait:
            pytest.skip(self.requirements.paused_reads_wait)
        _expect_cancellation(_each_on_its_own_client(run, reads=True), pause_server)

    def test_unavailable_means_that_nothing_was_written(self, run: StoreRun, pause_server: Pause) -> None:
        """A request that a paused server may still carry out has an unknown outcome."""
        client, other = run.client(), run.client()
        with pause_server():
            wait = WaitBudget.lasting(DEADLINE_S)
            work = Started(lambda: client.store.enlist(b"late", incarnation="late", ttl_s=run.long_s, wait=wait))
            error = work.ended(within_s=DEADLINE_S + late_s(LATE_S), what="enlist to a server that is paused").error
        settle(0.3)
        if other.members().members:
            assert not isinstance(error, BackendUnavailableError), (
                "enlist raised BackendUnavailableError, and the member exists; expected OutcomeUnknownError"
            )
        seat = client.enlist("late")
        assert other.numbers() == [seat.number], "a repeated enlist of unknown outcome left two members; expected one"

    def test_a_server_that_is_not_there_is_unavailable(self, connect_nowhere: Callable[[], CoordinationStore]) -> None:
        """Every call says so, in one line, and soon."""
        store = connect_nowhere()
        seat = Seat(number=1, incarnation="x", ahead=0)
        for name, call in _calls(seat, 10.0).items():
            work = Started(partial(call, store, budget()))
            ended = work.ended(within_s=OPEN_S, what=f"{name} to a server that is not there")
            assert isinstance(ended.error, BackendUnavailableError), (
                f"{name}, no server: {_told(ended.error)}; expected BackendUnavailableError"
            )
            assert "\n" not in str(ended.error), f"{name}: the error's text has several lines; expected one"
        store.close()


def _calls(seat: Seat, ttl_s: float) -> dict[str, Call]:
    """Return every blocking method with arguments that would write where it can."""
    return {
        "connect": lambda store, wait: store.connect(wait=wait),
        "enlist": lambda store, wait: store.enlist(b"new", incarnation=seat.incarnation, ttl_s=ttl_s, wait=wait),
        "update": lambda store, wait: store.update(seat, b"new", wait=wait),
        "renew": lambda store, wait: store.renew(seat, ttl_s=ttl_s, wait=wait),
        "members": lambda store, wait: store.members(wait=wait),
        "load": lambda store, wait: store.load("round", wait=wait),
        "survey": lambda store, wait: store.survey(("round",), wait=wait),
        "swap": lambda store, wait: store.swap("round", b"new", expect=None, keep_s=KEEP_S, wait=wait),
        "watch": lambda store, wait: store.watch(Revisions(), (), timeout_s=1.0, wait=wait),
        "withdraw": lambda store, wait: store.withdraw(seat, wait=wait),
    }


def _each_on_its_own_client(run: StoreRun, *, reads: bool) -> dict[str, tuple[CoordinationStore, Call]]:
    """Return every call that reads, or that writes, and for each a client that no other call uses."""
    calls = _calls(run.client().enlist(record=b"old"), run.long_s)
    return {name: (run.client().store, call) for name, call in calls.items() if (name in READS) == reads}


def _expect_deadlines(calls: dict[str, tuple[CoordinationStore, Call]], pause_server: Pause) -> None:
    with pause_server():
        started = {
            name: Started(partial(call, store, WaitBudget.lasting(DEADLINE_S))) for name, (store, call) in calls.items()
        }
        ends = {name: work.ended(within_s=DEADLINE_S + late_s(LATE_S), what=name) for name, work in started.items()}
    for name, ended in ends.items():
        assert isinstance(ended.error, (BackendUnavailableError, OutcomeUnknownError, WaitExpiredError)), (
            f"{name} to a paused server: {_told(ended.error)}; "
            "expected BackendUnavailableError, OutcomeUnknownError or WaitExpiredError"
        )
    _expect_of_use(calls)


def _expect_cancellation(calls: dict[str, tuple[CoordinationStore, Call]], pause_server: Pause) -> None:
    with pause_server():
        for name, (store, call) in calls.items():
            wait = WaitBudget.lasting(4)
            work = Started(partial(call, store, wait))
            settle(0.05)
            wait.cancel()
            ended = work.ended(within_s=cancel_s(), what=f"{name} that was cancelled")
            assert isinstance(ended.error, WaitCancelledError), (
                f"{name} that was cancelled: {_told(ended.error)}; expected WaitCancelledError"
            )
    _expect_of_use(calls)


def _expect_of_use(calls: dict[str, tuple[CoordinationStore, Call]]) -> None:
    for name, (store, _) in calls.items():
        again = Started(partial(store.members, wait=budget())).ended(within_s=CALL_S, what="members")
        assert again.error is None, (
            f"after {name} failed, `members` of the same client failed; expected a new connection: {_told(again.error)}"
        )


def _told(error: BaseException | None) -> str:
    if error is None:
        return "no error was raised"
    known = isinstance(error, (BackendError, ElasticError))
    return f"{error!r} was raised" + ("" if known else ", which is no error of the contract")
