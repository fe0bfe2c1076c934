"""The last two commits of this rank in host memory: two buffers, used in turn.

A commit counts only when it is whole. While a buffer is being filled it has no commit, so an interruption at any
point, even by an exception of a signal handler, leaves the other buffer's commit and no torn one.
"""

import hashlib
import itertools
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import torch

from elastic_warm.agreement import Copy, Key
from elastic_warm.division import Division, shares_of
from elastic_warm.state_errors import StateError
from elastic_warm.values import Flat, TensorInfo, Tree, info_of, offsets_of, skeleton, view_of

SLOTS: Final = 2
_SAMPLES: Final = 64
"""How many elements of a frozen parameter are compared with its copy before it counts as unchanged."""
_turns: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Part:
    """One named part of a commit: its tree, and its tensors in the two blocks of memory."""

    tree: Tree
    common: tuple[TensorInfo, ...]
    own: tuple[TensorInfo, ...]
    is_own: bool
    """Whether the tree belongs to the rank alone, as that of random state does."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The description of a whole copy. The blocks of memory belong to the slot that has it."""

    key: Key
    owner: int
    world_size: int
    own_needed: bool
    parts: Mapping[str, Part]
    divisions: tuple[Division | None, ...] = ()
    """How its own tensors are divided among the ranks, each way once. `None`: in a way that is not known."""
    cache: dict[str, bytes] = field(default_factory=dict, compare=False)

    def common_head(self) -> bytes:
        """Return the trees and tensors of the common part as JSON."""
        return self._head("common", lambda part: [None if part.is_own else part.tree, part.common, part.is_own])

    def own_head(self) -> bytes:
        """Return the trees and tensors of the rank's own part as JSON."""
        return self._head("own", lambda part: [part.tree if part.is_own else None, part.own, part.is_own])

    def _head(self, name: str, entry: Callable[[Part], list[Any]]) -> bytes:
        if name not in self.cache:
            content = {key: entry(part) for key, part in self.parts.items()}
            self.cache[name] = json.dumps(content, separators=(",", ":")).encode()
        return self.cache[name]

    def digest(self) -> str:
        """Return a digest of the structure of the common part: names, shapes and dtypes, without values."""
        if "digest" not in self.cache:
            content = [[name, skeleton(part.tree), part.common] for name, part in self.parts.items() if not part.is_own]
            self.cache["digest"] = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16].encode()
        return self.cache["digest"].decode()

    def describe(self) -> None:
        """Make what `as_copy` needs, which takes milliseconds if there are many tensors. It is made once."""
        self.common_head(), self.own_head(), self.digest()

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the common and of the own block."""
        common = offsets_of(info for part in self.parts.values() for info in part.common)[1]
        return common, offsets_of(info for part in self.parts.values() for info in part.own)[1]

    def share(self) -> tuple[int, int]:
        """Return the lowest rank that has the same own tensors as the owner, and how many different own parts exist.

        The number is 0 if they are no parts of global tensors over all ranks.
        """
        known = tuple(each for each in self.divisions if each is not None and each.covers(self.world_size))
        if not known or len(known) != len(self.divisions):
            return self.owner, 0
        shares = shares_of(known, self.world_size)
        return shares[self.owner], len(set(shares))

    def as_copy(self, *, fits: bool = True, obstacle: str = "") -> Copy:
        """Return it as a report to the other ranks.

        Args:
            fits: Whether the objects of this rank are divided as it is.
            obstacle: Why it can't be divided anew for them. Empty: it can.
        """
        common, own = self.sizes()
        return Copy(
            self.key,
            self.owner,
            self.world_size,
            True,
            self.own_needed,
            self.digest(),
            (len(self.common_head()), common, len(self.own_head()), own),
            *self.share(),
            fits,
            obstacle,
        )


def parts_of(common: bytes, own: bytes) -> dict[str, Part]:
    """Return the parts of a commit from its two heads.

    Raises:
        StateError: a head is malformed.
    """
    try:
        shared, mine = json.loads(common), json.loads(own)
        parts = {}
        for name, (tree, infos, is_own) in shared.items():
            own_tree, own_infos, _ = mine.get(name, (None, (), False))
            parts[name] = Part(own_tree if is_own else tree, _infos(infos), _infos(own_infos), is_own)
    except (ValueError, TypeError, KeyError, AttributeError) as err:
        raise StateError(f"the head of a copy of the state is malformed: {err}") from err
    return parts


def _infos(rows: Sequence[Any]) -> tuple[TensorInfo, ...]:
    infos = []
    for dtype, shape, device in rows:
        info = TensorInfo(dtype, tuple(shape), device)
        if any(type(length) is not int or length < 0 for length in info.shape):
            raise ValueError(f"shape {shape!r}")
        _ = info.size  # raises KeyError for an unknown dtype
        infos.append(info)
    return tuple(infos)


class Memory(Protocol):
    """What the bytes of one slot lie in."""

    def begin(self, common: int, own: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two blocks of at least these sizes, `[bytes]` of uint8. What was there is no longer whole."""

    def finish(self, commit: Commit) -> None:
        """Note that the blocks have the commit, whole."""

    def forget(self) -> None:
        """Note that what the blocks have is not to be used any more."""


class HostMemory:
    """Memory of this process, page-locked if it is filled from a CUDA device."""

    def __init__(self, *, is_pinned: bool = False) -> None:
        self._pinned = is_pinned
        self._common = self._own = torch.empty(0, dtype=torch.uint8)

    def begin(self, common: int, own: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two blocks of at least these sizes, those of before if they suffice."""
        self._common = self._at_least(self._common, common)
        self._own = self._at_least(self._own, own)
        return self._common, self._own

    def _at_least(self, block: torch.Tensor, size: int) -> torch.Tensor:
        if block.numel() >= size and block.numel() <= 2 * size + 4096:
            return block
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)

    def finish(self, commit: Commit) -> None:
        """Nothing is to be noted: what ends with the process is never read torn."""

    def forget(self) -> None:
        """Nothing is to be noted: no other process reads it."""


@dataclass(slots=True)
class _Seen:
    """A tensor as it was when it was copied."""

    tensor: "weakref.ref[Any]"
    version: int
    address: int
    info: TensorInfo


class Slot:
    """One buffer, and the commit that it has whole.

    Attributes:
        commit: The commit. `None` while it is filled, and before.
        common: The block with the common tensors, `[bytes]`, uint8.
        own: The block with the rank's own tensors.
        turn: Rises with each fill of any slot of this process. 0 if the commit is of an earlier process.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.commit: Commit | None = None
        self.turn = 0
        self.common = self.own = torch.empty(0, dtype=torch.uint8)
        self._layout: tuple[int, int, list[TensorInfo], list[TensorInfo]] | None = None
        self._views: list[torch.Tensor] = []
        self._seen: list[_Seen | None] = []

    def fill(
        self, key: Key, owner: int, world_size: int, flats: Mapping[str, "tuple[Flat, bool]"], needed: bool
    ) -> int:
        """Copy a state into the buffer. Return the number of bytes that were copied.

        Args:
            key: The commit's identity.
            owner: This rank.
            world_size: The number of ranks.
            flats: The parts by name, each with whether its tree is the rank's own.
            needed: Whether each rank's own part is needed.
        """
        self.commit = None
        self.turn = next(_turns)
        parts = {
            name: Part(flat.tree, tuple(map(info_of, flat.common)), tuple(map(info_of, flat.own)), is_own)
            for name, (flat, is_own) in flats.items()
        }
        divisions = dict.fromkeys(division for flat, _ in flats.values() for division in flat.divisions)
        made = Commit(key, owner, world_size, needed, parts, tuple(divisions))
        tensors = [each for flat, _ in flats.values() for each in flat.common]
        tensors += [each for flat, _ in flats.values() for each in flat.own]
        self._lay_out(made)
        copied = self._copy(tensors)
        self.memory.finish(made)
        self.commit = made
        return copied

    def _lay_out(self, commit: Commit) -> None:
        """Get memory for a commit, and make a view of it for each tensor."""
        common = [info for part in commit.parts.values() for info in part.common]
        own = [info for part in commit.parts.values() for info in part.own]
        blocks = self.memory.begin(*commit.sizes())
        layout = blocks[0].data_ptr(), blocks[1].data_ptr(), common, own
        if layout == self._layout:
            return
        self._layout = None
        self.common, self.own = blocks
        self._views = views_of(self.common, common) + views_of(self.own, own)
        self._seen = [None] * len(self._views)
        self._layout = layout

    def _copy(self, tensors: Sequence[torch.Tensor]) -> int:
        """Copy tensors to their views, but for those that are known to be unchanged."""
        infos = (self._layout or (0, 0, [], []))[2:]
        changed = []
        noted: list[tuple[int, _Seen]] = []
        for index, (tensor, info) in enumerate(zip(tensors, [*infos[0], *infos[1]], strict=True)):
            if tensor.requires_grad or type(tensor) is not torch.nn.Parameter:
                changed.append(index)
            elif not self._is_unchanged(index, tensor, info):
                changed.append(index)
                noted.append((index, _Seen(weakref.ref(tensor), tensor._version, tensor.data_ptr(), info)))
        for index, _ in noted:
            self._seen[index] = None
        with torch.no_grad():
            targets = [self._views[index] for index in changed]
            copy_all(targets, [tensors[index].detach() for index in changed])
        for index, seen in noted:
            self._seen[index] = seen
        return sum(target.numel() * target.itemsize for target in targets)

    def _is_unchanged(self, index: int, tensor: torch.Tensor, info: TensorInfo) -> bool:
        """Return whether a frozen parameter is what was copied last.

        Torch counts writes to a tensor, but not all of them: not those through `.data`, and not those of batch norm and
        of fused optimizers. Hence only parameters without gradient can count as unchanged, and some of their elements
        are compared as well.
        """
        seen = self._seen[index]
        known = seen is not None and seen.tensor() is tensor and seen.info == info
        if seen is None or not known or (seen.version, seen.address) != (tensor._version, tensor.data_ptr()):
            return False
        return bool(torch.equal(_sample(tensor), _sample(self._views[index])))

    def adopt(self, commit: Commit, blocks: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Take over a commit with its blocks, which an earlier process has left."""
        self.common, self.own = blocks
        common = [info for part in commit.parts.values() for info in part.common]
        own = [info for part in commit.parts.values() for info in part.own]
        self._views = views_of(blocks[0], common) + views_of(blocks[1], own)
        self._seen = [None] * len(self._views)
        self._layout = None
        self.commit = commit

    def drop(self) -> None:
        """Forget the commit, but keep the memory."""
        self.commit = None
        self.memory.forget()

    def tensors(self) -> dict[str, "Tensors"]:
        """Return the tensors of all parts by name, in this buffer's memory: they must be copied before use."""
        if self.commit is None:
            raise StateError("there is no commit to return to", hint="commit() or sync() before restore()")
        parts = self.commit.parts
        views = iter(self._views)
        common = {name: [next(views) for _ in part.common] for name, part in parts.items()}
        return {name: Tensors(common[name], [next(views) for _ in part.own]) for name, part in parts.items()}


class Tensors(NamedTuple):
    """The tensors of one part, in the order of its description."""

    common: Sequence[torch.Tensor]
    own: Sequence[torch.Tensor]


def views_of(block: torch.Tensor, infos: Sequence[TensorInfo]) -> list[torch.Tensor]:
    """Return a view of each tensor in a block."""
    return [view_of(block, info, at) for info, at in zip(infos, offsets_of(infos)[0], strict=True)]


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of some elements: all of a small or strided tensor, else each of a fixed distance."""
    values = tensor.detach()
    if values.is_contiguous():
        values = values.flatten()[:: max(1, values.numel() // _SAMPLES)]
    return values.to("cpu", copy=True, memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source to its target, of the same shape and dtype, and wait for devices. A target may be its source.

    Threading: the caller's. It releases the interpreter while it copies.
    """
    pairs = [pair for pair in zip(targets, sources, strict=True) if pair[0].data_ptr() != pair[1].data_ptr()]
    if pairs:
        torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs], non_blocking=True)
    for device in {each.device for each in (*targets, *sources) if each.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()


class HostCopies:
    """The two slots of this rank.

    For a moment, both can have the same commit: a rank that gets another rank's place fills one slot with its new own
    part before it forgets the other, and can be interrupted between. The slot that was filled last is the only one that
    counts then.
    """

    def __init__(self, memories: Sequence[Memory]) -> None:
        self.slots = tuple(Slot(memory) for memory in memories)

    def newest(self) -> Slot | None:
        """Return the slot with the newest commit, or `None` if there is none."""
        whole = [slot for slot in self.slots if slot.commit is not None]
        return max(whole, key=_age, default=None)

    def of(self, key: Key | None) -> Slot | None:
        """Return the slot with a commit, or `None`."""
        found = [slot for slot in self.slots if slot.commit is not None and slot.commit.key == key]
        return max(found, key=_age, default=None)

    def next(self) -> Slot:
        """Return the slot to fill next: one without a commit, else that of the older one."""
        newest = self.newest()
        return min((slot for slot in self.slots if slot is not newest), key=_age)

    def keep_only(self, key: Key | None) -> None:
        """Forget all commits but one, as they are of another line of training."""
        kept = self.of(key)
        for slot in self.slots:
            if slot.commit is not None and slot is not kept:
                slot.drop()

    def commits(self) -> list[Commit]:
        """Return the commits that are whole, each once."""
        return [slot.commit for slot in self.slots if slot.commit is not None and self.of(slot.commit.key) is slot]


def _age(slot: Slot) -> tuple[Key, int]:
    """Return what orders slots from the oldest to the newest; first those without a commit."""
    return (slot.commit.key if slot.commit is not None else Key(-1, 0, 0)), slot.turn
