"""A training script with elastic-train, as mypy --strict sees it; `make lint` checks this file, and no test runs it."""

from datetime import timedelta
from typing import Any, assert_type

from elastic_train import (
    Attempt,
    Checkpointer,
    CheckpointError,
    ElasticSampler,
    JoinedGroup,
    Loaded,
    attempt,
    init_process_group,
)


class Ema:
    """An object of the script's, with a state."""

    def state_dict(self) -> dict[str, float]:
        return {"decay": 0.99}

    def load_state_dict(self, state: dict[str, float]) -> None:
        assert_type(state["decay"], float)


def main() -> None:
    this = attempt()
    assert_type(this, Attempt)
    assert_type(this.round_index, int | None)
    assert_type(this.rank, int)
    assert_type(this.last_end, str | None)
    with init_process_group("gloo", timeout=timedelta(minutes=1)) as group:
        assert_type(group, JoinedGroup)
        assert_type(group.world_size, int)
        sampler = ElasticSampler([1, 2, 3], batch_size=2, last="drop")
        state = {"ema": Ema(), "sampler": sampler}
        with Checkpointer("checkpoints", keep=None, files="each", timeout="10m") as checkpoints:
            assert_type(checkpoints.latest(), int | None)
            found = checkpoints.load(state, step=3, verify=False)
            assert_type(found, Loaded | None)
            if found is not None:
                assert_type(found.state, dict[str, Any])
            for batch in sampler:
                assert_type(batch, list[int])
                sampler.advance()
            try:
                checkpoints.save(state, step=len(sampler), wait=False)
                checkpoints.wait()
            except CheckpointError as error:
                assert_type(error.hint, str)
