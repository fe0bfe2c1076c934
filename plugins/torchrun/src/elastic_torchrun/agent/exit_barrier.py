"""Where nodes whose workers have ended well wait for those of the others."""

from typing import Any, Final

from elastic_core.api import SYSTEM_CLOCK, Clock, WaitBudget

KEY: Final = "torchelastic/agent/terminal_state"
"""torch's, for its agents may be among them."""
_LOOK_S: Final = 0.1


def exit_barrier(store: Any, count: int, *, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> None:  # noqa: ANN401
    """Return when `count` nodes have come here.

    Args:
        store: torch's, or one with its `add`, `set` and `check`.
        count: This node is one of them; with 1 nobody is waited for.
        timeout_s: Seconds.
        clock: For the time limit.

    Raises:
        TimeoutError: not all came in time.
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
