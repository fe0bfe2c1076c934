"""A run's store for commands from outside the run: its content, and orders to its nodes.

An order ends some nodes, or all. Every client that can write a run's store can give orders; the store checks clients by
password or certificate. Fields that another version has written in the document are kept.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from elastic_core.api import SYSTEM_CLOCK, Clock, ConfigError, Record, WaitBudget, decode_json
from elastic_core.api.commands import StoreChoice, open_store
from elastic_core.api.rendezvous import RendezvousConnectionError
from elastic_core.api.stores import (
    CONTROL_KEY,
    ROUND_KEY,
    STORE_KEEP_S,
    BackendUnavailableError,
    Document,
    OutcomeUnknownError,
    Survey,
    WaitExpiredError,
)
from elastic_ops.stored_run import StoredDrain, stored_run

_GONE: Final = 32
"""The number of orders to nodes that have left that are kept, for repeated requests: the document does not grow."""
_MOST_TRIES: Final = 100
"""The number of tries at a document that members of a large run write at the same time."""

_T = TypeVar("_T")


class StoreReading(Record, frozen=True, kw_only=True):
    """The content of a store from one read, and the duration of the read."""

    survey: Survey
    """The content."""
    latency_s: float
    """Duration in seconds."""


class StoreReader:
    """Reads a run's content, and never writes. It connects at the first `read`, and again after a failure.

    Threading: one thread.
    """

    def __init__(self, choice: StoreChoice, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Choose the plugin; connect to nothing.

        Raises:
            PluginError: there is no such backend, or it is broken.
            ConfigError: the backend has no store, or rejects endpoint or options.
        """
        self.choice = choice
        self._clock = clock
        self._connected = False
        self._store = open_store(choice)

    @property
    def where(self) -> str:
        """The server as text for people, without secrets."""
        return self._store.where

    @property
    def hosted_by_member(self) -> bool:
        """Whether the run hosts the server itself, so that it ends with the run."""
        return self._store.hosted_by_member

    def read(self) -> StoreReading:
        """Return the run's content in the store.

        Raises:
            RendezvousConnectionError: the server did not respond in time.
            BackendRefusedError: the server rejects this client.
        """

        def survey(wait: WaitBudget) -> StoreReading:
            began_s = self._clock.monotonic_s()
            survey = self._store.survey((CONTROL_KEY, ROUND_KEY), wait=wait)
            return StoreReading(survey=survey, latency_s=self._clock.monotonic_s() - began_s)

        return self._call(survey)

    def _call(self, call: Callable[[WaitBudget], _T]) -> _T:
        """Make a call to the connected store; raises as `read` does."""
        wait = WaitBudget.lasting(self.choice.limit_s, clock=self._clock)
        try:
            if not self._connected:
                self._store.connect(wait=wait)
                self._connected = True
            return call(wait)
        except (BackendUnavailableError, WaitExpiredError) as err:
            self._connected = False
            raise self._away(err) from err

    def _away(self, err: BackendUnavailableError | WaitExpiredError) -> RendezvousConnectionError:
        if isinstance(err, WaitExpiredError):
            what, hint = f"no answer within {self.choice.limit_s:g} s", "a longer --connect-timeout"
        else:
            what, hint = err.what, err.hint
        told = what if self.where in what else f"{self.where}: {what}"
        return RendezvousConnectionError(told, hint=hint or "check that the server runs, and the --rdzv-endpoint")

    def close(self) -> None:
        """Close the connections."""
        self._store.close()


class StoreWriter(StoreReader):
    """Reads a run's content, and orders its nodes to end. Threading: one thread."""

    def order_drain(self, nodes: Mapping[str, str] | None, *, by: str, grace_s: float | None = None) -> tuple[str, ...]:
        """Order members to end, as after SIGTERM to their agents. Return those that had no such order yet.

        The order stays in the store until they have read it. A repeated order changes nothing, unless it has a time
        limit for workers.

        Args:
            nodes: Ids of nodes by the incarnations of their members. `None` means all, later nodes included, so that
                the run ends with this as its result. Its one "incarnation" is empty.
            by: The requesting user, for people.
            grace_s: Time limit for their workers. `None` means the run's own.

        Raises:
            ConfigError: there is no such run.
            RendezvousConnectionError: the server did not respond in time.
            BackendRefusedError: the server rejects this client, or its write.
        """
        wanted = {"": ""} if nodes is None else nodes
        for _ in range(_MOST_TRIES):
            live = {"", *(member.incarnation for member in self.read().survey.members)}
            found = self._load()
            if found is None:
                raise ConfigError(f"no run {self.choice.run_id!r} in {self.where}", hint="its --rdzv-id")
            control = stored_run(Survey(members=(), documents={CONTROL_KEY: found.value})).control
            assert control is not None
            standing = {order.incarnation: order for order in control.drains}
            fresh = tuple(one for one in wanted if one not in standing)
            changed = [one for one in wanted if one in fresh or grace_s not in (None, standing[one].grace_s)]
            if control.verdict is not None or not changed:
                return fresh
            others = [order for order in control.drains if order.incarnation not in changed]
            gone = [order for order in others if order.incarnation not in live]
            kept = (order for order in others if order not in gone[:-_GONE])
            orders = (
                *kept,
                *(StoredDrain(incarnation=one, node=wanted[one], by=by, grace_s=grace_s) for one in changed),
            )
            if self._swap(found, orders):
                return fresh
        raise RendezvousConnectionError(
            f"{self.where}: other clients change the run's document faster than it can be written"
        )

    def _load(self) -> Document | None:
        return self._call(lambda wait: self._store.load(CONTROL_KEY, wait=wait))

    def _swap(self, found: Document, orders: Sequence[StoredDrain]) -> bool:
        """Write orders to the control document. False if another client wrote first, or the outcome is not known."""
        document = decode_json(found.value, dict[str, Any]) | {"drains": [_plain(order) for order in orders]}
        raw = msgspec.json.encode(document)
        try:
            swapped = self._call(
                lambda wait: self._store.swap(CONTROL_KEY, raw, expect=found.version, keep_s=STORE_KEEP_S, wait=wait)
            )
        except OutcomeUnknownError:
            return False
        return swapped.applied


def _plain(order: StoredDrain) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(order).items() if value is not None}
