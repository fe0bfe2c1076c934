"""The barrier at which nodes whose workers have succeeded wait for the other nodes' workers."""

from typing import Any, Final

from elastic_core.api import SYSTEM_CLOCK, Clock, WaitBudget

KEY: Final = "torchelastic/agent/terminal_state"
"""Torch's key, since torch's agents may be among the nodes."""
_LOOK_S: Final = 0.1


def exit_barrier(store: Any, count: int, *, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> None:  # noqa: ANN401
    """Return when `count` nodes have reached the barrier.

    Args:
        store: A store of torch's, or an object with its `add`, `set` and `check`.
        count: The number of nodes, this one included. With 1, no other node is waited for.
        timeout_s: Seconds.
        clock: Clock for the time limit.

    Raises:
        TimeoutError: not all nodes reached it in time.
    """
    if store is None or count <= 1:
        return
    if store.add(f"{KEY}/num_members", 1) >= count:
        store.set(f"{KEY}/last_member", "1")
    end_s = clock.monotonic_s() + timeout_s
    while not store.check([f"{KEY}/last_member"]):
        if clock.monotonic_s() >= end_s:
            raise TimeoutError(f"not all of {count} nodes had finished within {timeout_s:g} s")
        WaitBudget().sleep(_LOOK_S)
