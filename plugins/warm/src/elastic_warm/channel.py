"""Bytes between the ranks of the new group: gathered, broadcast, and sent from one rank to another."""

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch

_FIRST: Final = 1024
"""Bytes that each rank sends in the first gather: its length in 8 bytes, then its message if that fits."""
_LENGTH: Final = 8
_AHEAD: Final = 4
"""How many broadcasts are under way at once."""


def distributed() -> Any:  # noqa: ANN401  # a module
    """Return torch.distributed if a process group exists, else `None`. Imports nothing."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


class Bucket(NamedTuple):
    """Some bytes of a broadcast."""

    size: int
    source: torch.Tensor | None
    """The bytes, `[size]`, uint8. Only the sender needs them."""
    targets: Sequence[tuple[torch.Tensor, int]]
    """Where they go: tensors of uint8, each with its offset in the bucket. A rank that has the bytes has none."""


class Channel:
    """The default process group of this moment, or a process alone.

    Attributes:
        rank: The rank of this process.
        size: The number of ranks.
    """

    def __init__(self) -> None:
        dist = distributed()
        self._dist = dist
        self.rank: int = dist.get_rank() if dist else 0
        self.size: int = dist.get_world_size() if dist else 1
        self._device = _device_of(dist)
        self._has_gloo = dist is not None and self._device.type == "cpu" and _backend_of_cpu(dist) == "gloo"
        self._side: Callable[[], Any] = _nothing
        self._unused = torch.empty(0, dtype=torch.uint8)

    def gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all ranks, by rank. Called: by all ranks. Quick if all are short."""
        if self.size == 1:
            return [message]
        first = bytearray(_FIRST)
        first[:_LENGTH] = len(message).to_bytes(_LENGTH, "big")
        if len(message) <= _FIRST - _LENGTH:
            first[_LENGTH : _LENGTH + len(message)] = message
        found = self._gather_by_first(first) if self._has_gloo else self._all_gather(first)
        lengths = [int.from_bytes(each[:_LENGTH], "big") for each in found]
        longest = max(lengths)
        if longest <= _FIRST - _LENGTH:
            return [bytes(each[_LENGTH : _LENGTH + length]) for each, length in zip(found, lengths, strict=True)]
        whole = self._all_gather(bytearray(message.ljust(longest, b"\0")))
        return [bytes(each[:length]) for each, length in zip(whole, lengths, strict=True)]

    def _gather_by_first(self, data: bytearray) -> list[bytearray]:
        """Return the bytes of all ranks, which rank 0 collects and distributes.

        An `all_gather` of gloo passes each part from rank to rank in a ring. With more ranks than processors, each of
        these steps has to wait until a process gets a processor: among 8 ranks on two, it takes three times as long.
        """
        mine = torch.frombuffer(data, dtype=torch.uint8)
        whole = bytearray(len(data) * self.size)
        target = torch.frombuffer(whole, dtype=torch.uint8)
        self._dist.gather(mine, list(target.split(len(data))) if self.rank == 0 else None)
        self._dist.broadcast(target, 0)
        return [whole[at : at + len(data)] for at in range(0, len(whole), len(data))]

    def _all_gather(self, data: bytearray) -> list[bytearray]:
        mine = torch.frombuffer(data, dtype=torch.uint8).to(self._device)
        buffers = [bytearray(len(data)) for _ in range(self.size)]
        targets = [torch.frombuffer(buffer, dtype=torch.uint8) for buffer in buffers]
        if self._device.type == "cpu":
            self._dist.all_gather(targets, mine)
            return buffers
        found = [torch.empty_like(mine) for _ in range(self.size)]
        self._dist.all_gather(found, mine)
        for target, each in zip(targets, found, strict=True):
            target.copy_(each)
        return buffers

    def broadcast(self, sender: int, buckets: Iterable[Bucket], meanwhile: Callable[[], None] | None = None) -> None:
        """Broadcast bytes from one rank to the others, several buckets at once. Called: by all ranks.

        Args:
            sender: The rank that sends.
            buckets: The parts in which the bytes travel, of the same sizes on all ranks.
            meanwhile: Called on a rank that has the bytes already, while they travel.
        """
        under_way: list[tuple[Any, torch.Tensor, Bucket]] = []
        for bucket in buckets:
            data = self._sent(bucket) if self.rank == sender else self._room_for(bucket)
            under_way.append((self._dist.broadcast(data, sender, async_op=True), data, bucket))
            if len(under_way) >= _AHEAD and (meanwhile is None or self._device.type != "cpu"):
                self._finish(*under_way.pop(0), sender=sender)
        if meanwhile is not None:
            meanwhile()
        while under_way:
            self._finish(*under_way.pop(0), sender=sender)
        self._unused = torch.empty(0, dtype=torch.uint8)

    def _sent(self, bucket: Bucket) -> torch.Tensor:
        if bucket.source is None:
            raise ValueError("the sender lacks what it is to send")
        return bucket.source.to(self._device)

    def _room_for(self, bucket: Bucket) -> torch.Tensor:
        """Return the memory into which a bucket is received: the target itself, if it is one piece on that device."""
        if len(bucket.targets) == 1 and bucket.targets[0][0].device == self._device:
            target, at = bucket.targets[0]
            if at == 0 and target.numel() == bucket.size:
                return target
        if bucket.targets:
            return torch.empty(bucket.size, dtype=torch.uint8, device=self._device)
        # Thrown away: all buckets may be received into the same memory.
        if self._unused.numel() < bucket.size:
            self._unused = torch.empty(bucket.size, dtype=torch.uint8, device=self._device)
        return self._unused[: bucket.size]

    def _finish(self, work: Any, data: torch.Tensor, bucket: Bucket, *, sender: int) -> None:  # noqa: ANN401  # torch's
        work.wait()
        if self.rank == sender:
            return
        for target, at in bucket.targets:
            if target.data_ptr() != data.data_ptr():
                target.copy_(data[at : at + target.numel()])

    # --- from one rank to another

    def side_group(self) -> Any:  # noqa: ANN401  # torch's
        """Return a Gloo group of all ranks for transfers between two of them, made at the first call.

        Called: by all ranks. Torch keeps the group until it is destroyed; this object does not, so that its threads end
        with it.
        """
        group = self._side()
        if group is None:
            group = self._dist.new_group(backend="gloo")
            self._side = weakref.ref(group)
        return group

    def send(self, data: torch.Tensor, receiver: int) -> None:
        """Send bytes in host memory to a rank, which calls `receive` with the same size."""
        if data.numel():
            self._dist.send(data, receiver, group=self._for_pairs())

    def receive(self, data: torch.Tensor, sender: int) -> None:
        """Receive bytes into host memory."""
        if data.numel():
            self._dist.recv(data, sender, group=self._for_pairs())

    def exchange(self, out: torch.Tensor | None, receiver: int, into: torch.Tensor | None, sender: int) -> None:
        """Send bytes in host memory to a rank, and receive bytes of another one meanwhile. `None`: there are none."""
        works = []
        if out is not None:
            works.append(self._dist.isend(out, receiver, group=self._for_pairs()))
        if into is not None:
            works.append(self._dist.irecv(into, sender, group=self._for_pairs()))
        for work in works:
            work.wait()

    def _for_pairs(self) -> Any:  # noqa: ANN401  # torch's
        return self._side() if self.needs_side_group else None

    @property
    def needs_side_group(self) -> bool:
        """Whether pairs of ranks can't use the default group, as it has no backend for host memory."""
        return bool(self._device.type != "cpu")


def _device_of(dist: Any) -> torch.device:  # noqa: ANN401  # a module
    """Return the device whose tensors the default group can send: the CPU if it can."""
    if dist is None or "cpu" in dist.get_backend_config():
        return torch.device("cpu")
    if dist.get_backend() == "gloo" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _backend_of_cpu(dist: Any) -> str:  # noqa: ANN401  # a module
    """Return the backend by which the default group sends tensors of the CPU: all of them, or those of `cpu:…`."""
    backends = dict(each.split(":", 1) for each in dist.get_backend_config().split(",") if ":" in each)
    return str(backends.get("cpu", dist.get_backend()))


def _nothing() -> None:
    return None
