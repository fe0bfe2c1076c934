"""Checkpoints of real ranks, of a process alone, and of one that ends while it saves."""

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.api import ConfigError
from elastic_train import Checkpointer, CheckpointError

HERE = Path(__file__).parent


@pytest.mark.timeout(300)
def test_three_ranks_save_and_two_load(elastic, tmp_path):
    for ranks, what in ((3, "three"), (2, "two")):
        agent = elastic(
            *("--nproc-per-node", ranks, "--omp-threads", 1, HERE / "checkpoint_workers.py", what, tmp_path)
        )
        assert agent.wait(120) == 0, agent.err
        assert agent.out == "done\n" * ranks
    # Those that were saved in the background at the end are there, and whole.
    assert Checkpointer(tmp_path / "one").latest() == 20
    assert Checkpointer(tmp_path / "parts").latest() == 20


def test_a_save_that_is_cut_leaves_the_one_before_or_its_own(tmp_path):
    done = subprocess.run(
        [sys.executable, HERE / "cut_saves.py", tmp_path / "checkpoints"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    cuts, before = map(int, re.fullmatch(r"(\d+) cuts, (\d+) before .*\n", done.stdout).groups())
    assert cuts > before > 5


def test_objects_are_saved_and_loaded_by_their_state(tmp_path, caplog):
    import torch

    def parts():
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])  # whose state has a Counter
        objects = {"model": model, "optimizer": optimizer, "schedule": schedule}
        return objects | {"step": 4, "random": torch.get_rng_state()}

    state, other = parts(), parts()
    with Checkpointer(tmp_path, job="digits") as checkpoints:
        checkpoints.save(state, step=4)
        loaded = checkpoints.load(other)
        assert (loaded.step, loaded.state["step"]) == (4, 4)
        assert torch.equal(other["model"][0].weight, state["model"][0].weight)
        assert other["optimizer"].state_dict()["state"][0]["step"] == 1
        with pytest.raises(
            CheckpointError, match=r"has nothing for 'ema'; it has 'model', .* Try: load\(\) without it"
        ):
            checkpoints.load({"model": other["model"], "ema": torch.nn.Linear(1, 1)})
        with pytest.raises(CheckpointError, match="there is no whole checkpoint of step 5"):
            checkpoints.load(step=5)
        checkpoints.save(state, step=5)
        file = tmp_path / "00000002-step-5" / "state.pt"
        file.write_bytes(file.read_bytes()[:-1] + b"?")
        assert checkpoints.load(other).step == 4
        assert "00000002-step-5' is left out: the checksum of state.pt differs" in caplog.text
        file = tmp_path / "00000001-step-4" / "state.pt"
        file.write_bytes(file.read_bytes()[:-1] + b"?")
        with pytest.raises(
            CheckpointError, match=r"is left out: the checksum .* Try: another step, a copy, or an empty"
        ):
            checkpoints.load(other)


def test_what_could_not_be_read_again_is_refused_before_it_is_written(tmp_path):
    import numpy
    import torch

    checkpoints = Checkpointer(tmp_path)
    for bad, words in (
        ({"loss": numpy.float64(1)}, r"state\['loss'\] is a numpy.float64: .* Try: torch.as_tensor"),
        ({"a": {"b": [1, object()]}}, r"state\['a'\]\['b'\]\[1\] is a builtins.object"),
        ({"a": {(1, 2): 1}}, r"a key of state\['a'\] is a builtins.tuple"),
        ([1], "a state is a dict by name, not list"),
    ):
        with pytest.raises(ConfigError, match=words):
            checkpoints.save(bad, step=1)
    fine = {"a": (1, [2.0, {"b": {None, "c"}}]), "d": torch.nn.Parameter(torch.ones(2)), "e": torch.float16, "f": b"g"}
    checkpoints.save(fine, step=1)
    assert checkpoints.load().state["a"] == (1, [2.0, {"b": {None, "c"}}])


class _Attack:
    def __reduce__(self):
        return print, ("code of a stranger's",)


def test_no_code_of_a_checkpoint_is_run(tmp_path, capsys):
    import torch

    checkpoints = Checkpointer(tmp_path)
    checkpoints.save({"a": 1}, step=1)
    torch.save({"a": _Attack()}, tmp_path / "00000001-step-1" / "state.pt")
    manifest = tmp_path / "00000001-step-1" / "manifest.json"
    size = (tmp_path / "00000001-step-1" / "state.pt").stat().st_size
    manifest.write_text(re.sub(r'"bytes": \d+', f'"bytes": {size}', manifest.read_text()))
    with pytest.raises(CheckpointError, match="there is something in it that only code could read"):
        checkpoints.load(verify=False)
    assert capsys.readouterr().out == ""


def test_a_save_in_the_background_that_fails_is_known_when_it_is_waited_for(tmp_path, monkeypatch, caplog):
    from elastic_train.checkpoint import files

    checkpoints = Checkpointer(tmp_path)
    checkpoints.save({"a": 1}, step=1)

    def full(path, values):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(files, "write_values", full)
        checkpoints.save({"a": 2}, step=2, wait=False)
        with pytest.raises(CheckpointError, match=r"step 2 was not saved in .*: No space left .* Try: more room there"):
            checkpoints.wait()
    assert "step 2 was not saved" in caplog.text
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["00000001-step-1"]
    checkpoints.wait()
    checkpoints.save({"a": 3}, step=3)
    assert checkpoints.latest() == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"keep": 0}, "needed 1 at least"),
        ({"files": "all"}, "'one' or 'each'"),
        ({"timeout": "soon"}, "a time above 0"),
    ],
)
def test_arguments_are_checked(arguments, words):
    with pytest.raises(ConfigError, match=words):
        Checkpointer("checkpoints", **arguments)


def test_a_step_is_a_whole_number(tmp_path):
    for step in (-1, 1.5, True):
        with pytest.raises(ConfigError, match="needed a whole number, 0 at least"):
            Checkpointer(tmp_path).save({}, step=step)
