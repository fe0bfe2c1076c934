"""Planned stops under Lightning: a callback that saves before one, and the checkpoint to go on from.

    trainer = Trainer(…, callbacks=[SaveBeforeStop("saved"), ModelCheckpoint("saved", every_n_train_steps=100)])
    trainer.fit(model, loader, ckpt_path=newest("saved"))

Once it has saved it ends the process, and does not set `trainer.should_stop`: that waits for `min_steps` and
`min_epochs`, validates first, has callbacks save the part of an epoch as a whole one, and lets the script go on behind
`fit` as if the training had come to its end.
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
    """Asks after every optimizer step whether a stop is planned; then saves, on all ranks, and ends the process with 0.

    The checkpoint is Lightning's own, of all that `trainer.save_checkpoint` saves, written beside its name and given it
    when it is complete: `planned-step=N.ckpt`, which takes the place of the one before. What another process is saving
    there is left alone. While gradients are accumulated it does not ask.

    Args:
        folder: Where the checkpoints are; of a file system that all nodes share.
        sampler: The one whose batches the trainer has, through `Batches`: it is counted, and saved with every
            checkpoint, so that a round goes on in the middle of an epoch, at any world size.
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
        """Have the sampler go on from there."""
        if self.sampler is not None:
            self.sampler.load_state_dict(state_dict)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401  # Lightning's
        """Check that all ranks go on from the same step, and end where a stop is planned already: nothing is new."""
        self._step = trainer.global_step
        check_same_step(self._step)
        if should_stop(step=self._step):
            raise SystemExit(0)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:  # noqa: ANN401  # Lightning's
        """Count the batch, and ask where the optimizer has stepped."""
        if self.sampler is not None:
            self.sampler.advance()
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        if should_stop(step=self._step):
            self._save(trainer)
            raise SystemExit(0)

    def _save(self, trainer: Any) -> None:  # noqa: ANN401  # Lightning's
        name = self.folder / f"{_PLANNED}{self._step}.ckpt"
        unfinished = self.folder / trainer.strategy.broadcast(f"{_SAVING}{name.name}-{writer.mark()}")
        if trainer.is_global_zero:
            self._sweep(now_s=None)
        trainer.strategy.barrier("SaveBeforeStop: begin")
        trainer.save_checkpoint(unfinished)
        trainer.strategy.checkpoint_io.teardown()  # what saves in the background has written it then
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
        """Remove what was cut off: at once if its process is known to have ended, else if it was not written to lately.

        `now_s`: by the clock of the folder's file system; None: not known, so that only the former is removed.
        """
        for path in self.folder.glob(f"{_SAVING}{_PLANNED}*"):
            written_s = last_written_s(path)
            is_old = now_s is not None and written_s is not None and now_s - written_s >= SPARED_S
            if is_old or writer.is_gone(path.name.rpartition(".ckpt-")[2]):
                _remove(path)
        for path in self.folder.glob(f"{_REMOVING}{_PLANNED}*"):
            with suppress(OSError):  # it is in nobody's way
                remove(path, by_name=path)


class Batches:
    """The batches of a loader without its length: what is left of an epoch is no measure of the next.

    Lightning else takes the length of a resumed epoch for that of all that follow.

    Args:
        loader: What Lightning is to iterate over once an epoch: `DataLoader(data, batch_sampler=ElasticSampler(…))`.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of an epoch, or of what is left of it."""
        return iter(self.loader)


def newest(folder: str | PathLike[str]) -> str | None:
    """Return the checkpoint of the most steps in a folder, for `fit(ckpt_path=…)`; None: there is none yet.

    By names: those of `SaveBeforeStop`, and of a `ModelCheckpoint` whose `filename` ends with `{step}`, as without one.
    """
    found = ((int(match[1]), path.stat().st_mtime_ns, str(path)) for path in Path(folder).glob("*.ckpt")
             if (match := _STEP.fullmatch(path.name)))  # fmt: skip
    return max(found, default=(0, 0, None))[2]


def _take_place(unfinished: Path, name: Path) -> None:
    """Give what is complete its name, in the place of what has it.

    Raises:
        OSError: it can't have it.
    """
    for tries_left in reversed(range(_TRIES)):
        if name.is_dir():  # of a sharded strategy; no rename takes its place
            _remove(name)
        try:
            give_name(unfinished, name)
        except OSError as err:
            if err.errno not in TAKEN or not tries_left:
                raise  # else another process has saved the same step meanwhile
        else:
            return


def _remove(path: Path) -> None:
    """Remove what has another in its place, or was cut off. If that fails, the next save tries again."""
    with suppress(OSError):
        remove(path, by_name=path.with_name(f"{_REMOVING}{path.name.removeprefix(_SAVING)}-{writer.mark()}"))
