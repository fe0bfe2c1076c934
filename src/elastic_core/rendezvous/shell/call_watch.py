"""The consequences of a store call that does not return; its thread can't be interrupted."""

from typing import Final

from elastic_core.errors import RendezvousConnectionError
from elastic_core.plugin_faults import PluginLabel
from elastic_core.rendezvous.shell.driver import Driver, PendingCall
from elastic_core.types import RoundEnded, Undecided

MOMENT_S: Final = 1.0
"""A call that is late by less has no consequence, because a node may be busy; in seconds."""


def late_call(driver: Driver, now_s: float) -> PendingCall | None:
    """Return the call that should have returned a moment ago; `None` if there is none."""
    call = driver.call
    return call if call is not None and now_s - call.due_s >= min(MOMENT_S, driver.ttl_s / 6) else None


def consequence(
    late: PendingCall, driver: Driver, backend: PluginLabel, *, joining: bool, awaits: bool, now_s: float
) -> RoundEnded | Undecided | RendezvousConnectionError | None:
    """Return the end of the round or join that a late call causes; `None` if there is still time.

    A round with workers ends when the lease can't be kept without the call. A join, and a node that waits for the run's
    decision, give up after the connect timeout.

    `joining`: the agent waits for a round. `awaits`: the round was stopped, and the agent waits for the run's
    decision.
    """
    text = f"{late.operation} of {backend} has not returned, {now_s - late.due_s:.1f} s past its wait"
    cut_s, fence_s = driver.stops_s
    if now_s >= cut_s and not joining:
        within_s = max(0.0, fence_s - now_s)
        why = f"{text}, and this node's lease can't be kept without it"
        return RoundEnded(reason=why, lost=(driver.node,), stop_within_s=within_s)
    first_s = driver.first_contact_s
    # If the store was reached before, the whole connect timeout applies again.
    began_s = late.began_s if first_s is None else first_s
    if now_s < max(late.due_s + MOMENT_S, began_s + driver.connect_timeout_s):
        return None
    if awaits:
        return Undecided(reason=text, final=True)
    if joining:
        what = f"{text}: given up after {driver.connect_timeout_s:g} s (--connect-timeout)"
        return RendezvousConnectionError(what, hint=backend.hint)
    return None
