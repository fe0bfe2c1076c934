"""A copy of each rank's own part on another rank, sent after each commit on a thread, and the confirmation of it.

After a commit, each rank sends its own part to its partner and receives that of the rank whose partner it is. Then one
small all-reduce of this group of their own, on the same thread, confirms that the commit and its copies are whole on
all ranks. The next commit waits for it, so a rank replaces an old commit only when all ranks have the newer one.
Training takes no part in this and has no further collective.
"""

import copy
import threading
from collections.abc import Sequence
from typing import Any, Final

import torch

from elastic_warm import transfers
from elastic_warm.agreement import Copy, Key
from elastic_warm.channel import Channel
from elastic_warm.host_copy import SLOTS, Commit, Slot
from elastic_warm.state_errors import StateError

_FIELDS: Final = 9
_PATIENCE_S: Final = 1.0
"""How long a new round waits for a transfer of the one before, in seconds."""


class Kept:
    """The own part of another rank, as it was committed there."""

    def __init__(self) -> None:
        self.commit: Copy | None = None
        """`None` while it is received, and before."""
        self.head = bytearray()
        self.block = torch.empty(0, dtype=torch.uint8)


class _Sending:
    """One transfer, which a thread makes: of this rank's own part, and of the part that comes in return."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        """What comes in return. It belongs to the thread until it ends."""
        self.thread = threading.Thread()
        self.started = False
        """Whether the thread has been started for certain: an interrupt may have come meanwhile."""
        self.failed: BaseException | None = None


class Partners:
    """The copies for and of other ranks. They outlive the group in which they were made.

    An interrupt may come at any line of a call. Hence there is no lock, and what a thread changes is its own: a thread
    that is left behind, as its group is gone, can change nothing of a later round.

    Threading: the caller's. `send` starts a thread that ends when the copies are confirmed, or when a connection ends.
    """

    def __init__(self) -> None:
        self.kept: tuple[Kept, ...] = ()
        """At most `SLOTS`, without the one that is received now."""
        self._channel: Channel | None = None
        self._to = self._from = 0
        self._sending: _Sending | None = None

    def join_group(self, channel: Channel, partners: Sequence[int]) -> None:
        """Use a new group. Called: by all ranks.

        Args:
            channel: The ranks of the new group.
            partners: The rank that keeps the copy of each rank.
        """
        if channel.size == 1:
            self._channel = None
            return
        channel.side_group()
        self._channel = channel
        self._to = partners[channel.rank]
        self._from = list(partners).index(channel.rank)

    def copies(self) -> list[Copy]:
        """Return what is kept for other ranks, whole."""
        return [each.commit for each in self.kept if each.commit is not None]

    def keep_only(self, *keys: Key | None) -> None:
        """Forget what is kept of other commits than these, as they are of another line of training."""
        for each in self.kept:
            if each.commit is not None and each.commit.key not in keys:
                each.commit = None

    def of(self, key: Key, owner: int) -> Kept | None:
        """Return what is kept of a rank's commit."""
        for each in self.kept:
            if each.commit is not None and (each.commit.key, each.commit.owner) == (key, owner):
                return each
        return None

    def send(self, slot: Slot | None) -> None:
        """Send the own part of a commit to the partner, on a thread. The slot must not change until `wait` returns.

        A rank that has received a large state that is the same on all ranks has no copy of it yet: `None`.
        """
        channel = self._channel
        commit = slot.commit if slot is not None else None
        if channel is None or slot is None or commit is None:
            return
        group = channel.side_group()
        sending = _Sending(self._take_oldest())
        sending.thread = threading.Thread(
            target=_run,
            args=(sending, group, self._to, self._from, slot, commit),
            name="elastic-partner-copy",
            daemon=True,
        )
        self._sending = sending
        transfers.begin(sending.thread)
        sending.started = True

    def _take_oldest(self) -> Kept:
        """Return memory for a copy: that of the older one of two, which is forgotten."""
        if len(self.kept) < SLOTS:
            return Kept()
        oldest = min(self.kept, key=lambda each: each.commit.key if each.commit else Key(-1, 0, 0))
        self.kept = tuple(each for each in self.kept if each is not oldest)
        oldest.commit = None
        return oldest

    def wait(self) -> None:
        """Wait until the last commit is confirmed by all ranks.

        Raises:
            RuntimeError: a connection ended; torch's own error.
            StateError: the ranks have committed different steps, or the last commit was interrupted.
        """
        sending = self._sending
        if sending is None:
            return
        if not sending.started:
            raise StateError("the commit before was interrupted", hint="sync() on all ranks")
        sending.thread.join()
        if sending.failed is not None:
            # A copy: what is raised gets the frames of the caller, whose objects can keep a group and its connections.
            raise copy.copy(sending.failed)
        self._take_back(sending)

    def end(self) -> None:
        """Wait for the thread, whose group is gone, without an error.

        An end of its connections frees it. Gloo does not free it if this process has destroyed the group before; it is
        then left behind, with the memory into which it receives.
        """
        sending = self._sending
        if sending is not None:
            if sending.started:
                sending.thread.join(_PATIENCE_S)
            self._take_back(sending)
        self._channel = None

    def _take_back(self, sending: _Sending) -> None:
        """Keep what a transfer has received whole: its thread no longer changes it."""
        if sending.kept.commit is not None and sending.kept not in self.kept:
            self.kept = (*self.kept, sending.kept)
        self._sending = None


def _run(sending: _Sending, group: Any, receiver: int, sender: int, slot: Slot, commit: Commit) -> None:  # noqa: ANN401  # torch's
    try:
        _transfer(sending.kept, group, receiver, sender, slot, commit)
    except BaseException as err:  # noqa: BLE001  # whatever it is, `wait` raises it
        # Without its frames, which would keep the group and its connections, for which other ranks wait.
        sending.failed = err.with_traceback(None)


def _transfer(kept: Kept, group: Any, receiver: int, sender: int, slot: Slot, commit: Commit) -> None:  # noqa: ANN401  # torch's
    import torch.distributed as dist

    def swap(out: torch.Tensor, into: torch.Tensor) -> None:
        works = []
        if out.numel():
            works.append(dist.isend(out, receiver, group=group))
        if into.numel():
            works.append(dist.irecv(into, sender, group=group))
        for work in works:
            work.wait()

    head = bytearray(commit.own_head())
    size = commit.sizes()[1]
    described = [*commit.key, commit.owner, commit.world_size, len(head), size, *commit.share()]
    mine = torch.tensor(described, dtype=torch.int64)
    theirs = torch.zeros(_FIELDS, dtype=torch.int64)
    swap(mine, theirs)
    generation, serial, step, owner, world_size, head_size, own_size, *share = theirs.tolist()
    key = Key(generation, serial, step)
    if key != commit.key:
        raise StateError(
            f"this rank has committed step {commit.key.step} as its commit {commit.key.serial}, "
            f"rank {sender} step {step} as its commit {serial}",
            hint="commit() on all ranks at the same steps",
        )
    if kept.block.numel() != own_size:
        kept.block = torch.empty(own_size, dtype=torch.uint8)
    kept.head = bytearray(head_size)
    swap(torch.frombuffer(head, dtype=torch.uint8), torch.frombuffer(kept.head, dtype=torch.uint8))
    swap(slot.own[:size], kept.block)
    sizes = (0, 0, head_size, own_size)
    kept.commit = Copy(key, owner, world_size, False, commit.own_needed, "", sizes, *share)
    dist.all_reduce(torch.ones(1, dtype=torch.int64), group=group)
