"""The kit for stores: tests the promises of `CoordinationStore`, on which the core's rendezvous relies."""

from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from elastic_core.api import CoordinationStore, WaitBudget
from elastic_plugin_kit.conformance.store_calls import ClosePromises, TroublePromises, WaitPromises
from elastic_plugin_kit.conformance.store_documents import DocumentPromises, SwapPromises
from elastic_plugin_kit.conformance.store_leases import LeasePromises, PausePromises, RenewalPromises
from elastic_plugin_kit.conformance.store_run import Connect, Pause, StoreRun
from elastic_plugin_kit.conformance.store_seats import DeclarationPromises, LeavingPromises, SeatPromises
from elastic_plugin_kit.conformance.store_survey import SurveyPromises
from elastic_plugin_kit.conformance.store_watch import (
    ResetPromises,
    RevisionPromises,
    WatchEndPromises,
    WatchPromises,
)


class CoordinationStoreConformance(
    DeclarationPromises,
    SeatPromises,
    LeavingPromises,
    RenewalPromises,
    LeasePromises,
    PausePromises,
    SwapPromises,
    DocumentPromises,
    SurveyPromises,
    RevisionPromises,
    WatchPromises,
    ResetPromises,
    WatchEndPromises,
    WaitPromises,
    ClosePromises,
    TroublePromises,
):
    """Subclass it and give the fixture `connect`.

    `connect` returns a function that takes a run id and returns a new client of that run, not yet connected. (One that
    takes no argument, for a run of this test's own, is enough; the test with two runs is then skipped.)

    Some tests need three more fixtures, and are skipped without them:

    - `pause_server` returns a function that gives a context manager: inside of it the server sends no replies and
      keeps its content (SIGSTOP, for example);
    - `empty_server` returns a function that makes the server lose all content, as an operator would: remove the file,
      flush the server, put an empty one in its place (deleting rows through a client of the store's own is not that);
    - `connect_nowhere` returns a function that gives a client of an endpoint without a server.

    A store declares what it can't have by its nature, with the reason: `requirements = Requirements(
    paused_reads_wait="readers of the write-ahead log see a snapshot")`. The tests that need it are skipped with that.

    Times are the store's own: a test waits for real leases of `lease_s`, or of the store's `min_ttl_s` if that is more.
    A server that lives in this process needs a clock which the tests' clients don't share (`ManualClock`, moved by
    `pass_time`, say): one test moves all clocks of this process, as if it ran on another host.
    """

    page: ClassVar[str] = "coordination_store.md"

    lease_s: ClassVar[float] = 1.0
    """Leases whose end a test waits for; longer where the server or the machine is slow."""

    @pytest.fixture
    def connect(self) -> Connect:
        """Return a function that makes a new client: the one fixture that a subclass must give."""
        pytest.fail(f"{type(self).__name__} must give the fixture `connect`: a function from a run id to a new client")

    @pytest.fixture
    def pause_server(self) -> Pause:
        """Return what pauses the server; not declared here."""
        pytest.skip(self.requirements.pause or "the fixture `pause_server` is not given")

    @pytest.fixture
    def empty_server(self) -> Callable[[], None]:
        """Return what empties the server; not declared here."""
        pytest.skip(self.requirements.empty or "the fixture `empty_server` is not given")

    @pytest.fixture
    def connect_nowhere(self) -> Callable[[], CoordinationStore]:
        """Return what makes a client without a server; not declared here."""
        pytest.skip(self.requirements.nowhere or "the fixture `connect_nowhere` is not given")

    @pytest.fixture
    def run(self, connect: Connect) -> Iterator[StoreRun]:
        """Give a run of the test's own, and close its clients in the end."""
        run = StoreRun(connect, lease_s=self.lease_s, pass_time=self.pass_time)
        yield run
        run.close()

    def pass_time(self, seconds: float) -> None:
        """Let time pass on the store's clock; a store whose clock the test holds overrides it."""
        WaitBudget().sleep(seconds)
