"""The training state, kept in host memory through a restart of the round: `State`."""

import logging
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from elastic_core.api import ConfigError
from elastic_core.api.workers import import_torch

torch = import_torch("elastic_warm.State")

from elastic_warm import objects  # noqa: E402  # torch is checked first
from elastic_warm.agreement import Copy, Key, Plan, Report, Source, agree, partners_of, start_of  # noqa: E402
from elastic_warm.channel import Channel  # noqa: E402
from elastic_warm.host_copy import SLOTS, Commit, HostCopies, Slot, Tensors  # noqa: E402
from elastic_warm.layouts import fit_of, layout_of  # noqa: E402
from elastic_warm.partners import Partners  # noqa: E402
from elastic_warm.randomness import RandomState, seed_anew  # noqa: E402
from elastic_warm.resharding import Resharding  # noqa: E402
from elastic_warm.shared import SharedMemory, memories  # noqa: E402
from elastic_warm.state_errors import StateError  # noqa: E402
from elastic_warm.sync import Transfer, digest_of, gathered, node_number  # noqa: E402
from elastic_warm.values import Flat  # noqa: E402

_logger: Final = logging.getLogger("elastic_warm")
_RANDOM: Final = "random state"
"""Name of the part with the random state: no name that a script can use."""
_AT_ONCE: Final = 16 << 20
"""Up to this size in bytes, `sync` itself makes copies of what a rank has received, and waits for its partner's."""


class Synced(NamedTuple):
    """The result of `State.sync`, the same on all ranks except for `received`."""

    source: str
    """`memory`: a commit of this or another rank; `checkpoint`; or `start`: rank 0's state as the script made it."""
    step: int
    """The step of the state."""
    received: bool
    """Whether this rank has received the state from another rank."""
    ms: float
    """How long the call has taken, in milliseconds."""


class State:
    """The state of a training, in parts that are attributes: `State(model=model, optimizer=optimizer, step=0)`.

    A part is an object with `state_dict()` and `load_state_dict()`, a tensor, or a plain value: a number, a string,
    bytes, `None`, a numpy array, or a dict, list, tuple or set of these. `state.step += 1` changes a part. A module in
    DistributedDataParallel or torch.compile counts as the module itself. Make the object outside the function of
    the rounds, so that it stays with the process.

    Args:
        sharded: Whether each rank has a part of the state, or the same as all others. `None` means that sharded tensors
            (DTensor) are each rank's own, and all else is the same. `True` means all is each rank's own.
        partner: Whether another rank, on another node if there is one, keeps a copy of what is each rank's own. `None`
            means yes if the state is sharded. Without it, the random state of a lost rank is lost.
        random: Whether the random state of this process is a part: Python's, numpy's, and torch's of the CPU and of
            the current CUDA device.
        load: Called by `sync` on all ranks if no memory has the state: loads a checkpoint into the objects of the
            script, and returns whether there was one.
        checkpointer: A `Checkpointer` in place of `load`, whose checkpoints are saved with `state.parts()`.
        parts: The parts by name. If a part `step` is a whole number, it is the step in reports and messages.

    Attributes:
        last_commit_ms: How long the last `commit` has taken, in milliseconds.
        last_commit_bytes: How many bytes it has copied. Frozen parameters that have not changed are not copied again.

    Raises:
        ConfigError: the name of a part begins with `_` or is that of a method, there is no part, torch is missing or
            not supported, or both `load` and `checkpointer` are given.

    Threading: one thread calls the methods. With a partner, each commit starts a thread that ends with its transfer.
    """

    def __init__(
        self,
        *,
        sharded: bool | None = None,
        partner: bool | None = None,
        random: bool = True,
        load: Callable[[], object] | None = None,
        checkpointer: Any = None,  # noqa: ANN401  # of another distribution
        **parts: Any,  # noqa: ANN401  # anything
    ) -> None:
        """Copy nothing yet."""
        for name in parts:
            if name.startswith("_") or name in _RESERVED:
                raise ConfigError(f"State({name}=…): the name is taken", hint=f"{name.strip('_')}_part=…")
        if not parts:
            raise ConfigError("State() has no part", hint="State(model=model, optimizer=optimizer, step=0)")
        if load is not None and checkpointer is not None:
            raise ConfigError("State(load=…, checkpointer=…): both load a checkpoint", hint="one of them")
        own = self.__dict__
        own["_parts"] = dict(parts)
        own["_sharded"] = sharded
        own["_partner"] = partner
        own["_random"] = RandomState() if random else None
        own["_load"] = load if load is not None else _loader_of(self, checkpointer)
        own["_copies"] = None
        own["_partners"] = Partners()
        own["_channel"] = None
        own["_generation"] = own["_serial"] = 0
        own["_pristine"] = True
        own["_beat"] = _heartbeat()
        own["last_commit_ms"] = 0.0
        own["last_commit_bytes"] = 0
        _states.add(self)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # a part
        parts = self.__dict__.get("_parts", {})
        if name in parts:
            return parts[name]
        raise AttributeError(f"State has no part {name!r}; it has {', '.join(map(repr, parts)) or 'none'}")

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401  # a part
        if name in self.__dict__:
            self.__dict__[name] = value
        elif name in self._parts:
            self._parts[name] = value
        else:
            raise AttributeError(f"State has no part {name!r}, and all parts are named when it is made")

    def __repr__(self) -> str:
        return f"State({', '.join(self._parts)})"

    def parts(self) -> dict[str, Any]:
        """Return the parts by name, as `Checkpointer.save` takes them."""
        return dict(self._parts)

    # --- in the round

    def commit(self) -> None:
        """Copy the state to host memory. Called: by all ranks, at the same step, where the state is complete.

        Until the copy is whole, the one before counts. For `--hang-timeout` and reports, the call is a heartbeat, with
        the step if the script itself reports none. If the state is sharded, the call first waits until all ranks
        have confirmed the commit before, and a thread sends the copy to the partner afterwards.

        Raises:
            StateError: a part contains something that can't be kept, or ranks commit different steps.
            RuntimeError: the connection to the partner ended; torch's own error.
        """
        begun = time.perf_counter()
        self._partners.wait()
        serial = 1 + max([self._serial, *(each.key.serial for each in self._own_line())])
        key = Key(self._generation, serial, self._step(serial))
        slot, copied = self._fill(key, self._channel)
        self.__dict__["_serial"] = key.serial
        self._partners.send(slot)
        self.last_commit_ms = (time.perf_counter() - begun) * 1000
        self.last_commit_bytes = copied
        self._beat(key.step)
        _report(self.last_commit_ms, copied, key.step)

    def restore(self) -> None:
        """Return to the last commit, in place: parameters, buffers and the optimizer's tensors stay the same objects.

        Gradients are removed, as they may be those of a step that was interrupted.

        Raises:
            StateError: there is no commit, or an object doesn't fit it.
        """
        slot = self._copies.newest() if self._copies is not None else None
        if slot is None:
            raise StateError("there is no commit to return to", hint="commit() or sync() before restore()")
        self._return_to(slot)

    # --- between rounds

    def sync(self) -> Synced:
        """Give all ranks the newest state of which every part is alive. Called: by all ranks, first in a round.

        The ranks of the new process group agree on one commit. Those that lack it receive it, and all return to it. If
        no commit is complete, they load a checkpoint. If there is none, they begin with the state of rank 0.
        A process without a group is alone.

        Raises:
            StateError: the ranks differ in the structure of the state; or nothing can be brought back, and training
                has changed the objects.
            RuntimeError: a rank is gone; torch's own error.
        """
        begun = time.perf_counter()
        self._partners.end()
        channel = Channel()
        copies = self._slots()
        outline = self._outline()
        report = Report(
            channel.rank,
            self._generation,
            self._pristine,
            self._load is not None,
            node_number(),
            digest_of(outline),
            layout_of(self._parts),
            (*(self._reported(commit, channel.size) for commit in copies.commits()), *self._partners.copies()),
        )
        reports = gathered(channel, report, outline)
        plan = agree(reports)
        self._note(plan, channel)
        with_partners = self._has_partner()
        if channel.size > 1 and (with_partners or ((plan.moves or plan.anew) and channel.needs_side_group)):
            channel.side_group()
        source, key, received = self._follow(plan, channel, reports)
        self.__dict__["_channel"] = channel
        self.__dict__["_generation"] = plan.generation
        self.__dict__["_serial"] = key.serial
        # What was divided anew is a commit of its own; the one before counts until all ranks have confirmed this one.
        self._partners.keep_only(key, plan.key)
        if with_partners:
            self._partners.join_group(channel, partners_of([each.node for each in reports]))
            slot = copies.of(key)
            self._partners.send(slot)
            if slot is not None and slot.commit is not None and slot.commit.sizes()[1] <= _AT_ONCE:
                self._partners.wait()  # so that a failure right after the round's start loses nothing either
        return Synced(source.value, key.step, received, (time.perf_counter() - begun) * 1000)

    def _reported(self, commit: Commit, world_size: int) -> Copy:
        """Return a commit as it is reported to the other ranks."""
        if not commit.own_needed or self._sharded is True:
            return commit.as_copy()
        fits, obstacle = fit_of(self._parts, commit, world_size)
        return commit.as_copy(fits=fits, obstacle=obstacle)

    def _follow(self, plan: Plan, channel: Channel, reports: list[Report]) -> tuple[Source, Key, bool]:
        """Bring this rank to the state of a plan.

        Returns:
            Where it is from, the commit that it is, and whether it has come from another rank.
        """
        has_received = channel.rank in plan.receivers
        if plan.source is Source.MEMORY and plan.key is not None:
            if plan.anew:
                key, received = self._divide_anew(plan, plan.key, channel, reports)
                return plan.source, key, has_received or received
            self._receive(plan, plan.key, channel, reports)
            return plan.source, plan.key, has_received
        if plan.source is Source.CHECKPOINT:
            clean = self._pristine
            self.__dict__["_pristine"] = False
            loaded = self._load is not None and bool(self._load())
            answers = channel.gather(bytes([loaded]))
            if any(answer != answers[0] for answer in answers):
                raise StateError(
                    "some ranks have loaded a checkpoint, and others have found none",
                    hint="a folder of checkpoints that all nodes share",
                )
            if loaded:
                return plan.source, self._first_commit(plan, channel), False
            self.__dict__["_pristine"] = clean
            plan = start_of(reports, plan)
        return Source.START, self._start(plan, channel), channel.rank in plan.receivers

    def _receive(self, plan: Plan, key: Key, channel: Channel, reports: list[Report]) -> None:
        """Get a commit from memory, that of this rank or of others, and return to it."""
        self._slots().keep_only(key)
        source = self._slots().of(key)
        if source is None:
            self.__dict__["_pristine"] = False
        transfer = Transfer(channel, source, self._partners, plan, reports)
        arrived = transfer.run(self._parts, lambda: self._return_to(source))
        if arrived is None:
            return
        self._put_back(arrived.commit, arrived.tensors, keep=True)
        if self._random is not None and _RANDOM not in arrived.commit.parts:
            seed_anew(*key, channel.rank)
        # A large state that others have as well is copied by the first commit, as new memory takes long to touch.
        common, _ = arrived.commit.sizes()
        if common <= _AT_ONCE or arrived.commit.own_needed or source is not None or self._has_partner():
            # With the size of the group that has made it: otherwise it would be another commit than that of the others.
            self._fill(key, channel, arrived.commit.world_size)
            if source is not None:
                source.drop()

    def _divide_anew(self, plan: Plan, key: Key, channel: Channel, reports: list[Report]) -> tuple[Key, bool]:
        """Get a commit whose shards are those of other ranks, or of another mesh, and make a commit of it.

        Returns:
            The new commit, and whether a part of it has come from another rank.
        """
        self._slots().keep_only(key)
        self.__dict__["_pristine"] = False
        resharding = Resharding(channel, self._slots().of(key), self._partners, plan, reports)
        arrived = resharding.run(self._parts)
        self._put_back(arrived.commit, arrived.tensors, keep=True)
        if self._random is not None and _RANDOM not in arrived.commit.parts:
            seed_anew(*key, channel.rank)
        made = Key(plan.generation, key.serial, key.step)
        self._fill(made, channel)
        return made, resharding.received > 0

    def _return_to(self, slot: Slot | None) -> None:
        """Put the commit of a slot back."""
        if slot is not None:
            self._put_back(slot.commit, slot.tensors(), keep=False)

    def _start(self, plan: Plan, channel: Channel) -> Key:
        """Begin with the state of rank 0, as far as it is the same on all ranks. Each keeps its own part."""
        if channel.size > 1 and not self._own_needed(self._flats()):
            key = Key(plan.generation, 0, self._step(0))
            if channel.rank == 0:
                self._first_commit(plan, channel)
            copies = [commit.as_copy() for commit in self._slots().commits() if channel.rank == 0]
            found = gathered(channel, Report(channel.rank, copies=tuple(copies)), [])
            key = found[0].copies[0].key
            memory = Plan(Source.MEMORY, plan.generation, key, 0, plan.receivers)
            source = self._slots().of(key) if channel.rank == 0 else None
            transfer = Transfer(channel, source, self._partners, memory, found)
            arrived = transfer.run(self._parts, lambda: None)  # rank 0 has what it sends
            if arrived is None:
                return key
            self._put_back(arrived.commit, arrived.tensors, keep=True)
        return self._first_commit(plan, channel)

    def _first_commit(self, plan: Plan, channel: Channel) -> Key:
        """Commit the state that the objects have now, as the first one of a generation."""
        self._slots().keep_only(None)
        self._partners.keep_only(None)
        key = Key(plan.generation, 0, self._step(0))
        self._fill(key, channel)
        return key

    def _own_commits(self) -> list[Commit]:
        """Return the commits in the slots. Makes no slots."""
        return self._copies.commits() if self._copies is not None else []

    def _own_line(self) -> list[Commit]:
        """Return the commits, after those are forgotten that a worker before has left and no `sync` has chosen."""
        copies = self._slots()
        if any(each.key.generation > self._generation for each in copies.commits()):
            copies.keep_only(None)
        return copies.commits()

    def _fill(self, key: Key, channel: Channel | None, world_size: int | None = None) -> tuple[Slot, int]:
        """Copy the state into the older slot. Return it, and how many bytes were copied.

        Args:
            key: The commit's identity.
            channel: The present group. `None` means the process is alone.
            world_size: The size of the group that has committed it. `None` means the present one.
        """
        flats = self._flats()
        slot = self._slots().next()
        self.__dict__["_pristine"] = False
        rank, size = (channel.rank, channel.size) if channel is not None else (0, 1)
        return slot, slot.fill(key, rank, world_size or size, flats, self._own_needed(flats))

    def _note(self, plan: Plan, channel: Channel) -> None:
        """Log why a newer commit is not used, and what is lost. One rank does."""
        if channel.rank != 0:
            return
        instead = {Source.MEMORY: "an older commit", Source.CHECKPOINT: "the checkpoint", Source.START: "the start"}
        for note in plan.notes:
            _logger.warning("%s: training goes on from %s", note, instead[plan.source])
        if plan.anew and plan.key is not None:
            _logger.info("step %d: its shards are divided anew among %d ranks", plan.key.step, channel.size)
        if plan.source is Source.MEMORY and plan.lost and self._random is not None:
            ranks = ", ".join(map(str, plan.lost))
            _logger.info("the random state of rank %s is lost, and is made anew (State(partner=True) keeps it)", ranks)

    # --- its parts

    def _slots(self) -> HostCopies:
        """Return the slots. With shared memory, they begin with the commits that the worker before has left."""
        copies: HostCopies | None = self._copies
        if copies is None:
            pinned = bool(torch.cuda.is_available() and torch.cuda.is_initialized())
            copies = HostCopies(memories(SLOTS, is_pinned=pinned))
            for slot in copies.slots:
                if isinstance(slot.memory, SharedMemory) and (found := slot.memory.found()) is not None:
                    slot.adopt(found, slot.memory.blocks())
            self.__dict__["_copies"] = copies
        return copies

    def _flats(self) -> dict[str, tuple[Flat, bool]]:
        """Return the values of all parts, each with whether it is this rank's own."""
        flats = {name: (self._flat(value, name), self._sharded is True) for name, value in self._parts.items()}
        if self._random is not None:
            flats[_RANDOM] = (objects.taken(self._random, _RANDOM, all_own=True), True)
        return flats

    def _flat(self, value: Any, name: str) -> Flat:  # noqa: ANN401  # a part
        flat = objects.taken(value, name, all_own=self._sharded is True)
        if self._sharded is False and flat.own:
            raise StateError(
                f"state.{name} has sharded tensors, and State(sharded=False) has none", hint="State(sharded=None)"
            )
        return flat

    def _own_needed(self, flats: Mapping[str, tuple[Flat, bool]]) -> bool:
        return self._sharded is True or any(flat.own for name, (flat, _) in flats.items() if name != _RANDOM)

    def _has_partner(self) -> bool:
        if self._partner is not None:
            return bool(self._partner)
        return self._sharded is True or any(objects.is_sharded(value) for value in self._parts.values())

    def _outline(self) -> list[Any]:
        mode = ["State", f"sharded={self._sharded}, partner={self._has_partner()}, random={self._random is not None}"]
        return [[*mode, []], *(objects.outline(value, name) for name, value in self._parts.items())]

    def _step(self, serial: int) -> int:
        step = self._parts.get("step")
        return step if type(step) is int else serial

    def _put_back(self, commit: Commit | None, tensors: Mapping[str, Tensors], *, keep: bool) -> None:
        """Put the values of a commit into all objects.

        Args:
            commit: The commit.
            tensors: Its tensors.
            keep: Whether they may become those of the objects.
        """
        parts = commit.parts if commit is not None else {}
        self.__dict__["_pristine"] = False
        for name in self._parts:
            if name not in parts:
                raise StateError(
                    f"the last commit has nothing for state.{name}", hint="the same State(…) in each round"
                )
            self._parts[name] = objects.put_back(self._parts[name], parts[name], tensors[name], name, keep=keep)
        if self._random is not None and _RANDOM in parts:
            objects.put_back(self._random, parts[_RANDOM], tensors[_RANDOM], _RANDOM, keep=keep)


_RESERVED: Final = frozenset(name for name in dir(State) if not name.startswith("_")) | {
    "last_commit_ms",
    "last_commit_bytes",
    "parts",
}


_states: Final[weakref.WeakSet[State]] = weakref.WeakSet()


def forget_shards() -> None:
    """Set the sharded parts of all states to `None`. Called: when a round was left: their mesh holds its groups."""
    for state in list(_states):
        for name, part in state.parts().items():
            if objects.is_sharded(part):
                setattr(state, name, None)


def describe_commits() -> None:
    """Make the descriptions of all commits that `sync` will report. Called: when a process waits for its next round."""
    for state in list(_states):
        for commit in state._own_commits():
            commit.describe()


def _loader_of(state: State, checkpointer: Any) -> Callable[[], object] | None:  # noqa: ANN401  # of another distribution
    """Return a function that loads the newest checkpoint into a state."""
    if checkpointer is None:
        return None

    def load() -> bool:
        parts = state.parts()
        loaded = checkpointer.load(parts)
        if loaded is None:
            return False
        for name, value in parts.items():
            if not objects.is_stateful(value) and name in loaded.state:
                setattr(state, name, loaded.state[name])
        return True

    return load


def _heartbeat() -> Callable[[int], None]:
    """Return the function of elastic-watch by which a complete step counts as a heartbeat, if it is installed.

    Its import announces heartbeats to the agent: from here on, output is no sign of life.
    """
    try:
        from elastic_core.worker import step_completed
    except ImportError:
        return _nothing
    return step_completed  # type: ignore[no-any-return]  # of a distribution that need not be there


def _nothing(step: int) -> None:
    """Report no heartbeat."""


def _report(ms: float, copied: int, step: int) -> None:
    """Tell the worker's side of warm rounds, if it is there, that a step is complete, and the cost of the commit."""
    worker = sys.modules.get("elastic_warm.worker")
    stepped = getattr(worker, "stepped", None)
    if stepped is not None:
        stepped()
    committed = getattr(worker, "committed", None)
    if committed is not None:
        committed(ms=ms, bytes=copied, step=step)
