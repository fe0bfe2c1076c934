"""Checkpoints of real ranks, of a process alone, and of one that ends while it saves."""

import logging
import os
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


@pytest.mark.timeout(300)
def test_ranks_that_differ_all_raise_the_same(elastic, tmp_path):
    agent = elastic("--nproc-per-node", 2, "--omp-threads", 1, HERE / "differing_ranks.py", tmp_path)
    assert agent.wait(120) == 0, agent.err
    assert agent.out == "done\n" * 2


def test_a_save_that_is_cut_leaves_the_one_before_or_its_own(tmp_path):
    done = subprocess.run(
        [sys.executable, HERE / "cut_saves.py", tmp_path / "checkpoints"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    cuts, before = map(int, re.fullmatch(r"(\d+) cuts, (\d+) before .*\n", done.stdout).groups())
    assert cuts > before > 5


def test_two_processes_of_a_round_that_save_into_one_folder_at_once_lose_nothing_and_log_it(tmp_path):
    steps = 40
    one_round = {"TORCHELASTIC_RUN_ID": "one", "ELASTIC_ROUND": "0", "MASTER_ADDR": "::1", "MASTER_PORT": "1"}
    both = [
        subprocess.Popen(
            [sys.executable, HERE / "two_writers.py", tmp_path / "checkpoints", str(mine), str(steps)],
            env=os.environ | one_round,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for mine in (0, 1)
    ]
    for _ in range(2):
        assert [each.stdout.readline() for each in both] == ["ready\n"] * 2
        for each in both:
            each.stdin.write("go\n")
            each.stdin.flush()
    said = [each.communicate(timeout=120)[1] for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    lines = "".join(said).splitlines()
    assert lines
    assert len(lines) <= 2  # once for each process
    assert all("another process saves there" in line for line in lines)
    left = sorted(entry.name for entry in (tmp_path / "checkpoints").glob("*-step-*"))
    assert 2 <= len(left) <= 4  # one of them prunes while the other saves
    loaded = Checkpointer(tmp_path / "checkpoints").load()
    assert loaded.step == steps - 1
    assert len(set(loaded.state["values"].tolist())) == 1


def test_a_round_saves_no_more_when_the_next_one_has_loaded(tmp_path, monkeypatch):
    from elastic_train.checkpoint import claims, files

    def of_round(index):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "bert-7")
        monkeypatch.setenv("ELASTIC_ROUND", str(index))
        claims._held.clear()  # as a process of its own has none
        return Checkpointer(tmp_path, keep=1)

    old = of_round(0)
    old.save({"a": 1}, step=1)
    assert Checkpointer(tmp_path, keep=1).load().step == 1  # another one of the same round
    old.save({"a": 2}, step=2)
    new, write = of_round(1), files.write_values

    def written_while_the_next_round_loads(path, values):
        write(path, values)
        assert new.load().step == 2

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_values", written_while_the_next_round_loads)
        old.save({"a": 3}, step=3, wait=False)
        with pytest.raises(CheckpointError, match=r"^step 3 was not saved in '.*': round 1 of run 'bert-7' \(pid"):
            old.wait()
    for wait in (True, False):
        with pytest.raises(CheckpointError, match=r"^step 3 was not saved in '.*': round 1 of run 'bert-7' \(pid"):
            old.save({"a": 3}, step=3, wait=wait)
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["00000002-step-2"]
    new.save({"a": 4}, step=4)
    assert Checkpointer(tmp_path).load().state == {"a": 4}


def test_a_save_into_a_folder_that_goes_is_one_line(tmp_path, monkeypatch):
    from elastic_train.checkpoint import files

    write = files.write_values

    def swept(path, values):
        path.parent.rmdir()
        write(path, values)

    monkeypatch.setattr(files, "write_values", swept)
    with pytest.raises(CheckpointError, match=r"another process has removed '\.saving-.* Try: one run for each folder"):
        Checkpointer(tmp_path).save({"a": 1}, step=1)


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
        ({"loss": numpy.float64(1)}, r"state\['loss'\] is a numpy.float64; expected .* Try: torch.as_tensor"),
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


ALTERED = {
    "as_bytes": ".metadata of its shards has an entry that is no tensor (\"['w']\"), which only code could read",
    "as_tensor": "there is something in it that only code could read",
    "as_index": ".metadata of its shards has something that only code could read",
    "as_values": "there is something in it that only code could read",
    "as_old_values": "there is something in it that only code could read",
    "endless": "there is something in it that has itself in it, or is nested too deep",
    "no_shards": "it has places of shards, and no shards",
}


def test_an_altered_sharded_checkpoint_runs_nothing_and_the_one_before_is_loaded(tmp_path):
    done = subprocess.run(
        [sys.executable, HERE / "altered_shards.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *(f"{name} 1 checkpoint '/{name}/00000002-step-2' is left out: {reason}" for name, reason in ALTERED.items()),
        "full step 3 was not saved in '/honest': File too large",
    ]


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
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".claim-00000001", "00000001-step-1"]
    checkpoints.wait()
    checkpoints.save({"a": 3}, step=3)
    assert checkpoints.latest() == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"keep": 0}, "expected 1 at least"),
        ({"files": "all"}, "'one' or 'each'"),
        ({"timeout": "soon"}, "a time above 0"),
    ],
)
def test_arguments_are_checked(arguments, words):
    with pytest.raises(ConfigError, match=words):
        Checkpointer("checkpoints", **arguments)


def test_a_step_is_a_whole_number(tmp_path):
    for step in (-1, 1.5, True):
        with pytest.raises(ConfigError, match="expected a whole number, 0 at least"):
            Checkpointer(tmp_path).save({}, step=step)
