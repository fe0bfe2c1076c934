"""Orders to a run's nodes by its store, from somebody who takes no part in the run: that nodes end, or all of them.

Whoever can write a run's store can give them: it asks who that is, by password or certificate. The document keeps what
another version has written in it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from elastic_core.cli.store_reader import StoreReader
from elastic_core.encoding import decode_json
from elastic_core.errors import ConfigError, OutcomeUnknownError, RendezvousConnectionError
from elastic_core.rendezvous.member.leader import KEEP_S
from elastic_core.rendezvous.store import CONTROL_KEY, Document, Survey
from elastic_core.rendezvous.stored_run import StoredDrain, stored_run

_GONE: Final = 32
"""So many orders to nodes that have gone since stay, for those who ask again: the document does not grow."""
_MOST_TRIES: Final = 100
"""Of a document that members of a large run write at the same time."""


class StoreWriter(StoreReader):
    """Reads a run's content, and has its nodes end. Threading: one thread."""

    def order_drain(self, nodes: Mapping[str, str] | None, *, by: str, grace_s: float | None = None) -> tuple[str, ...]:
        """Have members end as SIGTERM to their agents would have them; return those that had no such order yet.

        The order stands in the store until they have read it. A repeated one changes nothing, unless it says how long
        workers have.

        Args:
            nodes: Ids of nodes by the incarnations of their members; None: all, those that come later as well, and
                with them the run, whose verdict says so. Its one "incarnation" is empty.
            by: Who wants it, for people.
            grace_s: How long their workers have to end; None: as the run's options say.

        Raises:
            ConfigError: there is no such run.
            RendezvousConnectionError: the server did not answer in time.
            BackendRefusedError: it answered, and will not serve us, or not let us write.
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
        raise RendezvousConnectionError(f"{self.where}: the run's document changes too fast to be written")

    def _load(self) -> Document | None:
        return self._call(lambda wait: self._store.load(CONTROL_KEY, wait=wait))

    def _swap(self, found: Document, orders: Sequence[StoredDrain]) -> bool:
        """Put orders into the control document; False: somebody was faster, or it is not known whether it was done."""
        document = decode_json(found.value, dict[str, Any]) | {"drains": [_plain(order) for order in orders]}
        raw = msgspec.json.encode(document)
        try:
            swapped = self._call(
                lambda wait: self._store.swap(CONTROL_KEY, raw, expect=found.version, keep_s=KEEP_S, wait=wait)
            )
        except OutcomeUnknownError:
            return False
        return swapped.applied


def _plain(order: StoredDrain) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(order).items() if value is not None}
