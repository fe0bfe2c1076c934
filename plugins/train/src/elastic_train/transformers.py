"""Planned stops under transformers' Trainer: a callback that has it save before one, and the checkpoint to go on from.

trainer = Trainer(…, callbacks=[SaveBeforeStop()])
trainer.train(resume_from_checkpoint=newest(arguments.output_dir))
"""

import re
from os import PathLike
from pathlib import Path
from typing import Any, Final

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
    """Asks after every optimizer step whether a stop is planned; then has the trainer save, and ends the process.

    With 0, once this rank has saved: behind `train()` a script would go on as if the training had come to its end. An
    evaluation that is due at that very step is left out, as it would take the time that there is for the save.
    """

    def __init__(self) -> None:
        self._stops = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401  # transformers'
        """Check that all ranks go on from the same step, and end where a stop is planned already: nothing is new."""
        check_same_step(state.global_step)
        if should_stop(step=state.global_step):
            raise SystemExit(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401  # transformers'
        """Ask, and have the trainer save and stop."""
        if should_stop(step=state.global_step):
            self._stops = control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401  # transformers'
        """End after the save for the sake of which the trainer stops."""
        if self._stops:
            raise SystemExit(0)


def newest(output_dir: str | PathLike[str]) -> str | None:
    """Return the newest checkpoint of a trainer that was written to its end, for `train(resume_from_checkpoint=…)`.

    None: there is none yet. transformers' own `get_last_checkpoint` takes one, too, whose save was cut off.
    """
    found = ((int(match[1]), str(path)) for path in Path(output_dir).glob("checkpoint-*")
             if (match := _NAME.fullmatch(path.name)) and (path / _LAST_WRITTEN).exists())  # fmt: skip
    return max(found, default=(0, None))[1]
