"""The end of nodes through their run's store, from any host that reaches it."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from elastic_core.api import SYSTEM_CLOCK, ConfigError, ElasticError, WaitBudget
from elastic_core.api.commands import StoreChoice, echo
from elastic_core.api.rendezvous import RendezvousConnectionError
from elastic_core.api.tools import user_name
from elastic_ops.ending.options import asker
from elastic_ops.run_target import no_such_run
from elastic_ops.store import StoreWriter
from elastic_ops.stored_run import StoredMember, StoredRun, stored_run

_LOOK_EVERY_S: Final = 0.25
_NAMES: Final = 8


class StoreEnding:
    """One run in a store, of which nodes are to end.

    Args:
        choice: The run's store.
        deadline_s: Time limit for their workers. `None` means the run's own.
        timeout_s: How long to wait until the nodes have left; 0 means no wait.
        user: The run's user. `None` means this process's user.
    """

    def __init__(
        self, choice: StoreChoice, *, deadline_s: float | None, timeout_s: float, user: str | None = None
    ) -> None:
        """Choose the plugin; connect to nothing."""
        self._choice = choice
        self._deadline_s = deadline_s
        self._timeout_s = timeout_s
        self._user = user
        self._writer = StoreWriter(choice)

    def close(self) -> None:
        """Close the connections."""
        self._writer.close()

    def stop(self) -> None:
        """End the run on all its nodes, and print the result.

        Raises:
            ConfigError: there is no such run, or it is another user's.
            ElasticError: some have not ended in time.
        """
        run = self._read()
        if run.control is not None and run.control.verdict is not None:
            echo(f"run {self._choice.run_id!r} has ended already: {_verdict(run)}")
            return
        members = _live(run)
        fresh = self._writer.order_drain(None, by=asker("stop"), grace_s=self._deadline_s)
        asked = "is to stop" if fresh else "was asked to stop before"
        echo(f"run {self._choice.run_id!r} {asked}: {_names([record.node for record in members.values()])}")
        last = self._wait_for(None, run)
        if last is not None:
            echo(f"run {self._choice.run_id!r} has ended: {_verdict(last)}")

    def drain(self, names: Sequence[str]) -> None:
        """End these nodes, and print the result.

        Raises:
            ConfigError: there is no such run or node, or it is another user's.
            ElasticError: some have not ended in time.
        """
        run = self._read()
        if run.control is not None and run.control.verdict is not None:
            echo(f"run {self._choice.run_id!r} has ended already: {_verdict(run)}")
            return
        found = dict(pair for name in names for pair in self._find(name, run).items())
        if not found:
            return
        shown = _names(list(found.values()))
        fresh = self._writer.order_drain(found, by=asker("drain"), grace_s=self._deadline_s)
        asked = "to leave" if fresh else "asked to leave before"
        echo(f"run {self._choice.run_id!r}: {asked}: {shown}")
        if self._wait_for(frozenset(found), run) is not None:
            echo(f"run {self._choice.run_id!r}: has left: {shown}")

    # --- the run

    def _read(self) -> StoredRun:
        run = stored_run(self._writer.read().survey)
        if run.control is None:
            raise no_such_run(self._choice.run_id, self._writer.where)
        owner, mine = run.control.user, self._user or user_name()
        if owner and owner != mine:
            raise ConfigError(
                f"run {self._choice.run_id!r} was started by user {owner!r}; expected {mine!r}",
                hint=f"your own --rdzv-id, or --user {owner} if it is yours",
            )
        return run

    def _find(self, name: str, run: StoredRun) -> dict[str, str]:
        """Return the node of a name, by its incarnation; empty if it has left."""
        live = _live(run)
        exact = {one: record.node for one, record in live.items() if record.node == name}
        found = exact or {
            one: record.node
            for one, record in live.items()
            if name in (record.node.partition("@")[0], record.node.rpartition("@")[2], record.address)
        }
        if len(found) > 1 and not exact:
            raise ConfigError(f"{name!r} may be any of {_names(list(found.values()))}", hint="a node's full id")
        if not found:
            self._gone(name, run, [record.node for record in live.values()])
        return found

    def _gone(self, name: str, run: StoredRun, here: list[str]) -> None:
        known = {entry.node for entry in run.round.roster} if run.round is not None else set()
        known |= {order.node for order in run.control.drains} if run.control is not None else set()
        if name in known:
            echo(f"run {self._choice.run_id!r}: {name} has left it already")
            return
        near = get_close_matches(name, here, n=1)
        raise ConfigError(
            f"run {self._choice.run_id!r} has no node {name!r}; it has {_names(here)}",
            hint=repr(near[0]) if near else "elastic status with the same options shows their ids",
        )

    # --- the effect

    def _wait_for(self, incarnations: frozenset[str] | None, run: StoredRun) -> StoredRun | None:
        """Return the run after these have left (`None`: all nodes).

        `None` without a wait, or if the store has ended, too.

        Raises:
            ElasticError: they have not left in time.
        """
        if not self._timeout_s:
            return None
        pause = WaitBudget()
        end_s = SYSTEM_CLOCK.monotonic_s() + self._timeout_s
        while True:
            left = [
                record
                for incarnation, record in _live(run).items()
                if incarnations is None or incarnation in incarnations
            ]
            if not left:
                return run
            if SYSTEM_CLOCK.monotonic_s() >= end_s:
                raise self._late(left)
            pause.sleep(_LOOK_EVERY_S)
            try:
                run = stored_run(self._writer.read().survey)
            except RendezvousConnectionError:
                if not self._writer.hosted_by_member:
                    raise
                echo(f"run {self._choice.run_id!r}: its store has gone, with the node that kept it")
                return None

    def _late(self, left: list[StoredMember]) -> ElasticError:
        shown = _names([f"{record.node} ({record.state})" for record in left])
        return ElasticError(
            f"run {self._choice.run_id!r}: not ended after {self._timeout_s:g} s: {shown}; the request stays",
            hint="the same again: --timeout waits longer, --deadline gives their workers less time",
        )


def _live(run: StoredRun) -> dict[str, StoredMember]:
    """Return the members of this run that have renewed their seats, by incarnation."""
    epoch = "" if run.control is None else run.control.epoch
    return {one: record for one, record in run.members if one not in run.silent and record.epoch == epoch}


def _verdict(run: StoredRun) -> str:
    verdict = None if run.control is None else run.control.verdict
    if verdict is None:
        return "all its nodes have gone"
    return f"{verdict.decision.reason} (exit code {verdict.exit_code})"


def _names(nodes: list[str]) -> str:
    """Return the nodes as text for people."""
    if not nodes:
        return "no node is alive"
    more = f" and {len(nodes) - _NAMES} more" if len(nodes) > _NAMES else ""
    count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    return f"{count} ({', '.join(nodes[:_NAMES])}{more})"
