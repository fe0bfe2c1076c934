"""Save before a planned stop under Lightning, and resume: a callback, and the newest checkpoint.

    trainer = Trainer(…, callbacks=[SaveBeforeStop("saved"), ModelCheckpoint("saved", every_n_train_steps=100)])
    trainer.fit(model, loader, ckpt_path=newest("saved"))

After its save the callback ends the process. It does not set `trainer.should_stop`, with which Lightning waits for
`min_steps` and `min_epochs`, validates first, saves a part of an epoch as a whole one, and continues the script after
`fit` as if training were complete.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Final

from elastic_train.checkpoint import writer
from elastic_train.checkpoint.disk import give_name, kept_fresh, remove, sync_file
from elastic_train.checkpoint.layout import SPARED_S, TAKEN, last_written_s
from elastic_train.marks import saving
from elastic_train.resumed import check_same_step
from elastic_train.sampler import ElasticSampler
from elastic_train.stops import should_stop

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as err:
        raise ImportError(
            f"elastic_train.lightning needs lightning 2, or pytorch-lightning, which can't be imported here ({err}). "
            "Try: the environment that has it"
        ) from None

_STEP: Final = re.compile(r"(?!\.)(?:.*-)?step=(\d+)(?:-v\d+)?\.ckpt")
_PLANNED: Final = "planned-step="
_SAVING: Final = ".saving-"
_REMOVING: Final = ".removing-"
_TRIES: Final = 10


class SaveBeforeStop(Callback):  # type: ignore[misc]  # Any, where types are checked without Lightning
    """After every optimizer step, checks for a planned stop; if there is one, saves on all ranks and exits with code 0.

    The checkpoint `planned-step=N.ckpt` has all that `trainer.save_checkpoint` saves. It gets its name when it is
    complete, and replaces the previous one. Files that another process is saving there are left alone. The callback
    does not check while gradients are accumulated.

    Args:
        folder: Folder of the checkpoints, on a file system that all nodes share.
        sampler: The sampler of the trainer's loader, which is wrapped in `Batches`. The callback advances it and saves
            it with every checkpoint, so that training resumes in the middle of an epoch, at any world size.
    """

    def __init__(self, folder: str | PathLike[str], *, sampler: ElasticSampler | None = None) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.sampler = sampler
        self._step = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state, for the trainer's checkpoint."""
        return self.sampler.state_dict() if self.sampler is not None else {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the sampler's place in the epoch."""
        if self.sampler is not None:
            self.sampler.load_state_dict(state_dict)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401  # Lightning's
        """Check that all ranks resume from the same step. If a stop is planned already, exit without a save."""
        self._step = trainer.global_step
        check_same_step(self._step)
        if should_stop(step=self._step):
            raise SystemExit(0)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:  # noqa: ANN401  # Lightning's
        """Advance the sampler, and check for a planned stop if the optimizer has stepped."""
        if self.sampler is not None:
            self.sampler.advance()
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        if should_stop(step=self._step):
            with saving():
                self._save(trainer)
            raise SystemExit(0)

    def _save(self, trainer: Any) -> None:  # noqa: ANN401  # Lightning's
        name = self.folder / f"{_PLANNED}{self._step}.ckpt"
        unfinished = self.folder / trainer.strategy.broadcast(f"{_SAVING}{name.name}-{writer.mark()}")
        if trainer.is_global_zero:
            self._sweep(now_s=None)
        trainer.strategy.barrier("SaveBeforeStop: begin")
        trainer.save_checkpoint(unfinished)
        trainer.strategy.checkpoint_io.teardown()  # a save in the background is complete afterwards
        if trainer.is_global_zero:
            with kept_fresh(unfinished):
                before = [path for path in self.folder.glob(f"{_PLANNED}*.ckpt") if path != name]
                for path in unfinished.rglob("*"):
                    sync_file(path)
                now_s = unfinished.stat().st_mtime
                _take_place(unfinished, name)
            for path in before:
                _remove(path)
            self._sweep(now_s=now_s)
        trainer.strategy.barrier("SaveBeforeStop: end")

    def _sweep(self, *, now_s: float | None) -> None:
        """Remove unfinished checkpoints whose process is known to have ended, or that were not written to recently.

        `now_s`: time by the clock of the folder's file system. `None` means not known; then only the former are
        removed.
        """
        for path in self.folder.glob(f"{_SAVING}{_PLANNED}*"):
            written_s = last_written_s(path)
            is_old = now_s is not None and written_s is not None and now_s - written_s >= SPARED_S
            if is_old or writer.is_gone(path.name.rpartition(".ckpt-")[2]):
                _remove(path)
        for path in self.folder.glob(f"{_REMOVING}{_PLANNED}*"):
            with suppress(OSError):  # the remains do no harm
                remove(path, by_name=path)


class Batches:
    """A loader's batches without a length, for a loader that resumes in the middle of an epoch.

    With a length, Lightning would use that of the resumed epoch for all later epochs.

    Args:
        loader: Loader that Lightning iterates once per epoch: `DataLoader(data, batch_sampler=ElasticSampler(…))`.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        """Return the batches that are left of the epoch."""
        return iter(self.loader)


def newest(folder: str | PathLike[str]) -> str | None:
    """Return the checkpoint with the most steps in a folder, for `fit(ckpt_path=…)`. `None` if there is none yet.

    The step is read from the name: that of `SaveBeforeStop`, or of a `ModelCheckpoint` whose `filename` ends with
    `{step}`, as the default does.
    """
    found = ((int(match[1]), path.stat().st_mtime_ns, str(path)) for path in Path(folder).glob("*.ckpt")
             if (match := _STEP.fullmatch(path.name)))  # fmt: skip
    return max(found, default=(0, 0, None))[2]


def _take_place(unfinished: Path, name: Path) -> None:
    """Give a complete checkpoint its name, and replace what has that name.

    Raises:
        OSError: the name can't be given.
    """
    for tries_left in reversed(range(_TRIES)):
        if name.is_dir():  # from a sharded strategy; a rename can't replace a folder
            _remove(name)
        try:
            give_name(unfinished, name)
        except OSError as err:
            if err.errno not in TAKEN or not tries_left:
                raise  # else another process has saved the same step
        else:
            return


def _remove(path: Path) -> None:
    """Remove a replaced or unfinished checkpoint. If that fails, the next save tries again."""
    with suppress(OSError):
        remove(path, by_name=path.with_name(f"{_REMOVING}{path.name.removeprefix(_SAVING)}-{writer.mark()}"))
