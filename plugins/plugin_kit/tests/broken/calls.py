"""Stores that are wrong about errors, deadlines, closing, or themselves."""

import threading

from broken.base import Cracked, caught_by, replace
from elastic_core.api import OptionSpec, WaitBudget
from elastic_core.api.stores import BackendUnavailableError, OutcomeUnknownError, WaitExpiredError


class _Deaf(WaitBudget):
    """A budget that hears no cancellation."""

    def __init__(self, wait):
        super().__init__()
        self._wait = wait

    def remaining_s(self, at_most_s=None):
        return self._wait.remaining_s(at_most_s)


@caught_by(
    "watch_ends_when_cancelled",
    "a_cancelled_budget_ends_every_call",
    "reads_of_a_paused_server_end_when_cancelled",
)
class WatchIgnoresCancellation(Cracked):
    def watch(self, since, topics, *, timeout_s, wait):
        return super().watch(since, topics, timeout_s=timeout_s, wait=_Deaf(wait))


@caught_by(
    "a_passed_deadline_ends_every_call",
    "reads_of_a_paused_server_end_at_their_deadline",
    "watch_ends_at_its_deadline",
)
class DeadlinesAreIgnored(Cracked):
    """Every call has a timeout of its own."""

    def connect(self, *, wait):
        return super().connect(wait=_patient(wait))

    def watch(self, since, topics, *, timeout_s, wait):
        return super().watch(since, topics, timeout_s=timeout_s, wait=_patient(wait))


def _patient(wait):
    longer = WaitBudget.lasting(3)
    wait.on_cancel(longer.cancel)
    return longer


@caught_by("unavailable_means_that_nothing_was_written")
class UnknownIsCalledUnavailable(Cracked):
    """A lost reply passes for a request that was not carried out."""

    def enlist(self, record, **given):
        try:
            return super().enlist(record, **given)
        except OutcomeUnknownError as err:
            raise BackendUnavailableError(str(err)) from err


@caught_by(
    "a_server_that_is_not_there_is_unavailable",
    "a_passed_deadline_ends_every_call",
    "reads_of_a_paused_server_end_at_their_deadline",
)
class ErrorsAreTheClientLibrarys(Cracked):
    """Nothing is translated."""

    def load(self, key, *, wait):
        try:
            return super().load(key, wait=wait)
        except (BackendUnavailableError, WaitExpiredError) as err:
            raise TimeoutError("timed out") from err


@caught_by(
    "reads_of_a_paused_server_end_at_their_deadline",
    "a_passed_deadline_ends_every_call",
)
class OneFailureIsTheEnd(Cracked):
    """After an error the connection is not opened again."""

    broken = False

    def members(self, *, wait):
        if self.broken:
            raise BackendUnavailableError("the connection is closed")
        try:
            return super().members(wait=wait)
        except BackendUnavailableError:
            self.broken = True
            raise
        except WaitExpiredError:
            self.broken = True
            raise


@caught_by("one_budget_serves_many_calls")
class ACancelledBudgetClosesTheClient(Cracked):
    """Also long after the call that it was for."""

    def watch(self, since, topics, *, timeout_s, wait):
        seen = super().watch(since, topics, timeout_s=timeout_s, wait=wait)
        wait.on_cancel(self.close)
        return seen


@caught_by(
    "a_client_may_change_threads",
    "a_cancelled_budget_ends_every_call",
    "a_passed_deadline_ends_every_call",
    "a_server_that_is_not_there_is_unavailable",
    "writes_to_a_paused_server_end_at_their_deadline",
    "writes_to_a_paused_server_end_when_cancelled",
    "concurrent_enlists_get_seats_of_their_own",
    "concurrent_enlists_of_one_incarnation_share_a_seat",
)
class EnlistIsForOneThread(Cracked):
    """The connection belongs to the thread that has opened it."""

    def connect(self, *, wait):
        self.thread = threading.current_thread()
        return super().connect(wait=wait)

    def enlist(self, record, **given):
        if self.thread is not threading.current_thread():
            raise RuntimeError("used on another thread")
        return super().enlist(record, **given)


@caught_by("close_may_come_from_another_thread")
class CloseIsForOneThread(Cracked):
    def __init__(self, settings, **given):
        super().__init__(settings, **given)
        self._thread = threading.get_ident()

    def close(self):
        if self._thread != threading.get_ident():
            raise RuntimeError("closed by another thread")
        super().close()


@caught_by("connect_returns_this_hosts_address")
class ConnectReturnsAName(Cracked):
    def connect(self, *, wait):
        super().connect(wait=wait)
        return "localhost"


@caught_by("the_shortest_lease_is_a_time")
class LeasesOfNoTime(Cracked):
    min_ttl_s = 0.0


@caught_by("close_is_idempotent")
class CloseOnce(Cracked):
    def close(self):
        if self._closed:
            raise ValueError("closed already")
        super().close()


@caught_by("close_leaves_nothing")
class CloseLeavesAThread(Cracked):
    """One that keeps a connection alive, say."""

    def connect(self, *, wait):
        threading.Thread(target=threading.Event().wait, args=(30,), daemon=True).start()
        return super().connect(wait=wait)


@caught_by("close_leaves_members_and_other_clients_alone")
class CloseWithdraws(Cracked):
    """The client's end is taken for the member's."""

    seat = None

    def enlist(self, record, **given):
        self.seat = super().enlist(record, **given)
        return self.seat

    def close(self):
        if self.seat is not None and not self._closed:
            super().withdraw(self.seat, wait=WaitBudget.lasting(1))
        super().close()


@caught_by("the_api_version_is_stated", states_its_version=False)
class InheritsItsVersion(Cracked):
    """Nobody can tell which interface it was written for."""


@caught_by("the_options_are_declared_well")
class OptionsWithoutHelp(Cracked):
    options = (OptionSpec(name="Prefix"),)


@caught_by("where_is_a_line_without_secrets")
class WhereTellsThePassword(Cracked):
    def __init__(self, settings, **given):
        super().__init__(replace(settings, endpoint="memory://user:secret@here"), **given)

    @property
    def where(self):
        return self.settings.endpoint
