"""The same state on all ranks at the start of a round: gathered reports, one plan, and the transfers of it."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from elastic_warm import objects
from elastic_warm.agreement import Copy, Key, Plan, Report
from elastic_warm.channel import Bucket, Channel
from elastic_warm.host_copy import Commit, Part, Slot, Tensors, copy_all, parts_of, views_of
from elastic_warm.partners import Partners
from elastic_warm.state_errors import StateError
from elastic_warm.values import TensorInfo, offsets_of

_CHUNK: Final = 32 << 20
"""The most bytes of one broadcast."""
_LARGE: Final = 1 << 20
"""From this size on, a tensor travels alone, from the memory of the copy to that of the object."""
_TOGETHER: Final = 1 << 18
"""Up to this size, the common tensors travel with their description, in one broadcast for which all ranks wait."""


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
    row = [*_values_of(report)[:-1], [_values_of(copy) for copy in report.copies]]
    found = [_report_of(message) for message in channel.gather(json.dumps(row).encode())]
    if any(each.outline != found[0].outline for each in found):
        outlines = [json.loads(message) for message in channel.gather(json.dumps(outline).encode())]
        raise _difference(outlines)
    return found


def _values_of(value: Report | Copy) -> list[Any]:
    """Return the values of the fields, in order. `dataclasses.astuple` would copy each of them deeply."""
    return [getattr(value, name) for name in type(value).__slots__]


def _report_of(message: bytes) -> Report:
    rank, generation, pristine, can_load, node, outline, layout, copies = json.loads(message)
    return Report(rank, generation, pristine, can_load, node, outline, layout, tuple(map(_copy_of, copies)))


def _copy_of(row: Any) -> Copy:  # noqa: ANN401  # JSON
    key, owner, world_size, has_common, own_needed, digest, sizes, *divided = row
    return Copy(Key(*key), owner, world_size, has_common, own_needed, digest, tuple(sizes), *divided)


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
    return text if len(text) <= 80 else text[:77] + "…"  # characters of a line


class Arrived(NamedTuple):
    """A commit as it has come to this rank."""

    commit: Commit
    tensors: dict[str, Tensors]
    """The tensors of each part: those of this rank's objects where they fit, else new ones."""


class Transfer:
    """The transfers of one plan whose source is a commit in memory. Called: by all ranks, in the same order.

    A rank that lacks the commit receives it into its objects, and into no other memory: the first touch of new memory
    can take longer than the transfer.

    Args:
        channel: The ranks of the new group.
        source: The slot of this rank that has the commit, or `None`. It is sent from, and not changed.
        partners: What this rank keeps for others.
        plan: The plan.
        reports: The reports of all ranks.
    """

    def __init__(
        self, channel: Channel, source: Slot | None, partners: Partners, plan: Plan, reports: Sequence[Report]
    ) -> None:
        if plan.key is None:
            raise ValueError("a plan without a commit")
        self._channel = channel
        self._source = source
        self._partners = partners
        self._plan = plan
        self.key = plan.key
        held = [(report.rank, copy) for report in reports for copy in report.copies if copy.key == plan.key]
        self._common = next(copy for rank, copy in held if copy.has_common and rank == plan.sender)
        self._own = {copy.owner: copy for _, copy in held}

    def run(self, parts: Mapping[str, Any], restore: Callable[[], None]) -> Arrived | None:
        """Send and receive what the plan says. Return the commit, or `None` if the slot has it with the own part.

        Args:
            parts: The objects of this rank's state by name. What arrives is written into their tensors.
            restore: Returns to the commit of the slot. Called if nothing arrives, while others may still receive.
        """
        rank = self._channel.rank
        held = self._source.commit if self._source is not None else None
        # All descriptions first, then all bytes, but for a few.
        common_head, block = self.broadcast_head(held)
        own_head = self._move_heads()
        if held is not None and (held.owner == rank or rank not in self._own):
            self.broadcast_blocks(held, None, block, restore)
            self._move_blocks(None)
            return None
        described = parts_of(common_head, own_head or b"{}")
        if own_head is None:  # lost, and not needed
            described = {name: part for name, part in described.items() if not part.is_own}
        common = self._common
        commit = Commit(self.key, rank, common.world_size, common.own_needed, described)
        received: dict[str, list[torch.Tensor]]
        if self._source is not None:
            mine = self._source.tensors()
            received = {name: [each.clone() for each in mine[name].common] for name in described}
            self.broadcast_blocks(commit, None, block)
        else:
            received = {name: _targets(parts.get(name), part) for name, part in described.items()}
            self.broadcast_blocks(commit, received, block)
        own = torch.empty(commit.sizes()[1], dtype=torch.uint8)
        kept = self._partners.of(self.key, rank)
        if kept is not None:
            own.copy_(kept.block[: own.numel()])
        self._move_blocks(own)
        views = iter(views_of(own, [info for part in described.values() for info in part.own]))
        return Arrived(
            commit,
            {name: Tensors(received[name], [next(views) for _ in part.own]) for name, part in described.items()},
        )

    def broadcast_head(self, held: Commit | None) -> tuple[bytes, torch.Tensor | None]:
        """Return the description of the common part, and its block if that has come with it."""
        if not self._plan.receivers:
            return (b"" if held is None else held.common_head()), None
        head_size, size = self._common.sizes[:2]
        size = size if size <= _TOGETHER else 0
        content = bytearray(size + head_size)
        data = torch.frombuffer(content, dtype=torch.uint8)
        # Other ranks that have it may have other plain values, whose text is longer: they get those of the sender, too.
        if self._channel.rank == self._plan.sender and held is not None and self._source is not None:
            content[size:] = held.common_head()
            data[:size] = self._source.common[:size]
        self._channel.broadcast(self._plan.sender, [Bucket(len(content), data, [(data, 0)])])
        return bytes(content[size:]), data[:size] if size else None

    def broadcast_blocks(
        self,
        commit: Commit,
        received: Mapping[str, Sequence[torch.Tensor]] | None,
        arrived: torch.Tensor | None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Broadcast the common tensors from the slot that has them.

        Args:
            commit: Their description.
            received: The tensors into which they go. `None` if this rank has them.
            arrived: Their bytes, if they have come already.
            meanwhile: Called in the meantime, or at once if no rank lacks them.
        """
        infos = [info for part in commit.parts.values() for info in part.common]
        targets = None if received is None else [each for tensors in received.values() for each in tensors]
        if self._plan.receivers and arrived is None:
            block = self._source.common if self._source is not None else None
            self._channel.broadcast(self._plan.sender, buckets_of(infos, block, targets), meanwhile)
            return
        if arrived is not None and targets is not None:
            copy_all(targets, views_of(arrived, infos))
        if meanwhile is not None:
            meanwhile()

    def _move_heads(self) -> bytes | None:
        """Return the description of this rank's own part. `None` if it is lost."""
        rank = self._channel.rank
        mine: bytes | bytearray | None = None
        kept = self._partners.of(self.key, rank)
        if kept is not None:
            mine = kept.head
        for move in self._plan.moves:
            if move.holder == rank:
                head, _ = self.own_of(move.owner)
                self._channel.send(torch.frombuffer(bytearray(head), dtype=torch.uint8), move.receiver)
            elif move.receiver == rank:
                mine = bytearray(self._own[move.owner].sizes[2])
                self._channel.receive(torch.frombuffer(mine, dtype=torch.uint8), move.holder)
        return bytes(mine) if mine is not None else None

    def _move_blocks(self, own: torch.Tensor | None) -> None:
        rank = self._channel.rank
        for move in self._plan.moves:
            size = self._own[move.owner].sizes[3]
            if move.holder == rank:
                _, block = self.own_of(move.owner)
                self._channel.send(block[:size], move.receiver)
            elif move.receiver == rank and own is not None:
                self._channel.receive(own[:size], move.holder)

    def own_of(self, owner: int) -> tuple[bytes | bytearray, torch.Tensor]:
        """Return the description and the bytes of a rank's own part, from this rank's memory."""
        slot = self._source
        if slot is not None and slot.commit is not None and slot.commit.owner == owner:
            return slot.commit.own_head(), slot.own
        kept = self._partners.of(self.key, owner)
        if kept is None:
            raise StateError(f"the copy of rank {owner}'s own part is gone", hint="a report of this")
        return kept.head, kept.block


def _targets(value: Any, part: Part) -> list[torch.Tensor]:  # noqa: ANN401  # anything
    """Return the tensors into which a part's common tensors are received: the object's, or new ones in host memory."""
    found = objects.targets_of(value, part)[0]
    return [
        target if target is not None else torch.empty(info.shape, dtype=info.dtype_of_torch)
        for target, info in zip(found, part.common, strict=True)
    ]


def buckets_of(
    infos: Sequence[TensorInfo], block: torch.Tensor | None, targets: Sequence[torch.Tensor] | None
) -> Iterator[Bucket]:
    """Yield the buckets of a block: a large tensor travels alone, in pieces; small ones travel together.

    Args:
        infos: The tensors of the block, the same on all ranks.
        block: The bytes, on the sender.
        targets: The tensors into which they are received, or `None` if they are there already.
    """
    small: list[tuple[int, int, int]] = []  # number, begin and end in the block
    for number, (info, begin) in enumerate(zip(infos, offsets_of(infos)[0], strict=True)):
        end = begin + info.size
        if info.size >= _LARGE:
            for at in range(begin, end, _CHUNK):
                yield _bucket([(number, at, min(end, at + _CHUNK))], at - begin, block, targets)
        elif info.size:
            if small and end - small[0][1] > _CHUNK:
                yield _bucket(small, 0, block, targets)
                small = []
            small.append((number, begin, end))
    if small:
        yield _bucket(small, 0, block, targets)


def _bucket(
    pieces: Sequence[tuple[int, int, int]],
    skipped: int,
    block: torch.Tensor | None,
    targets: Sequence[torch.Tensor] | None,
) -> Bucket:
    """Return the bucket of adjacent pieces: the number of each tensor, and its begin and end in the block.

    Args:
        pieces: The pieces.
        skipped: How many bytes of the first tensor are before its piece.
        block: The bytes, on the sender.
        targets: The tensors into which they are received, or `None`.
    """
    first, last = pieces[0][1], pieces[-1][2]
    places = []
    for number, begin, end in pieces:
        if targets is None:
            break
        data = targets[number].reshape(-1).view(torch.uint8)[skipped : skipped + end - begin]
        places.append((data, begin - first))
    return Bucket(last - first, None if block is None else block[first:last], places)
