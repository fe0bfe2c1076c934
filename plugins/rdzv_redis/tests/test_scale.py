"""What operations cost the server when a run has a thousand members, and what an idle one asks of it."""

import time

import pytest

from elastic_core.api import WaitBudget
from patience import kept, patience

MEMBERS = 1024
RECORD = b"r" * 300


@pytest.fixture
def store(make_store, redis_server):
    return make_store(redis_server.endpoint)


def test_a_renewal_costs_the_server_no_more_with_a_thousand_members(store, redis_server):
    wait = WaitBudget.lasting(patience(60))  # for two thousand calls

    def server_us(call, times):
        """Return microseconds of the server for one call of a script, of several shares of calls the least.

        In some of them another process may have had the server's turn, and a clock measures that, too.
        """
        found = []
        for _ in range(8):
            redis_server.call("CONFIG RESETSTAT")
            for _ in range(times // 8):
                call()
            stats = redis_server.call("INFO commandstats")
            (line,) = [line for line in stats.split("\r\n") if line.startswith("cmdstat_evalsha:")]
            found.append(float(line.partition("usec_per_call=")[2].partition(",")[0]))
        return min(found)

    def enlist(at):
        return store.enlist(RECORD, incarnation=f"member-{at}", ttl_s=60, wait=wait)

    few = [enlist(at) for at in range(8)]
    with_few = {
        "renew": server_us(lambda: store.renew(few[4], ttl_s=60, wait=wait), 200),
        "update": server_us(lambda: store.update(few[4], RECORD, wait=wait), 200),
    }
    many = few + [enlist(at) for at in range(8, MEMBERS)]
    assert [seat.ahead for seat in many] == list(range(MEMBERS))
    with_many = {
        "renew": server_us(lambda: store.renew(many[500], ttl_s=60, wait=wait), 200),
        "update": server_us(lambda: store.update(many[500], RECORD, wait=wait), 200),
    }
    # Logarithmic: a cost that grew with the members would be a hundred times as high.
    for operation, cost_us in with_many.items():
        assert cost_us < 10 * with_few[operation] + 20, (with_few, with_many)

    began_s = time.monotonic()
    for seat in many:
        assert store.renew(seat, ttl_s=60, wait=wait).live == MEMBERS
    print(f"{MEMBERS} renewals, one after another: {time.monotonic() - began_s:.3f} s; server: {with_few} {with_many}")
    kept(time.monotonic() - began_s, 5)
    began_s = time.monotonic()
    assert [len(member.record) for member in store.members(wait=wait).members] == [len(RECORD)] * MEMBERS
    print(f"members(): {(time.monotonic() - began_s) * 1000:.1f} ms")
