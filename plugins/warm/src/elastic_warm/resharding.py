"""The transfers of a commit whose sharded tensors are divided anew among the ranks of the new group."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import torch

from elastic_warm.agreement import Plan, Report
from elastic_warm.channel import Channel
from elastic_warm.division import Held, Message, Packed, Routes
from elastic_warm.host_copy import Commit, Part, Slot, Tensors, copy_all, parts_of, views_of
from elastic_warm.layouts import divided_anew
from elastic_warm.objects import targets_of
from elastic_warm.partners import Partners
from elastic_warm.sync import Arrived, Transfer
from elastic_warm.values import TensorInfo, offsets_of

_LIMIT: Final = 16 << 20
"""The most bytes of a message between two ranks."""


class _Local(NamedTuple):
    """What this rank has of a rank of the old group, in the memory of the copies."""

    shards: Sequence[torch.Tensor]
    """The local parts of the sharded tensors, in order."""
    random: Mapping[str, tuple[Part, list[torch.Tensor]]]
    """The parts that are that rank's alone, such as its random state."""


class Resharding:
    """Gives each rank the part of each sharded tensor that its objects have, from the ranks that have it in memory.

    No rank has a whole tensor at any time: pieces are sent from the copies, and received into the objects, by way of
    two buffers of at most 16 MiB where they are not adjacent in memory. The copies are not changed.
    Called: by all ranks.

    Args:
        channel: The ranks of the new group.
        source: The slot of this rank that has the commit, or `None`.
        partners: What this rank keeps for others.
        plan: A plan with `anew`.
        reports: The reports of all ranks.

    Attributes:
        received: How many bytes this rank has received of sharded tensors.
    """

    def __init__(
        self, channel: Channel, source: Slot | None, partners: Partners, plan: Plan, reports: Sequence[Report]
    ) -> None:
        self.received = 0
        self._transfer = Transfer(channel, source, partners, plan, reports)
        self._channel = channel
        self._source = source
        self._plan = plan
        copies = [(report.rank, copy) for report in reports for copy in report.copies if copy.key == plan.key]
        self._held = [Held(rank, copy.owner) for rank, copy in copies]
        self._head_sizes = {copy.owner: copy.sizes[2] for _, copy in copies}
        self._out = self._in = torch.empty(0, dtype=torch.uint8)

    def run(self, parts: Mapping[str, Any]) -> Arrived:
        """Send and receive. Return the commit as it is for this rank. What arrives is written into the objects.

        Args:
            parts: The objects of this rank's state by name, on the mesh of the new group.
        """
        rank = self._channel.rank
        held = self._source.commit if self._source is not None else None
        head, block = self._transfer.broadcast_head(held)
        locals_ = {each.owner: self._local(head, each.owner) for each in self._held if each.rank == rank}
        random = self._move_random(head, locals_)
        described = {name: part for name, part in parts_of(head, b"{}").items() if not part.is_own}
        made, tensors = divided_anew(parts, described, rank)
        targets = {name: _targets(parts.get(name), part) for name, part in made.items()}
        made |= {name: part for name, (part, _) in random.items()}
        targets |= {name: Tensors([], own) for name, (_, own) in random.items()}
        commit = Commit(self._transfer.key, rank, self._channel.size, True, made)
        self._receive_common(commit, targets, block)
        own = [target for name in described for target in targets[name].own]
        with torch.no_grad():
            self._exchange(Routes(tensors, self._held, _LIMIT), locals_, own)
        return Arrived(commit, targets)

    def _local(self, head: bytes, owner: int) -> _Local:
        own_head, block = self._transfer.own_of(owner)
        parts = parts_of(head, bytes(own_head))
        views = iter(views_of(block, [info for part in parts.values() for info in part.own]))
        tensors = {name: [next(views) for _ in part.own] for name, part in parts.items()}
        shards = [each for name, part in parts.items() if not part.is_own for each in tensors[name]]
        return _Local(shards, {name: (part, tensors[name]) for name, part in parts.items() if part.is_own})

    def _receive_common(self, commit: Commit, targets: Mapping[str, Tensors], block: torch.Tensor | None) -> None:
        """Bring what is the same on all ranks into the objects, from this rank's copy if it has one.

        Args:
            commit: The commit.
            targets: The tensors of the objects.
            block: The bytes, if they have come with the description.
        """
        slot = self._source
        if slot is None:
            self._transfer.broadcast_blocks(commit, {name: each.common for name, each in targets.items()}, block)
            return
        mine = slot.tensors()

        def copy() -> None:
            with torch.no_grad():
                for name, each in targets.items():
                    copy_all(each.common, mine[name].common if each.common else [])

        self._transfer.broadcast_blocks(commit, None, block, copy)

    # --- random state

    def _move_random(self, head: bytes, locals_: Mapping[int, _Local]) -> Mapping[str, tuple[Part, list[torch.Tensor]]]:
        """Return the parts that are those of this rank number alone. Empty if they are lost, or the number is new."""
        rank = self._channel.rank
        found = locals_[rank].random if rank in locals_ else {}
        for move in self._plan.moves:
            if move.holder == rank:
                own_head, _ = self._transfer.own_of(move.owner)
                self._channel.send(torch.frombuffer(bytearray(own_head), dtype=torch.uint8), move.receiver)
                parts = locals_[move.owner].random.values()
                infos, block = _block_of([part for part, _ in parts])
                copy_all(views_of(block, infos), [each for _, tensors in parts for each in tensors])
                self._channel.send(block, move.receiver)
            elif move.receiver == rank:
                own_head = bytearray(self._head_sizes[move.owner])
                self._channel.receive(torch.frombuffer(own_head, dtype=torch.uint8), move.holder)
                described = {name: part for name, part in parts_of(head, bytes(own_head)).items() if part.is_own}
                infos, block = _block_of(list(described.values()))
                self._channel.receive(block, move.holder)
                views = iter(views_of(block, infos))
                found = {name: (part, [next(views) for _ in part.own]) for name, part in described.items()}
        return found

    # --- shards

    def _exchange(self, routes: Routes, locals_: Mapping[int, _Local], own: Sequence[torch.Tensor]) -> None:
        """Copy the pieces that are here, then exchange the others: in each turn, each rank has one to send to."""
        rank, size = self._channel.rank, self._channel.size
        for message in routes.messages(rank, rank):
            for packed in message.pieces:
                _target_of(own, packed).copy_(_source_of(locals_, packed))
        for turn in range(1, size):
            receiver, sender = (rank + turn) % size, (rank - turn) % size
            pairs = zip_longest(routes.messages(rank, receiver), routes.messages(sender, rank))
            for out, into in pairs:
                sent = self._packed(locals_, out) if out is not None else None
                room = self._room_for(own, into) if into is not None else None
                self._channel.exchange(sent, receiver, room, sender)
                if into is not None and room is not None:
                    self.received += into.size
                    _unpack(own, into, room)
        self._out = self._in = torch.empty(0, dtype=torch.uint8)

    def _packed(self, locals_: Mapping[int, _Local], message: Message) -> torch.Tensor:
        """Return the bytes of a message, where they are if they are adjacent."""
        if len(message.pieces) == 1:
            source = _source_of(locals_, message.pieces[0])
            if source.is_contiguous():
                return _bytes_of(source)
        if self._out.numel() < message.size:
            self._out = torch.empty(message.size, dtype=torch.uint8)
        for packed in message.pieces:
            source = _source_of(locals_, packed)
            _view_in(self._out, packed, source.dtype).copy_(source)
        return self._out[: message.size]

    def _room_for(self, own: Sequence[torch.Tensor], message: Message) -> torch.Tensor:
        """Return the memory into which a message is received: that of the object if it is adjacent and of the CPU."""
        if len(message.pieces) == 1:
            target = _target_of(own, message.pieces[0])
            if target.is_contiguous() and target.device.type == "cpu":
                return _bytes_of(target)
        if self._in.numel() < message.size:
            self._in = torch.empty(message.size, dtype=torch.uint8)
        return self._in[: message.size]


def _targets(value: Any, part: Part) -> Tensors:  # noqa: ANN401  # anything
    """Return the tensors into which a part is received: the object's, or new ones in host memory."""
    found = targets_of(value, part)
    common, own = (
        [
            target if target is not None else torch.empty(info.shape, dtype=info.dtype_of_torch)
            for target, info in zip(targets, infos, strict=True)
        ]
        for targets, infos in zip(found, (part.common, part.own), strict=True)
    )
    return Tensors(common, own)


def _block_of(parts: Sequence[Part]) -> tuple[list[TensorInfo], torch.Tensor]:
    """Return the own tensors of parts, and memory for them."""
    infos = [info for part in parts for info in part.own]
    return infos, torch.empty(offsets_of(infos)[1], dtype=torch.uint8)


def _source_of(locals_: Mapping[int, _Local], packed: Packed) -> torch.Tensor:
    return _box(locals_[packed.owner].shards[packed.tensor], packed.piece.source, packed.piece.lengths)


def _target_of(own: Sequence[torch.Tensor], packed: Packed) -> torch.Tensor:
    return _box(own[packed.tensor], packed.piece.target, packed.piece.lengths)


def _box(tensor: torch.Tensor, begin: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
    return tensor[tuple(slice(at, at + length) for at, length in zip(begin, lengths, strict=True))]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _view_in(block: torch.Tensor, packed: Packed, dtype: torch.dtype) -> torch.Tensor:
    return block[packed.at : packed.at + packed.size].view(dtype).view(packed.piece.lengths)


def _unpack(own: Sequence[torch.Tensor], message: Message, room: torch.Tensor) -> None:
    """Copy the pieces of a message to where they belong, if they are not there already."""
    for packed in message.pieces:
        target = _target_of(own, packed)
        if target.data_ptr() != room.data_ptr():
            target.copy_(_view_in(room, packed, target.dtype))
