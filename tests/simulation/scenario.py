"""What happens in a simulated run: how many members, and which faults."""

import random

from elastic_core.types import Record

MESSAGES = "messages"
"""Requests and replies are lost, doubled or late; pushes are lost."""
STORE_PAUSE = "store pause"
STORE_DOWN = "store down"
"""The store refuses connections for a while, and keeps its data."""
STORE_FULL = "store full"
"""The store takes no write for a while, but answers reads and renews leases."""
STORE_EMPTIED = "store emptied"
STORE_BACK = "store back"
"""A failover: the last writes, at most `LOST_WRITES_S` of them, are lost."""
PARTITION = "partition"
"""One member is cut off from the store, and from its peers or not."""
SPLIT = "split"
"""Hosts are in groups that do not reach each other; some groups reach the store. Splits may overlap, and heal in any
order."""
UNHEARD = "unheard"
"""Some hosts do not reach the store, and all reach each other; otherwise as a split."""
SIGSTOP = "sigstop"
CRASH = "crash"
"""An agent dies; its guard kills its workers and withdraws its seat."""
POWER = "power"
"""A node is gone without a word."""
ARRIVAL = "arrival"
DEPARTURE = "departure"
"""An agent is told to stop, and stops its workers in its own time."""
FAILURE = "failure"
"""Workers of one node fail."""
FAILURES = "failures"
"""Workers of several nodes fail within moments, some of them only because they lost a peer."""
LEADER = "leader"
"""Workers of a node fail, and whoever leads is gone before it has decided about it."""
FINISH = "finish"
"""The workers of one node end well long before the others."""
DOOR = "door"
"""The store is away for longer than a lease, newcomers wait for it, and some of them reach it before the members."""
REFUSAL = "refusal"
"""A hook of one node refuses for a while: at once if workers are about to start there, else before the next round."""
ORDER = "order"
"""Somebody outside has one node drained, by a word in the store."""
STOPPED = "stopped"
"""Somebody outside has the run stopped, by a word in the store."""
STARVED = "starved"
"""All agents of some hosts get no processor time, again and again, whenever workers start there."""
BLACKOUT = "blackout"
"""All nodes lose power, and others come in their place."""

LOST_WRITES_S = 1.0
STORE_FAULTS = frozenset({STORE_PAUSE, STORE_DOWN, STORE_EMPTIED, STORE_BACK})
STORE_AWAY = frozenset({STORE_PAUSE, STORE_DOWN, DOOR, ARRIVAL, FAILURE, FAILURES})
"""With these alone every member reaches the store again when a newcomer does."""
ALL_FAULTS = STORE_FAULTS | {MESSAGES, PARTITION, SIGSTOP, CRASH, POWER, ARRIVAL, DEPARTURE, FAILURE, FINISH}
ALL_FAULTS |= {SPLIT, UNHEARD, STARVED, FAILURES, LEADER, DOOR, BLACKOUT, REFUSAL, ORDER, STOPPED}


class Scenario(Record, frozen=True, kw_only=True):
    """One kind of run; the seed says when what happens to whom.

    `count` faults of the kinds in `faults` are spread over `fault_s`, the first after `calm_s`. `steady`: nothing in it
    is a reason to end a round, and none may end. `forming_only`: it is over after `calm_s`, all workers
    running. `latency_s`: the longest of a message that is not late. `fatal`: how likely a failure ends the run.
    `thought_s`: how long a policy may think. `split_s`: how long a split lasts at most. `questions`: how many
    questions a node's hook asks in a round; `silent_hooks`: how likely a hook neither answers nor concludes one.
    """

    nodes: int = 4
    min_nodes: int = 2
    max_nodes: int = 6
    spares: int | None = None
    ttl_s: float = 5.0
    first_call_s: float = 1.0
    last_call_s: float = 0.5
    latency_s: float = 0.02
    faults: frozenset[str] = frozenset()
    count: int = 0
    calm_s: float = 4.0
    fault_s: float = 20.0
    noise: float = 0.03
    steady: bool = False
    forming_only: bool = False
    fatal: float = 0.0
    outage_grace_s: float = 120.0
    split_s: float = 30.0
    thought_s: float = 0.3
    questions: int = 0
    silent_hooks: float = 0.2

    @property
    def beyond_grace(self) -> bool:
        """Return whether partitions may last longer than the grace, so that two rounds may train: they are counted."""
        return SPLIT in self.faults and self.fault_s + self.split_s > self.outage_grace_s

    @property
    def exact(self) -> bool:
        """Return whether nothing can come between a failure and the word of it."""
        return self.faults <= {FAILURE, FAILURES, ARRIVAL, FINISH}


def scenario_of(seed: int) -> Scenario:
    """Return the scenario that a seed stands for when only the seed is given."""
    rng = random.Random(seed ^ 0x5EED)
    kinds = sorted(ALL_FAULTS)
    faults = frozenset(rng.sample(kinds, rng.randint(1, 5)))
    if faults & {SPLIT, UNHEARD}:  # a store that forgets while all members of a round are cut off from it is not played
        faults -= {STORE_EMPTIED, STORE_BACK}
    nodes = rng.randint(2, 6)
    return Scenario(
        nodes=nodes,
        min_nodes=rng.randint(1, max(2, nodes - 1)),
        max_nodes=nodes + rng.randint(-1, 2) if nodes > 2 else nodes,
        faults=faults,
        count=rng.randint(1, 5),
        noise=rng.choice((0.01, 0.05)),
        thought_s=rng.choice((0.3, 0.3, 0.3, 12.0)),
    )
