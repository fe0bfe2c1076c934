"""A copy of each rank's own part on another rank, sent after each commit on a thread, and the confirmation of it.

After a commit, each rank sends its own part to its partner and receives that of the rank whose partner it is. Then one
small all-reduce of this group of their own, on the same thread, confirms that the commit and its copies are whole on
all ranks. The next commit waits for it, so a rank replaces an old commit only when all ranks have the newer one.
Training takes no part in this and has no further collective.
"""

import copy
import threading
from collections.abc import Sequence
from functools import partial
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


class Partners:
    """The copies for and of other ranks. They outlive the group in which they were made.

    Threading: the caller's. `send` starts a thread that ends when the copies are confirmed, or when a connection ends.
    """

    def __init__(self) -> None:
        self.kept = tuple(Kept() for _ in range(SLOTS))
        self._channel: Channel | None = None
        self._to = self._from = 0
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None
        self._epoch = 0
        """Rises with each group: a transfer of an earlier one counts no more."""
        self._lock = threading.Lock()
        """Held by a transfer that changes what is kept, so that one of an earlier group never does."""

    def join_group(self, channel: Channel, partners: Sequence[int]) -> None:
        """Use a new group. Called: by all ranks.

        Args:
            channel: The ranks of the new group.
            partners: The rank that keeps the copy of each rank.
        """
        self._failed = None
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
        self._thread = threading.Thread(
            target=self._run, args=(group, slot, commit, self._epoch), name="elastic-partner-copy", daemon=True
        )
        transfers.begin(self._thread)

    def wait(self) -> None:
        """Wait until the last commit is confirmed by all ranks.

        Raises:
            RuntimeError: a connection ended; torch's own error.
            StateError: the ranks have committed different steps.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failed is not None:
            # A copy: what is raised gets the frames of the caller, whose objects can keep a group and its connections.
            raise copy.copy(self._failed)

    def end(self) -> None:
        """Wait for the thread, whose group is gone, without an error.

        An end of its connections frees it. Gloo does not free it if this process has destroyed the group before; it is
        then left behind, and what it may still write is not used.
        """
        with self._lock:
            self._epoch += 1
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
            if self._thread.is_alive():
                self.kept = tuple(each if each.commit is not None else Kept() for each in self.kept)
            self._thread = None
        self._channel = None
        self._failed = None

    def _run(self, group: Any, slot: Slot, commit: Commit, epoch: int) -> None:  # noqa: ANN401  # torch's
        try:
            self._transfer(group, slot, commit, epoch)
        except BaseException as err:  # noqa: BLE001  # whatever it is, `wait` raises it
            with self._lock:
                if self._epoch == epoch:  # else it is the end of a round that is over, and no failure of this one
                    # Without its frames, which would keep the group and its connections, for which other ranks wait.
                    self._failed = err.with_traceback(None)

    def _transfer(self, group: Any, slot: Slot, commit: Commit, epoch: int) -> None:  # noqa: ANN401  # torch's
        import torch.distributed as dist

        swap = partial(self._swap, dist, group, self._to, self._from)  # those of this group, also if it is left behind
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
                f"rank {self._from} step {step} as its commit {serial}",
                hint="commit() on all ranks at the same steps",
            )
        with self._lock:
            if self._epoch != epoch:
                return
            kept = min(self.kept, key=lambda each: each.commit.key if each.commit else Key(-1, 0, 0))
            kept.commit = None
        if kept.block.numel() != own_size:
            kept.block = torch.empty(own_size, dtype=torch.uint8)
        kept.head = bytearray(head_size)
        swap(torch.frombuffer(head, dtype=torch.uint8), torch.frombuffer(kept.head, dtype=torch.uint8))
        swap(slot.own[:size], kept.block)
        sizes = (0, 0, head_size, own_size)
        with self._lock:
            if self._epoch != epoch:
                return
            kept.commit = Copy(key, owner, world_size, False, commit.own_needed, "", sizes, *share)
        dist.all_reduce(torch.ones(1, dtype=torch.int64), group=group)

    def _swap(
        self,
        dist: Any,  # noqa: ANN401  # torch's
        group: Any,  # noqa: ANN401  # torch's
        receiver: int,
        sender: int,
        out: torch.Tensor,
        into: torch.Tensor,
    ) -> None:
        works = []
        if out.numel():
            works.append(dist.isend(out, receiver, group=group))
        if into.numel():
            works.append(dist.irecv(into, sender, group=group))
        for work in works:
            work.wait()
