"""Bytes between the ranks of the new group: gathered, broadcast, and sent from one rank to another."""

import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch

_FIRST: Final = 1024
"""Bytes that each rank sends in the first gather: its length in 8 bytes, then its message if that fits."""
_LENGTH: Final = 8
_CHUNK: Final = 32 << 20
"""Bytes of one broadcast. Ranks that have the state need no more memory than that."""
_AHEAD: Final = 4
"""How many broadcasts are under way at once."""


def distributed() -> Any:  # noqa: ANN401  # a module
    """Return torch.distributed if a process group exists, else `None`. Imports nothing."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


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
        self._side: Callable[[], Any] = _nothing

    def gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all ranks, by rank. Called: by all ranks. One collective if all are short."""
        if self.size == 1:
            return [message]
        first = bytearray(_FIRST)
        first[:_LENGTH] = len(message).to_bytes(_LENGTH, "big")
        if len(message) <= _FIRST - _LENGTH:
            first[_LENGTH : _LENGTH + len(message)] = message
        found = self._all_gather(first)
        lengths = [int.from_bytes(each[:_LENGTH], "big") for each in found]
        longest = max(lengths)
        if longest <= _FIRST - _LENGTH:
            return [bytes(each[_LENGTH : _LENGTH + length]) for each, length in zip(found, lengths, strict=True)]
        whole = self._all_gather(bytearray(message.ljust(longest, b"\0")))
        return [bytes(each[:length]) for each, length in zip(whole, lengths, strict=True)]

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

    def broadcast(self, data: torch.Tensor, sender: int, *, keep: bool) -> None:
        """Broadcast bytes from one rank to the others. Called: by all ranks, with the same size.

        Args:
            data: The bytes, `[size]`, uint8, in host memory: sent from it by the sender, received into it by the others.
            sender: The rank that sends.
            keep: Whether this rank has the bytes already: what it receives is thrown away.
        """
        size = data.numel()
        is_sender = self.rank == sender
        if keep and not is_sender:
            scratch = torch.empty(min(size, _CHUNK), dtype=torch.uint8)
        under_way: list[tuple[Any, torch.Tensor, torch.Tensor | None]] = []
        for begin in range(0, size, _CHUNK):
            end = min(size, begin + _CHUNK)
            part = scratch[: end - begin] if keep and not is_sender else data[begin:end]
            staged = part if self._device.type == "cpu" else self._staged(part, is_sender)
            work = self._dist.broadcast(staged, sender, async_op=True)
            under_way.append((work, staged, None if is_sender or staged is part else part))
            if len(under_way) >= _AHEAD:
                _finish(under_way.pop(0))
        while under_way:
            _finish(under_way.pop(0))

    def _staged(self, part: torch.Tensor, is_sender: bool) -> torch.Tensor:
        return part.to(self._device) if is_sender else torch.empty_like(part, device=self._device)

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

    def _for_pairs(self) -> Any:  # noqa: ANN401  # torch's
        return None if self._device.type == "cpu" else self._side()

    @property
    def needs_side_group(self) -> bool:
        """Whether pairs of ranks can't use the default group, as it has no backend for host memory."""
        return self._device.type != "cpu"


def _finish(entry: tuple[Any, torch.Tensor, torch.Tensor | None]) -> None:
    work, staged, target = entry
    work.wait()
    if target is not None:
        target.copy_(staged)


def _device_of(dist: Any) -> torch.device:  # noqa: ANN401  # a module
    """Return the device whose tensors the default group can send: the CPU if it can."""
    if dist is None or "cpu" in dist.get_backend_config():
        return torch.device("cpu")
    if dist.get_backend() == "gloo" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _nothing() -> None:
    return None
