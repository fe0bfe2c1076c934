"""The timers of a rendezvous without an agent: they run while a call blocks, and those that were put off go at once."""

from elastic_plugin_kit import MemoryServer, MemoryStore, rendezvous_settings
from elastic_torchrun.rendezvous.blocking_rendezvous import BlockingRendezvous


def test_a_timer_that_is_put_off_at_each_renewal_leaves_nothing():
    settings = rendezvous_settings(run_id="bert")
    caller = BlockingRendezvous(MemoryStore(settings, server=MemoryServer()), settings)._attached()
    called, timers = [], []
    for number in range(100):
        timers.append(caller.call_later(0.0, lambda number=number: called.append(number)))
        if number < 98:
            timers[-1].cancel()
    assert len(caller._timers) == 2
    caller._run_timers()
    assert (called, caller._timers) == ([98, 99], [])
