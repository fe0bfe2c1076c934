"""Save before a planned stop under transformers' Trainer, and resume: a callback, and the newest checkpoint.

trainer = Trainer(…, callbacks=[SaveBeforeStop()])
trainer.train(resume_from_checkpoint=newest(arguments.output_dir))
"""

import re
from os import PathLike
from pathlib import Path
from typing import Any, Final

from elastic_train.marks import saving
from elastic_train.resumed import check_same_step
from elastic_train.stops import should_stop

try:
    from transformers import TrainerCallback
except ImportError as err:
    raise ImportError(
        f"elastic_train.transformers needs transformers, which can't be imported here ({err}). "
        "Try: the environment that has it"
    ) from None

_NAME: Final = re.compile(r"checkpoint-(\d+)")
_LAST_WRITTEN: Final = "trainer_state.json"


class SaveBeforeStop(TrainerCallback):  # type: ignore[misc]  # Any, where types are checked without transformers
    """After every optimizer step, checks for a planned stop; if there is one, makes the trainer save, and exits with 0.

    The process exits when this rank has saved: after `train()` a script would go on as if training were complete. An
    evaluation that is due at that step is skipped, as it would use the time for the save.
    """

    def __init__(self) -> None:
        self._stops = False
        self._mark = saving()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401  # transformers'
        """Check that all ranks resume from the same step. If a stop is planned already, exit without a save."""
        check_same_step(state.global_step)
        if should_stop(step=state.global_step):
            raise SystemExit(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401  # transformers'
        """Check for a planned stop, and make the trainer save and stop."""
        if should_stop(step=state.global_step):
            if not self._stops:
                self._mark.__enter__()  # the trainer saves next
            self._stops = control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401  # transformers'
        """Exit after the save for a planned stop."""
        if self._stops:
            self._mark.__exit__(None, None, None)
            raise SystemExit(0)


def newest(output_dir: str | PathLike[str]) -> str | None:
    """Return the newest complete checkpoint of a trainer, for `train(resume_from_checkpoint=…)`, or `None`.

    Unlike transformers' `get_last_checkpoint`, it skips a checkpoint whose save was interrupted.
    """
    found = ((int(match[1]), str(path)) for path in Path(output_dir).glob("checkpoint-*")
             if (match := _NAME.fullmatch(path.name)) and (path / _LAST_WRITTEN).exists())  # fmt: skip
    return max(found, default=(0, None))[1]
