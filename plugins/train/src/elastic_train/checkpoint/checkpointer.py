"""The checkpoints of a run, saved and loaded by all its ranks together: `Checkpointer`."""

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

from elastic_core.api import ElasticError
from elastic_train.checkpoint import content, files
from elastic_train.checkpoint.errors import CheckpointError, hint_of, reason_of
from elastic_train.checkpoint.layout import (
    Checkpoint,
    CheckpointFolder,
    StoredFile,
    damage,
    described,
)
from elastic_train.checkpoint.ranks import Ranks
from elastic_train.time_limits import time_limit
from elastic_train.variables import error

_KINDS: Final = ("one", "each")
_logger: Final = logging.getLogger("elastic_train")


class Loaded(NamedTuple):
    """What was loaded."""

    step: int
    """The step that it was saved at."""
    world_size: int
    """How many ranks saved it."""
    state: dict[str, Any]
    """The values as saved; what was loaded into objects, too."""


class Checkpointer:
    """Saves a script's state so that one of the last is whole, whenever the process ends, and loads it for all ranks.

    All ranks make one and call each method in the same order, once the process group is there; a process without a
    group is alone. Where a checkpoint is looked for, each rank looks, and the newest is taken that all see whole. No
    code is run that a checkpoint brings: it holds tensors and plain values.

    Args:
        folder: Where checkpoints are, one for all ranks. Made by the first save.
        keep: How many stay, the newest; None: all.
        job: Whose they are: those of another job are refused. Empty: not looked at.
        files: `one`: rank 0 writes its state, which the others have as well; `each`: every rank writes its own, and
            rank r of another world size reads that of rank r modulo the old one. Of sharded tensors each rank writes
            its part in any case, and they are loaded on any mesh.
        timeout: How long ranks wait for one another in a save: `"30m"`, seconds, a `timedelta`; None: torch's default.

    Raises:
        ConfigError: an argument is none of these.

    Threading: the caller's. With `save(…, wait=False)` a thread of its own writes; one save at a time.
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
        """Look at nothing yet."""
        if keep is not None and (type(keep) is not int or keep < 1):
            raise error(f"Checkpointer(keep={keep!r}): needed 1 at least, or None for all", "keep=3")
        if files not in _KINDS:
            raise error(f"Checkpointer(files={files!r}): needed 'one' or 'each'", "files='one'")
        self._folder = CheckpointFolder(Path(os.path.abspath(folder)), job)  # noqa: PTH100  # follows no link
        self._keep = keep
        self._kind = files
        self._timeout = time_limit(timeout, "Checkpointer")
        self._members: Ranks | None = None
        self._serial: int | None = None
        """Of the newest checkpoint that any rank knows; None: nobody has looked."""
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
            state: By name: tensors, plain values, dicts and lists of these, and objects with `state_dict()`, such as
                modules, optimizers and samplers. Of ranks other than 0, with `files="one"`, only shards count.
            step: What it is the state of, from 0; may be one that was saved before.
            wait: Return when the checkpoint is on the disk. Else a copy in memory is made, and a thread writes it:
                the next save waits for it, and so do `wait()` and the end of the interpreter.

        Raises:
            CheckpointError: it could not be saved, the same on all ranks; whole ones are as they were.
            ConfigError: the step is none, or there is something in the state that could not be read again.
        """
        if type(step) is not int or step < 0:
            raise error(f"save(step={step!r}): needed a whole number, 0 at least", "the number of the step just done")
        self._join()
        ranks = self._ranks()
        if self._serial is None:
            self._look()
        serial = (self._serial or 0) + 1
        taken, problem = _tried(lambda: self._taken(ranks, state, wait))
        if ranks.rank == 0 and problem is None:
            _, problem = _tried(lambda: self._folder.begin(serial, step))
        unfinished = self._folder.unfinished(serial, step)
        asked = _Asked(step, wait, bool(taken and taken.shards))
        sharded = any(each.sharded for each in self._agree(ranks, problem, asked, unfinished))
        self._serial = serial
        write = partial(self._write, ranks, unfinished, step, sharded, taken, behind=not wait)
        if wait:
            write()
        else:
            self._failed = None
            self._saving = threading.Thread(target=self._write_behind, args=(write,), name="elastic-checkpoint")
            self._saving.start()

    def _taken(self, ranks: Ranks, state: Mapping[str, Any], wait: bool) -> content.Content:
        """Return what this rank is to write, copied if it may change before."""
        taken = content.content_of(state)
        if not self._writes_values(ranks):
            taken = content.Content({}, taken.shards)
        return taken if wait else content.snapshot(taken)

    def _writes_values(self, ranks: Ranks) -> bool:
        return ranks.rank == 0 or self._kind == "each"

    def _agree(self, ranks: Ranks, problem: Exception | None, asked: "_Asked", unfinished: Path) -> list["_Asked"]:
        """Have all ranks begin, or none; return what each was asked for."""
        said = ranks.gather((_for_others(problem, ranks), asked))
        problems = [each for each, _ in said if each] or [
            _Problem(f"rank {rank} saves {other.words()}, rank 0 {said[0][1].words()}", "one step on all ranks")
            for rank, (_, other) in enumerate(said)
            if other[:2] != said[0][1][:2]
        ]
        if not problems:
            return [each for _, each in said]
        if ranks.rank == 0:
            self._folder.discard(unfinished)
        if problem is not None:
            raise problem
        raise problems[0].error()

    def _write(
        self, ranks: Ranks, unfinished: Path, step: int, sharded: bool, taken: content.Content, *, behind: bool
    ) -> None:
        """Write this rank's files, and have rank 0 give the checkpoint its name when all are there."""
        alone = behind and not sharded and self._kind == "one"
        gather: Callable[[Any], list[Any]] = (lambda value: [value]) if alone else ranks.gather
        written, problem = _tried(lambda: self._files(ranks, unfinished, sharded, taken))
        said = gather((_for_others(problem, ranks), written or ()))
        problems = [each for each, _ in said if each]
        if ranks.rank == 0 and not problems:
            all_files = [file for _, mine in said for file in mine]
            _, problem = _tried(lambda: self._complete(ranks, unfinished, all_files))
            problems = [each] if (each := _for_others(problem, ranks)) else []
        if ranks.rank == 0 and problems:
            self._folder.discard(unfinished)
        problems = gather(problems)[0]  # all learn whether it is there, and nobody goes on before
        if problems:
            raise problems[0].error(f"step {step} was not saved in {str(self._folder.path)!r}: ")

    def _files(self, ranks: Ranks, folder: Path, sharded: bool, taken: content.Content) -> tuple[StoredFile, ...]:
        names = files.write_shards(folder, taken.shards, ranks.group, ranks.rank) if sharded else []
        if self._writes_values(ranks):
            names.append(files.file_of(self._kind, ranks.rank))
            files.write_values(folder / names[-1], taken.values)
        return described(folder, names)

    def _complete(self, ranks: Ranks, unfinished: Path, written: Sequence[StoredFile]) -> None:
        from elastic_train.attempts import attempt

        this = attempt()
        more = {"run_id": this.run_id, "round": this.round_index}
        self._folder.complete(unfinished, world_size=ranks.size, kind=self._kind, files=written, more=more)
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
        """Wait for a save in the background. Needs no other rank.

        Raises:
            CheckpointError: it has failed, on this rank.
        """
        self._join()
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _join(self) -> None:
        if self._saving is not None:
            self._saving.join()
            self._saving = None

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for a save in the background; its failure is raised unless there is an exception already."""
        if value is None:
            self.wait()
        else:
            self._join()

    # --- loading

    def latest(self) -> int | None:
        """Return the step of the newest checkpoint that all ranks see whole; None: there is none. Called: by all ranks.

        Whole is what has its manifest and its files in their sizes; `load` looks at checksums, too.

        Raises:
            CheckpointError: the folder can't be read, or has a checkpoint of another job or of a newer format; or some
                ranks see checkpoints, and there is none that all see.
        """
        self._join()
        common = self._look()
        return common[0].step if common else None

    def load(
        self,
        into: Mapping[str, Any] | None = None,
        *,
        step: int | None = None,
        map_location: Any = "cpu",  # noqa: ANN401  # torch's
        verify: bool = True,
    ) -> Loaded | None:
        """Load the newest checkpoint that all ranks can read; None: there is none yet. Called: by all ranks.

        Args:
            into: The state as it is saved: its objects are loaded, its sharded tensors filled. The rest is returned.
            step: The newest of this step and no other.
            map_location: Where tensors go, as torch has it; `load_state_dict` puts them where it wants.
            verify: Compare checksums first; one that differs is left out, with a line, and the one before is taken.

        Raises:
            CheckpointError: as `latest`; or there are checkpoints, and none can be read.
        """
        self._join()
        ranks = self._ranks()
        common = self._look()
        if step is not None:
            common = [each for each in common if each.step == step]
            if not common:
                raise CheckpointError(
                    f"there is no whole checkpoint of step {step} in {str(self._folder.path)!r}",
                    hint="load() without step",
                )
        reasons: list[str] = []
        for chosen in common:
            values, problem = _tried(partial(self._read, ranks, chosen, map_location, verify))
            problems = [each for each in ranks.gather(_for_others(problem, ranks)) if each]
            if not problems:
                return self._loaded(ranks, chosen, values, into)
            self._damaged.add(chosen.name)
            reasons.append(f"checkpoint {str(chosen.folder)!r} is left out: {problems[0].what}")
            if ranks.rank == 0:
                _logger.warning("%s", reasons[-1])
        if reasons:
            raise CheckpointError(reasons[0], hint="another step, a copy, or an empty folder to begin anew")
        return None

    def _read(self, ranks: Ranks, chosen: Checkpoint, map_location: Any, verify: bool) -> Any:  # noqa: ANN401  # values
        own = files.file_of(chosen.kind, ranks.rank % chosen.world_size)
        if verify:
            reason = damage(chosen, [own, *chosen.shards[ranks.rank :: ranks.size]])
            if reason:
                raise CheckpointError(reason)
        return files.read_values(chosen.folder / own, map_location)

    def _loaded(self, ranks: Ranks, chosen: Checkpoint, values: Any, into: Mapping[str, Any] | None) -> Loaded:  # noqa: ANN401
        if chosen.shards:
            shards = content.targets(values, into, chosen.name)
            try:
                files.read_shards(chosen.folder, shards, ranks.group)
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
        return self._members

    def _look(self) -> list[Checkpoint]:
        """Return the checkpoints that all ranks see whole, newest first."""
        ranks = self._ranks()
        ranks.gather(None)  # rank 0 may have been saving in the background until now
        scan, problem = _tried(self._folder.scan)
        whole: list[Checkpoint] = [each for each in scan.whole if each.name not in self._damaged] if scan else []
        for line in scan.broken if scan and ranks.rank == 0 else ():
            _logger.warning("%s", line)
        view = _View([each.name for each in whole], scan.last_serial if scan else 0, socket.gethostname())
        said = ranks.gather((_for_others(problem, ranks), view))
        if problem is not None:
            raise problem
        for each, _ in said:
            if each:
                raise each.error()
        views = [view for _, view in said]
        self._serial = max(view.last_serial for view in views)
        common = set.intersection(*(set(view.names) for view in views))
        if not common:
            _check_that_nobody_sees_one(self._folder.path, views)
        return [each for each in whole if each.name in common]


class _Asked(NamedTuple):
    """What a rank was asked to save."""

    step: int
    wait: bool
    sharded: bool

    def words(self) -> str:
        return f"step {self.step}{'' if self.wait else ' in the background'}"


class _View(NamedTuple):
    """What one rank sees in the folder."""

    names: list[str]
    """Of what is whole, newest first."""
    last_serial: int
    host: str


def _check_that_nobody_sees_one(folder: Path, views: Sequence[_View]) -> None:
    """Refuse to begin anew beside checkpoints that only some ranks see."""
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


class _Problem(NamedTuple):
    """A rank's problem, as the others have it."""

    what: str
    hint: str

    def error(self, before: str = "") -> CheckpointError:
        """Return the error that all ranks raise."""
        return CheckpointError(f"{before}{self.what}", hint=self.hint)


def _for_others(problem: Exception | None, ranks: Ranks) -> _Problem | None:
    """Return a problem as the other ranks are to have it; None: there is none."""
    if problem is None:
        return None
    what = problem.what if isinstance(problem, ElasticError) else reason_of(problem)
    where = f" (rank {ranks.rank} on {socket.gethostname()})" if ranks.size > 1 else ""
    return _Problem(f"{what}{where}", hint_of(problem))


def _tried(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return a call's result, or its exception: where ranks must agree, none may leave alone."""
    try:
        return call(), None
    except Exception as err:  # noqa: BLE001  # raised again when all ranks know
        return None, err


_all: Final[weakref.WeakSet[Checkpointer]] = weakref.WeakSet()


def finish_all() -> None:
    """Wait for whatever is saved in the background: the group that its ranks talk in is about to go."""
    for each in list(_all):
        each._join()
