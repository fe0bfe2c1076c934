"""Checkpoints that all ranks of a run save and load together: `Checkpointer`."""

import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from elastic_core.api.workers import import_torch
from elastic_train.checkpoint import content, files
from elastic_train.checkpoint.claims import Claims, claims_of
from elastic_train.checkpoint.disk import kept_fresh
from elastic_train.checkpoint.errors import CheckpointError, UnreadableError, reason_of
from elastic_train.checkpoint.layout import (
    KINDS,
    LAST_STEP,
    Begun,
    Checkpoint,
    CheckpointFolder,
    Scan,
    StoredFile,
    damage,
    described,
)
from elastic_train.checkpoint.ranks import Ranks
from elastic_train.marks import restoring, saving
from elastic_train.time_limits import time_limit
from elastic_train.variables import error

_logger: Final = logging.getLogger("elastic_train")


class Loaded(NamedTuple):
    """The result of `Checkpointer.load`."""

    step: int
    """The step at which it was saved."""
    world_size: int
    """The number of ranks that saved it."""
    state: dict[str, Any]
    """The values as saved, including those that were loaded into objects."""


class Checkpointer:
    """Saves and loads the training state on all ranks; a complete checkpoint remains whenever a process ends.

    All ranks make one, after the process group is initialized, and call each method in the same order. A process
    without a group is alone. `load` takes the newest checkpoint that all ranks see complete. Loading a checkpoint never
    runs code from it: it holds tensors and plain values. If ranks call different methods, or one has a wrong argument,
    all ranks raise the same error.

    A round claims the folder with its first save. After another round or process has claimed the folder, each save of
    the older one raises `CheckpointError`. The order of claims is that of the first load or save of each. A first load
    claims the folder at once only if an earlier round of the same run has claimed it. No other load makes a claim, so a
    job that only loads never stops the saves of a training. Without `elastic run`, a process group counts as a round.

    Args:
        folder: Folder of the checkpoints, the same for all ranks. The first save makes it.
        keep: Number of newest checkpoints to keep. `None` means all.
        job: Name of the job; checkpoints of another job are rejected. Empty means no check.
        files: `one`: rank 0 writes its state, which is the same on all ranks. `each`: every rank writes its own; at
            another world size, rank r reads the state of rank r modulo the old world size. Each rank writes its part of
            sharded tensors in both cases, and they can be loaded on any mesh.
        timeout: How long ranks wait for one another in a call: `"30m"`, seconds, or a `timedelta`. `None` means torch's
            default.

    Raises:
        ConfigError: an argument is malformed.

    Threading: the caller's. `save(…, wait=False)` writes on a thread of its own, one save at a time.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int | None = 3,
        job: str = "",
        files: str = "one",
        timeout: float | str | timedelta | None = None,
    ) -> None:
        """Prepare only: nothing is read or written yet."""
        if keep is not None and (type(keep) is not int or keep < 1):
            raise error(f"Checkpointer(keep={keep!r}); expected 1 at least, or None for all", "keep=3")
        if files not in KINDS:
            raise error(f"Checkpointer(files={files!r}); expected 'one' or 'each'", "files='one'")
        self._folder = CheckpointFolder(Path(os.path.abspath(folder)), job)  # noqa: PTH100  # follows no link
        self._keep = keep
        self._kind = files
        self._timeout = time_limit(timeout, "Checkpointer")
        self._members: Ranks | None = None
        self._claims: Claims | None = None
        """The claims as a rank of the group of `_members`. `None` before the first call."""
        self._serial: int | None = None
        """Serial number of the newest checkpoint that any rank knows. `None` means not read yet."""
        self._known: frozenset[str] | None = None
        """Checkpoints that are no sign of another process that saves in the folder. `None` means not read yet."""
        self._reported = False
        """Whether a line about such a process was logged."""
        self._saving: threading.Thread | None = None
        self._failed: CheckpointError | None = None
        """Why the last save in the background has."""
        self._damaged: set[str] = set()
        """Names of checkpoints that some rank could not read."""
        _all.add(self)

    # --- saving

    def save(self, state: Mapping[str, Any], *, step: int, wait: bool = True) -> None:
        """Save a state. Called: by all ranks.

        Args:
            state: A dict from names to tensors, plain values, dicts and lists of these, and objects with
                `state_dict()`, such as modules, optimizers and samplers. With `files="one"`, only sharded tensors count
                on ranks above 0.
            step: The step of this state, from 0. A step may be saved again.
            wait: If true, return when the checkpoint is on the disk. If false, copy the state in memory and write it on
                a thread; the next save, `wait()` and the end of the interpreter wait for that thread.

        Raises:
            CheckpointError: the save failed, the same on all ranks; complete checkpoints are unchanged. One reason is
                that a later round or another run has claimed the folder.
            ConfigError: the step is not a whole number of 0 or more, torch is missing or not supported, or the state
                contains a value that `load` could not read, on any rank.
        """
        with saving():
            self._save(state, step, wait)

    def _save(self, state: Mapping[str, Any], step: int, wait: bool) -> None:
        call = f"save(step={step!r}{'' if wait else ', wait=False'})"
        _, problem = _tried(lambda: _check_step(step))
        ranks = self._meet(call, problem)
        if self._serial is None:
            self._look(ranks, call)
        taken, problem = _tried(lambda: self._taken(ranks, state, wait))
        begun: Begun | None = None
        if ranks.rank == 0 and problem is None:
            begun, problem = _tried(lambda: self._begun(step))
        asked = _Begins(begun, bool(taken and taken.shards))
        try:
            all_asked = ranks.gather(f"the beginning of {call}", asked, problem)
        except BaseException:
            self._discard(begun)
            raise
        first = all_asked[0].begun
        if first is None:
            raise CheckpointError("rank 0 has begun nothing", hint="a report of this")
        self._report(begun)
        self._serial = first.serial
        sharded = any(each.sharded for each in all_asked)
        unfinished = self._folder.path / first.folder.name
        write = partial(self._write, ranks, call, unfinished, step, sharded, taken, behind=not wait)
        if wait:
            write()
        else:
            self._failed = None
            self._saving = threading.Thread(target=self._write_behind, args=(write,), name="elastic-checkpoint")
            self._saving.start()

    def _begun(self, step: int) -> Begun:
        return self._folder.begin((self._serial or 0) + 1, step, self._known, self._claims)

    def _discard(self, begun: Begun | None) -> None:
        if begun is not None:
            self._folder.discard(begun.folder)

    def _report(self, begun: Begun | None) -> None:
        """Log what rank 0 found in the folder."""
        if begun is None:
            return
        if begun.another and not self._reported:
            self._reported = True
            _logger.warning("%s", begun.another)
        if begun.staying:
            _logger.warning("%s", begun.staying)

    def _taken(self, ranks: Ranks, state: Mapping[str, Any], wait: bool) -> content.Content:
        """Return what this rank writes, copied if training may change it before."""
        import_torch("Checkpointer.save")
        taken = content.content_of(state)
        if not self._writes_values(ranks):
            taken = content.Content({}, taken.shards)
        return taken if wait else content.snapshot(taken)

    def _writes_values(self, ranks: Ranks) -> bool:
        return ranks.rank == 0 or self._kind == "each"

    def _write(
        self,
        ranks: Ranks,
        call: str,
        unfinished: Path,
        step: int,
        sharded: bool,
        taken: content.Content,
        *,
        behind: bool,
    ) -> None:
        """Write this rank's files. Rank 0 then gives the checkpoint its name, when all files are there."""
        if ranks.rank != 0:
            self._write_all(ranks, call, unfinished, step, sharded, taken, behind=behind)
            return
        try:
            with kept_fresh(unfinished):
                self._write_all(ranks, call, unfinished, step, sharded, taken, behind=behind)
        except BaseException:
            self._folder.discard(unfinished)
            raise

    def _write_all(
        self,
        ranks: Ranks,
        call: str,
        unfinished: Path,
        step: int,
        sharded: bool,
        taken: content.Content,
        *,
        behind: bool,
    ) -> None:
        alone = behind and not sharded and self._kind == "one"
        gather: Callable[[str, Any], list[Any]] = (lambda _, value: [value]) if alone else ranks.gather
        written, problem = _tried(lambda: self._files(ranks, unfinished, sharded, taken))
        said = gather(f"the files of {call}", (ranks.for_others(problem), written or ()))
        problems = [each for each, _ in said if each]
        if ranks.rank == 0 and not problems:
            all_files = [file for _, mine in said for file in mine]
            _, problem = _tried(lambda: self._complete(ranks, unfinished, all_files))
            problems = [each] if (each := ranks.for_others(problem)) else []
        # All ranks learn whether it exists, and none continues before.
        problems = gather(f"the end of {call}", problems)[0]
        if problems:
            raise problems[0].error(f"step {step} was not saved in {str(self._folder.path)!r}: ")

    def _files(self, ranks: Ranks, folder: Path, sharded: bool, taken: content.Content) -> tuple[StoredFile, ...]:
        try:
            names = files.write_shards(folder, taken.shards, ranks.group, ranks.rank) if sharded else []
            if self._writes_values(ranks):
                names.append(files.file_of(self._kind, ranks.rank))
                files.write_values(folder / names[-1], taken.values)
            return described(folder, names)
        except Exception as err:
            if ranks.rank == 0 and not folder.exists():
                raise CheckpointError(
                    f"another process has removed {folder.name!r}, into which it was being written",
                    hint="one run for each folder",
                ) from err
            raise

    def _complete(self, ranks: Ranks, unfinished: Path, written: Sequence[StoredFile]) -> None:
        from elastic_train.attempts import attempt

        this = attempt()
        more = {"run_id": this.run_id, "round": this.round_index}
        self._folder.complete(
            unfinished, world_size=ranks.size, kind=self._kind, files=written, more=more, claims=self._claims
        )
        if self._keep is not None:
            _, problem = _tried(partial(self._folder.prune, self._keep, self._damaged))
            if problem is not None:
                _logger.warning("old checkpoints stay: %s", reason_of(problem))

    def _write_behind(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as err:  # noqa: BLE001  # whatever it is, `wait` raises it
            failed = err if isinstance(err, CheckpointError) else CheckpointError(reason_of(err))
            self._failed = failed
            _logger.error("%s", failed)

    def wait(self) -> None:
        """Wait for the save in the background. Other ranks need not call it.

        Raises:
            CheckpointError: that save failed on this rank.
        """
        self._join()
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _join(self) -> None:
        if self._saving is None:
            return
        if self._saving.is_alive():
            with saving():
                self._saving.join()
        self._saving = None

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the save in the background. Raise its error, unless an exception is being raised already."""
        if value is None:
            self.wait()
        else:
            self._join()

    # --- loading

    def latest(self) -> int | None:
        """Return the step of the newest checkpoint that all ranks see complete, or `None`. Called: by all ranks.

        A checkpoint is complete if it has its manifest, and all files with the right sizes. Only `load` compares
        checksums.

        Raises:
            CheckpointError: the folder can't be read, or has a checkpoint of another job or of a newer format; or some
                ranks see checkpoints, but all ranks see none in common.
        """
        call = "latest()"
        common = self._look(self._meet(call), call)
        return common[0].step if common else None

    def load(
        self,
        into: Mapping[str, Any] | None = None,
        *,
        step: int | None = None,
        map_location: Any = "cpu",  # noqa: ANN401  # torch's
        verify: bool = True,
    ) -> Loaded | None:
        """Load the newest checkpoint that all ranks can read, or return `None` if there is none. Called: by all ranks.

        Args:
            into: The same names as in `save`. Its objects are loaded and its sharded tensors filled; other values are
                in the result.
            step: Load the newest checkpoint of this step only. `None` means of any step.
            map_location: As in `torch.load`; `load_state_dict` may move tensors again.
            verify: Compare checksums first. A checkpoint with a difference is skipped with a log line, and the one
                before it is loaded.

        Raises:
            CheckpointError: as `latest`; or there are checkpoints, but none can be read.
            ConfigError: `into` or `step` is malformed, or torch is missing or not supported, on any rank.
        """
        with restoring():
            return self._load(into, step, map_location, verify)

    def _load(
        self,
        into: Mapping[str, Any] | None,
        step: int | None,
        map_location: Any,  # noqa: ANN401  # torch's
        verify: bool,
    ) -> Loaded | None:
        call = "load()" if step is None else f"load(step={step!r})"
        _, problem = _tried(lambda: _check_load(into, step))
        ranks = self._meet(call, problem)
        common = self._look(ranks, call, anew=True)
        if step is not None:
            common = [each for each in common if each.step == step]
            if not common:
                raise CheckpointError(
                    f"there is no whole checkpoint of step {step} in {str(self._folder.path)!r}",
                    hint="load() without step",
                )
        reasons: list[str] = []
        for chosen in common:
            read, problem = _tried(partial(self._read, ranks, chosen, map_location, verify))
            said = ranks.gather(f"{call} of {chosen.name!r}", ranks.for_others(problem))
            problems = [each.what for each in said if each]
            if not problems:
                try:
                    return self._loaded(ranks, call, chosen, read, into)
                except UnreadableError as err:
                    problems = [err.what]
            self._damaged.add(chosen.name)
            reasons.append(f"checkpoint {str(chosen.folder)!r} is left out: {problems[0]}")
            if ranks.rank == 0:
                _logger.warning("%s", reasons[-1])
        if reasons:
            raise CheckpointError(reasons[0], hint="another step, a copy, or an empty folder to begin anew")
        return None

    def _read(self, ranks: Ranks, chosen: Checkpoint, map_location: Any, verify: bool) -> "_Read":  # noqa: ANN401
        own = files.file_of(chosen.kind, ranks.rank % chosen.world_size)
        if verify:
            reason = damage(chosen, [own, *chosen.shards[ranks.rank :: ranks.size]])
            if reason:
                raise CheckpointError(reason)
        values = files.read_values(chosen.folder / own, map_location)
        if content.places_of(values) and not chosen.shards:
            raise CheckpointError("it has places of shards, and no shards")
        return _Read(values, files.read_shard_index(chosen.folder, chosen.shards) if chosen.shards else None)

    def _loaded(
        self, ranks: Ranks, call: str, chosen: Checkpoint, read: "_Read", into: Mapping[str, Any] | None
    ) -> Loaded:
        values = read.values
        if chosen.shards:
            shards, problem = _tried(lambda: content.targets(values, into, chosen.name))
            ranks.gather(f"the shards of {call}", None, problem)
            try:
                files.read_shards(chosen.folder, shards, read.index, ranks.group)
            except UnreadableError:
                raise
            except Exception as err:
                raise CheckpointError(
                    f"checkpoint {str(chosen.folder)!r} can't be read: {reason_of(err)}",
                    hint="the state as it was saved: the same names and sizes",
                ) from err
            values = content.joined(values, shards)
        if into is not None:
            content.fill(into, values, chosen.name)
        return Loaded(chosen.step, chosen.world_size, values)

    # --- among ranks

    def _ranks(self) -> Ranks:
        if self._members is None or not self._members.are_those_of_now():
            self._members = Ranks(self._timeout)
            self._claims = claims_of(self._folder.path, self._members.world)
            # Ranks whose process is new have not looked at the folder: all do, together.
            self._serial = self._known = None
        return self._members

    def _meet(self, call: str, problem: Exception | None = None) -> Ranks:
        """Begin a call on all ranks. If they call different methods, or one has a problem, all raise the same error.

        A save in the background has ended afterwards, on this rank and on rank 0.
        """
        self._join()
        ranks = self._ranks()
        mine = f"keep={self._keep!r}, job={self._folder.job!r}, files={self._kind!r}"
        for rank, other in enumerate(all_have := ranks.gather(call, mine, problem)):
            if other != all_have[0]:
                raise error(
                    f"rank {rank} has a Checkpointer({other}), rank 0 one with {all_have[0]}",
                    "the same arguments on all ranks",
                )
        return ranks

    def _look(self, ranks: Ranks, call: str, *, anew: bool = False) -> list[Checkpoint]:
        """Return the checkpoints that all ranks see complete, newest first.

        `anew`: the run continues from this content, so it is no sign of another process that saves in the folder.
        """
        scan, problem = _tried(partial(self._scan, ranks, claims=anew))
        whole: list[Checkpoint] = [each for each in scan.whole if each.name not in self._damaged] if scan else []
        for line in scan.broken if scan and ranks.rank == 0 else ():
            _logger.warning("%s", line)
        view = _View([each.name for each in whole], scan.last_serial if scan else 0, socket.gethostname())
        views = ranks.gather(f"the folder in {call}", view, problem)
        if anew or self._known is None:
            self._known = scan.names.union(*(view.names for view in views))
        self._serial = max(view.last_serial for view in views)
        common = set.intersection(*(set(view.names) for view in views))
        if not common:
            _check_that_nobody_sees_one(self._folder.path, views)
        return [each for each in whole if each.name in common]

    def _scan(self, ranks: Ranks, *, claims: bool) -> Scan:
        if claims and self._claims is not None and ranks.rank == 0:
            self._claims.load()
        return self._folder.scan()


def _check_step(step: object) -> None:
    if type(step) is not int or not 0 <= step <= LAST_STEP:
        raise error(f"save(step={step!r}); expected a whole number, 0 at least", "the number of the step just done")


def _check_load(into: object, step: object) -> None:
    if into is not None and not isinstance(into, Mapping):
        raise error(f"load({type(into).__name__}); expected a state, a dict by name, or None", "load(state)")
    if step is not None and type(step) is not int:
        raise error(f"load(step={step!r}); expected a whole number, or None for the newest", "load() without step")
    import_torch("Checkpointer.load")


class _Begins(NamedTuple):
    """The values with which a rank begins a save."""

    begun: Begun | None
    """Rank 0's value."""
    sharded: bool


class _Read(NamedTuple):
    """The content read from a checkpoint."""

    values: dict[str, Any]
    index: Any
    """The places of its shards."""


class _View(NamedTuple):
    """The folder's content as one rank sees it."""

    names: list[str]
    """The complete checkpoints, newest first."""
    last_serial: int
    host: str


def _check_that_nobody_sees_one(folder: Path, views: Sequence[_View]) -> None:
    """Raise an error if only some ranks see checkpoints: the run would begin anew beside them."""
    seeing = [(rank, view) for rank, view in enumerate(views) if view.names]
    if not seeing:
        return
    rank, view = seeing[0]
    blind = [f"rank {other} on {each.host} sees none" for other, each in enumerate(views) if not each.names]
    raise CheckpointError(
        f"in {str(folder)!r} rank {rank} on {view.host} sees the checkpoint {view.names[0]!r}, and "
        + (blind[0] if blind else "there is none that all ranks see"),
        hint="a folder that all nodes share, or an empty one",
    )


def _tried(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return a call's result or its exception. Where ranks must agree, no rank may leave alone."""
    try:
        return call(), None
    except Exception as err:  # noqa: BLE001  # raised again when all ranks know
        return None, err


_all: Final[weakref.WeakSet[Checkpointer]] = weakref.WeakSet()


def finish_all() -> None:
    """Wait for all saves in the background, before their process group is destroyed."""
    for each in list(_all):
        each._join()
