"""Rendezvous rounds for callers without elastic-core's agent: a script, or torch's agent, which polls for changes."""

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from elastic_core.api import (
    ElasticError,
    Failure,
    FailureClass,
    RendezvousHandler,
    RendezvousInfo,
    Restart,
    Stop,
    WaitBudget,
)
from elastic_core.api.rendezvous import AgentServices, Decided, Resumed, RoundChange, Suspended
from elastic_core.embedding import DEFAULT_LEASE_TTL_S


class RoundStore(Protocol):
    """The store through which the nodes of a round exchange messages."""

    def offer(self) -> int:
        """Return the port that this node would have as rank 0. Called: before each round."""
        ...

    def meet(self, info: RendezvousInfo, over: Callable[[], bool]) -> tuple[Any, int] | None:
        """Return torch's store for the round, and the port for the worker of rank 0. `None` if the round is over."""
        ...

    def close(self) -> None:
        """Release the port; idempotent. Called: when this node has left."""
        ...


class AloneRounds:
    """Joins rounds, detects that one is over, and leaves.

    A round that is over for any reason (a node joined, left or was lost, another one begins anew, the run has failed)
    is over for all nodes: each that detects it joins the next one.

    Threading: one thread at a time; the rendezvous keeps the node's lease on a thread of its own.
    """

    def __init__(
        self,
        handler: RendezvousHandler,
        stores: RoundStore,
        *,
        warn: Callable[[str], None],
        rule: str,
    ) -> None:
        """Connect to nothing yet.

        Args:
            handler: A handler that decides for the whole run.
            stores: Provides a store for each round.
            warn: Shows one line to people.
            rule: The rule that is recorded with this node's decisions.
        """
        self._handler = handler
        self._stores = stores
        self._warn = warn
        self._rule = rule
        self._in_round = False
        self._over = False
        self._told = False
        self._shut = False
        atexit.register(self.leave)

    def join(self, *, again: str) -> tuple[RendezvousInfo, Any, int]:
        """Block until there is a round with this node in it. Return it, its store, and the port of rank 0's worker.

        If the last round still runs, end it for all nodes; `again` is the reason.
        """
        if self._goes_on():
            self._decide(Restart(rule=self._rule), again)
        while True:
            info = self._join()
            met = self._stores.meet(info, self.is_over)
            if met is not None:
                return info, *met

    def is_over(self) -> bool:
        """Return whether the round is over and all must join the next. Sends no request: only known changes count."""
        if self._in_round and not self._over:
            self._look(0.0)
        return self._over

    def end(self) -> bool:
        """Leave, and end the run for all nodes: with success, unless an exception is being raised."""
        if self._goes_on():
            failed = sys.exc_info()[1]
            if failed is None:
                self._handler.set_closed()
            else:
                self._decide(Stop(reason=f"{self._rule} has no restart left", rule=self._rule), self._summary(failed))
        return self.leave()

    def leave(self) -> bool:
        """Release this node's seat; idempotent. Called: at exit, too: not every program shuts down after a signal."""
        if self._shut:
            return True
        self._shut = True
        atexit.unregister(self.leave)
        self._handler.announce_departure()
        left = self._handler.shutdown()
        self._stores.close()
        return left

    # --- inside

    def _goes_on(self) -> bool:
        """Return whether there is a round that this node could end."""
        return self._in_round and not self.is_over() and not self._handler.is_closed()

    def _join(self) -> RendezvousInfo:
        self._in_round = False
        self._handler.wait = WaitBudget()
        info = self._handler.next_rendezvous()
        assert isinstance(info, RendezvousInfo)  # the core's own rendezvous
        self._in_round, self._over = True, False
        return info

    def _decide(self, decision: Restart | Stop, summary: str) -> None:
        """Publish a decision, and wait until it is valid, at most for the time of a lease."""
        failure = Failure(
            failure_class=FailureClass.EXIT,
            summary=summary,
            node_id=self._handler.settings.node_id or os.uname().nodename,
            round_index=0,
            at_s=0.0,
            uptime_s=0.0,
        )
        self._handler.publish(decision, failure)
        lease_s = self._handler.settings.options.get("lease_ttl")
        self._look(float(lease_s) if isinstance(lease_s, (int, float)) else DEFAULT_LEASE_TTL_S)

    def _look(self, timeout_s: float) -> None:
        self._handler.wait = WaitBudget()  # a fresh one: each call leaves a listener with it
        try:
            change = self._handler.watch(timeout_s)
        except ElasticError as error:
            # Nobody keeps this node's lease any more: the others will go on without it.
            if not self._told:
                self._warn(str(error))
            self._told = self._over = True
            return
        self._over = self._over or _ends(change)

    def _summary(self, error: BaseException) -> str:
        """Return in one line why this node gives up: the failed rank, if torch's error names it."""
        first = getattr(error, "get_first_failure", None)
        if first is None:
            return f"{self._rule} failed: {type(error).__name__}"
        rank, failure = first()
        return f"rank {rank} failed with exit code {failure.exitcode}"


class AloneServices(AgentServices):
    """The services of elastic-core's handlers without an agent."""

    def __init__(self, stores: RoundStore, warn: Callable[[str], None]) -> None:
        """Keep both."""
        self._stores = stores
        self._warn = warn

    def reserve_port(self) -> int:
        """Return the port of the round's store on this node."""
        return self._stores.offer()

    def notice(self, text: str) -> None:
        """Show one line to people."""
        self._warn(text)


def _ends(change: RoundChange | None) -> bool:
    """Return whether workers must be restarted. After a success they may run on; there is just no further round."""
    if change is None or isinstance(change, (Suspended, Resumed)):
        return False
    done = isinstance(change, Decided) and isinstance(change.decision, Stop) and change.decision.outcome == "done"
    return not done
