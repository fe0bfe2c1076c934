"""The same state on all ranks at the start of a round: gathered reports, one plan, and the transfers of it."""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, Final

import torch

from elastic_warm.agreement import Copy, Key, Plan, Report
from elastic_warm.channel import Channel
from elastic_warm.host_copy import Commit, HostCopies, Part, Slot, parts_of
from elastic_warm.partners import Kept, Partners
from elastic_warm.state_errors import StateError

_logger: Final = logging.getLogger("elastic_warm")


def node_number() -> int:
    """Return the number of this worker's node in the round. 0 if its variable is not set."""
    text = os.environ.get("GROUP_RANK", "")
    return int(text) if text.isascii() and text.isdigit() else 0


def digest_of(outline: Any) -> str:  # noqa: ANN401  # JSON
    """Return a digest of what must be the same on all ranks."""
    return hashlib.sha256(json.dumps(outline).encode()).hexdigest()[:16]


def gathered(channel: Channel, report: Report, outline: Any) -> list[Report]:  # noqa: ANN401  # JSON
    """Return the reports of all ranks. Called: by all ranks.

    Raises:
        StateError: the ranks have states of different structure; the same line on all ranks.
    """
    found = [_report_of(message) for message in channel.gather(json.dumps(astuple(report)).encode())]
    if any(each.outline != found[0].outline for each in found):
        outlines = [json.loads(message) for message in channel.gather(json.dumps(outline).encode())]
        raise _difference(outlines)
    return found


def _report_of(message: bytes) -> Report:
    rank, generation, pristine, can_load, node, outline, copies = json.loads(message)
    return Report(
        rank,
        generation,
        pristine,
        can_load,
        node,
        outline,
        tuple(Copy(Key(*key), *fields, sizes=tuple(sizes)) for key, *fields, sizes in copies),
    )


def _difference(outlines: Sequence[Any]) -> StateError:
    """Return the error that names the first difference to rank 0."""
    hint = "the same State(…) on all ranks, with the same objects in the same order"
    for rank, other in enumerate(outlines):
        if other == outlines[0]:
            continue
        for mine, theirs in zip(outlines[0], other, strict=False):
            if mine != theirs:
                place, first, second = _first_difference(mine, theirs)
                return StateError(f"{place} is {first} on rank 0, and {second} on rank {rank}", hint=hint)
        counts = len(outlines[0]) - 1, len(other) - 1
        return StateError(f"State has {counts[0]} parts on rank 0, and {counts[1]} on rank {rank}", hint=hint)
    return StateError("ranks differ in their State", hint=hint)


def _first_difference(mine: Any, theirs: Any) -> tuple[str, str, str]:  # noqa: ANN401  # JSON
    name = f"state.{mine[0]}"
    if mine[:2] != theirs[:2]:
        return "a part of State", f"{mine[0]!r} ({mine[1]})", f"{theirs[0]!r} ({theirs[1]})"
    for first, second in zip(mine[2], theirs[2], strict=False):
        if first != second:
            return f"{name}, at its first difference,", _short(first), _short(second)
    return f"{name}", f"{len(mine[2])} entries", f"{len(theirs[2])} entries"


def _short(value: Any) -> str:  # noqa: ANN401  # JSON
    text = " ".join(str(each) for each in value) if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else text[:77] + "…"  # noqa: PLR2004  # characters of a line


class Transfer:
    """The transfers of one plan whose source is a commit in memory. Called: by all ranks, in the same order.

    Args:
        channel: The ranks of the new group.
        copies: This rank's slots.
        partners: What this rank keeps for others.
        plan: The plan.
        reports: The reports of all ranks.
    """

    def __init__(
        self, channel: Channel, copies: HostCopies, partners: Partners, plan: Plan, reports: Sequence[Report]
    ) -> None:
        if plan.key is None:
            raise ValueError("a plan without a commit")
        self._channel = channel
        self._copies = copies
        self._partners = partners
        self._plan = plan
        self._key = plan.key
        held = [(report.rank, copy) for report in reports for copy in report.copies if copy.key == plan.key]
        self._common = next(copy for rank, copy in held if copy.has_common and rank == plan.sender)
        self._own = {copy.owner: copy for _, copy in held}
        self._source = copies.of(plan.key)
        """The slot that has the commit already. It is sent from, and not changed."""

    def run(self) -> Slot:
        """Return the slot that has the commit, with this rank's own part unless that is lost.

        A slot in which an interrupted transfer may still write is given up.
        """
        source, rank = self._source, self._channel.rank
        stays = source is not None and (self._owner_of(source) == rank or rank not in self._own)
        if source is not None and stays:
            self._exchange(None)
            return source
        target = self._copies.next(keep=self._key)
        target.drop()
        try:
            self._exchange(target)
        except BaseException:
            target.discard()
            raise
        if source is not None:
            source.drop()
        return target

    def _owner_of(self, slot: Slot) -> int:
        return slot.commit.owner if slot.commit is not None else -1

    def _exchange(self, target: Slot | None) -> None:
        """Send and receive what the plan says, first all descriptions, then all bytes."""
        rank = self._channel.rank
        common_head = self._broadcast_head()
        own_head = self._move_heads()
        if target is None:
            self._broadcast_block(None)
            self._move_blocks(None)
            return
        commit = Commit(
            self._key,
            rank if own_head is not None else -1,
            self._common.world_size,
            self._common.own_needed,
            _without_lost(parts_of(common_head, own_head or b"{}"), own_head is None),
        )
        target.receive(commit)
        if self._source is not None:
            target.common.copy_(self._source.common[: target.common.numel()])
        self._broadcast_block(target)
        kept = self._partners.of(self._key, rank)
        if kept is not None:
            target.own[: kept.block.numel()].copy_(kept.block)
        self._move_blocks(target)
        target.received(commit)

    def _broadcast_head(self) -> bytes:
        """Return the description of the common part."""
        commit = self._source.commit if self._source is not None else None
        head = bytearray(commit.common_head() if commit is not None else self._common.sizes[0])
        if self._plan.receivers:
            self._broadcast(torch.frombuffer(head, dtype=torch.uint8))
        return bytes(head)

    def _broadcast_block(self, target: Slot | None) -> None:
        """Broadcast the common tensors, from the slot that has them into those that are to have them."""
        slot = self._source or target
        size = self._common.sizes[1]
        if self._plan.receivers and size and slot is not None:
            self._broadcast(slot.common[:size])

    def _broadcast(self, data: torch.Tensor) -> None:
        self._channel.broadcast(data, self._plan.sender, keep=self._source is not None)

    def _move_heads(self) -> bytes | None:
        """Return the description of this rank's own part. `None` if it is lost."""
        rank = self._channel.rank
        mine: bytes | bytearray | None = None
        kept = self._partners.of(self._key, rank)
        if kept is not None:
            mine = kept.head
        for move in self._plan.moves:
            if move.holder == rank:
                head, _ = self._own_of(move.owner)
                self._channel.send(torch.frombuffer(bytearray(head), dtype=torch.uint8), move.receiver)
            elif move.receiver == rank:
                mine = bytearray(self._own[move.owner].sizes[2])
                self._channel.receive(torch.frombuffer(mine, dtype=torch.uint8), move.holder)
        return bytes(mine) if mine is not None else None

    def _move_blocks(self, target: Slot | None) -> None:
        rank = self._channel.rank
        for move in self._plan.moves:
            size = self._own[move.owner].sizes[3]
            if move.holder == rank:
                _, block = self._own_of(move.owner)
                self._channel.send(block[:size], move.receiver)
            elif move.receiver == rank and target is not None:
                self._channel.receive(target.own[:size], move.holder)

    def _own_of(self, owner: int) -> tuple[bytes | bytearray, torch.Tensor]:
        """Return the description and the bytes of a rank's own part, from this rank's memory."""
        slot = self._source
        if slot is not None and slot.commit is not None and slot.commit.owner == owner:
            return slot.commit.own_head(), slot.own
        kept: Kept | None = self._partners.of(self._key, owner)
        if kept is None:
            raise StateError(f"the copy of rank {owner}'s own part is gone", hint="a report of this")
        return kept.head, kept.block


def _without_lost(parts: dict[str, Part], own_lost: bool) -> dict[str, Part]:
    """Return the parts without those that were each rank's own and are lost."""
    return {name: part for name, part in parts.items() if not (own_lost and part.is_own)}
