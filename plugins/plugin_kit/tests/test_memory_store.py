"""Our fake store passes the kit that real ones must pass."""

from contextlib import suppress

import pytest

from elastic_core.api import SYSTEM_CLOCK, WaitBudget
from elastic_plugin_kit import CoordinationStoreConformance, MemoryServer, MemoryStore, rendezvous_settings
from elastic_plugin_kit.conformance.store_leases import LeasePromises
from elastic_plugin_kit.conformance.store_run import StoreRun
from memory_kit import Bench


class TestMemoryStore(CoordinationStoreConformance):
    @pytest.fixture(autouse=True)
    def bench(self):
        self._bench = Bench()
        return self._bench

    @pytest.fixture
    def connect(self, bench):
        return bench.connect

    @pytest.fixture
    def pause_server(self, bench):
        return bench.pause

    @pytest.fixture
    def empty_server(self, bench):
        return bench.server.empty

    @pytest.fixture
    def connect_nowhere(self, bench):
        return bench.connect_nowhere

    def pass_time(self, seconds):
        self._bench.pass_time(seconds)


class Moved:
    """This host's clock, moved: a store's whose time also passes by itself."""

    ahead_s = 0.0

    def monotonic_s(self):
        return SYSTEM_CLOCK.monotonic_s() + self.ahead_s

    def wall_ns(self):
        return SYSTEM_CLOCK.wall_ns() + int(self.ahead_s * 1e9)


def test_a_machine_that_stands_still_while_the_clock_is_moved_fails_no_store():
    clock, stalls = Moved(), [0.2]  # enough for a lease to have ended before the kit thinks that it has
    server = MemoryServer(clock=clock)

    def pass_time(seconds):
        clock.ahead_s += seconds
        if stalls:
            WaitBudget().sleep(stalls.pop())

    def connect(run_id):
        return MemoryStore(rendezvous_settings(run_id=run_id), server=server)

    run = StoreRun(connect, lease_s=1.0, pass_time=pass_time)
    with suppress(pytest.skip.Exception):  # a machine that is busy by itself may be too slow three times
        LeasePromises().test_members_leaves_out_whose_lease_has_ended(run)
    run.close()
    assert not stalls


def test_a_machine_that_stands_still_while_leases_are_given_fails_no_store():
    clock, enlisted = Moved(), []
    server = MemoryServer(clock=clock)

    class Stalls(MemoryStore):
        def enlist(self, *args, **kwargs):
            enlisted.append(args)
            if len(enlisted) == 8:  # the first whose lease is to last its whole time
                WaitBudget().sleep(1.1)  # for longer than the lease of the member that speaks
            return super().enlist(*args, **kwargs)

    def pass_time(seconds):
        clock.ahead_s += seconds

    def connect(run_id):
        return Stalls(rendezvous_settings(run_id=run_id), server=server)

    run = StoreRun(connect, lease_s=1.0, pass_time=pass_time)
    with suppress(pytest.skip.Exception):
        LeasePromises().test_a_lease_lasts_its_whole_time_for_every_client(run)
    run.close()
    assert len(enlisted) >= 11
