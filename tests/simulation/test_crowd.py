"""What a large run asks of its store: requests and bytes of a node, and how many requests come at once.

Everyday tests have up to a thousand nodes; `make simulate` has ten thousand, which takes minutes.
"""

import os

import pytest

from simulation.crowd import REQUEST_S, WINDOW_S, Crowd

LONG = "SIMULATE_SEEDS" in os.environ
SIZES = [256, 1_024, *([10_000] if LONG else [])]
ENTRY_BYTES = 64
FIXED_BYTES = 8 * 1024
"""What a node moves at most beside the roster."""
AWAY_S = 0.3
LEADERS = 3
"""The leader and its deputies read all members."""


def counts(crowd):
    """Return of all nodes but the leaders, sorted: requests beside renewals and the watches after them, and bytes.

    Also return the most requests that waited in the store at a time.
    """
    members, queue = crowd.counted()
    moved = sorted(moved for _, moved in members[LEADERS:])
    return sorted(requests.total() - 2 * requests["Renew"] for requests, _ in members[LEADERS:]), moved, queue


@pytest.mark.timeout(0 if LONG else 240)
@pytest.mark.parametrize("nodes", SIZES)
def test_a_node_of_many_costs_the_store_no_more_and_none_is_given_up(nodes):
    """A store serves `1 / REQUEST_S` requests a second: if more came for long, none would be answered in time."""
    crowd = Crowd(nodes)
    roster = ENTRY_BYTES * nodes
    served = WINDOW_S / REQUEST_S

    assert crowd.until(lambda: crowd.calm, within_s=30), "a round of all"
    requests, moved, _ = counts(crowd)
    assert requests[-1] <= 16
    assert moved[len(moved) // 2] <= roster + FIXED_BYTES
    assert moved[-1] <= 2 * roster + FIXED_BYTES  # the round is written between two reads

    began_s = crowd.net.now_s
    crowd.pass_s(5)
    requests, moved, _ = counts(crowd)
    assert requests[-1] <= 2
    assert crowd.net.busiest(began_s) <= served

    # All connections break at once, and the store comes back with its content.
    crowd.net.restart(AWAY_S)
    crowd.pass_s(AWAY_S)
    counts(crowd)
    began_s = crowd.net.now_s
    assert crowd.until(lambda: crowd.calm, within_s=30), "all are back"
    requests, moved, queue = counts(crowd)
    assert requests[-1] <= 8
    assert moved[len(moved) // 2] <= roster + FIXED_BYTES
    assert crowd.net.busiest(began_s) <= max(served, nodes)
    assert queue * REQUEST_S <= crowd.patience_s
    assert not crowd.changes

    # A node dies: the others all hear it, and ask in turn whether they lead now.
    crowd.pass_s(5)
    counts(crowd)
    began_s = crowd.net.now_s
    crowd.members[nodes // 2].die()
    assert crowd.until(lambda: len(crowd.changes) == nodes - 1, within_s=15), "all hear of the loss"
    requests, _, _ = counts(crowd)
    assert requests[-1] <= 12
    assert crowd.unanswered == 0
