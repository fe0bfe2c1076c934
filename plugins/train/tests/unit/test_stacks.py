"""The callbacks for Lightning and transformers, called by stand-ins; `make ecosystem` has the real ones."""

import importlib
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from elastic_train import ElasticSampler, marks, resumed
from elastic_train.checkpoint import writer
from patience import patience

MODULES = {
    "lightning": ("lightning.pytorch", "Callback", "needs lightning 2, or pytorch-lightning"),
    "transformers": ("transformers", "TrainerCallback", "needs transformers"),
}


class Base:
    """What either library's callbacks are made of."""

    def __init__(self):
        pass


def fresh(monkeypatch, name, **libraries):
    """Import one of the two modules anew, where these libraries are, or are not (None)."""
    for library, content in libraries.items():
        monkeypatch.setitem(sys.modules, library.replace("__", "."), content)
    monkeypatch.delitem(sys.modules, f"elastic_train.{name}", raising=False)
    try:
        return importlib.import_module(f"elastic_train.{name}")
    finally:
        sys.modules.pop(f"elastic_train.{name}", None)


def library(name, content):
    module = ModuleType(name)
    setattr(module, content, Base)
    return module


@pytest.fixture
def lightning(monkeypatch):
    stand_in = library("lightning.pytorch", "Callback")
    return fresh(monkeypatch, "lightning", lightning=ModuleType("lightning"), lightning__pytorch=stand_in)


@pytest.fixture
def transformers(monkeypatch):
    return fresh(monkeypatch, "transformers", transformers=library("transformers", "TrainerCallback"))


@pytest.fixture
def planned_at(monkeypatch):
    """Say before which step a stop is planned, and get the list of steps that a module asks about."""

    def plan(module, step):
        asked = []
        monkeypatch.setattr(module, "should_stop", lambda *, step: asked.append(step) or step >= planned)
        planned = step
        return asked

    return plan


# --- libraries that are missing


@pytest.mark.parametrize("name", MODULES)
def test_missing_library_is_one_line(name, monkeypatch):
    absent = dict.fromkeys(("lightning", "lightning__pytorch", "pytorch_lightning", "transformers"))
    with pytest.raises(ImportError, match=rf"^elastic_train\.{name} {MODULES[name][2]}, .*\. Try: ") as caught:
        fresh(monkeypatch, name, **absent)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_lightning_by_its_other_name_will_do(monkeypatch):
    other = library("pytorch_lightning", "Callback")
    module = fresh(monkeypatch, "lightning", lightning=None, lightning__pytorch=None, pytorch_lightning=other)
    assert issubclass(module.SaveBeforeStop, Base)


def test_nothing_else_imports_them():
    code = """if True:
        import sys, elastic_train, elastic_core.worker
        for name in elastic_train.__all__:
            getattr(elastic_train, name)
        import elastic_train.planned_stops, elastic_train.hook
        assert not {"elastic_train.lightning", "elastic_train.transformers"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=patience(120))


# --- Lightning


class Trainer:
    """What of Lightning's trainer the callback uses; `save` is what `save_checkpoint` does with the path."""

    def __init__(self, step=0, *, rank=0, save=lambda path: path.write_text("whole")):
        self.global_step, self.is_global_zero, self.save, self.done = step, rank == 0, save, []
        self.strategy = SimpleNamespace(
            barrier=lambda name: self.done.append(name),
            broadcast=lambda name: name,
            checkpoint_io=SimpleNamespace(teardown=lambda: self.done.append("written")),
        )

    def save_checkpoint(self, path):
        self.done.append(path.name)
        self.save(path)


def cut_off():
    """Return the mark of a process of this host that is no more."""
    place, _pid, start, random = writer.mark().split("-")
    return f"{place}-{1 << 40}-{start}-{random}"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_lightning_asks_after_each_step_of_the_optimizer_and_saves_before_the_stop(lightning, planned_at, tmp_path):
    marked = []
    asked = planned_at(lightning, 7)
    trainer = Trainer(5, save=lambda path: marked.append(marks._depth) or path.write_text("whole"))
    (tmp_path / "planned-step=3.ckpt").touch()
    (tmp_path / f".saving-planned-step=4.ckpt-{cut_off()}").mkdir()
    (tmp_path / "epoch=0-step=5.ckpt").touch()  # not ours
    callback = lightning.SaveBeforeStop(tmp_path)
    callback.on_train_start(trainer, None)
    callback.on_train_batch_end(trainer, None, None, None, 0)  # gradients are accumulated: no step
    trainer.global_step = 6
    callback.on_train_batch_end(trainer, None, None, None, 1)
    assert (asked, trainer.done) == ([5, 6], [])
    trainer.global_step = 7
    with pytest.raises(SystemExit) as ended:
        callback.on_train_batch_end(trainer, None, None, None, 2)
    assert not ended.value.code
    begin, saving, *rest = trainer.done
    assert (begin, rest) == ("SaveBeforeStop: begin", ["written", "SaveBeforeStop: end"])
    assert saving.startswith(".saving-planned-step=7.ckpt-")
    assert names(tmp_path) == ["epoch=0-step=5.ckpt", "planned-step=7.ckpt"]
    assert (tmp_path / "planned-step=7.ckpt").read_text() == "whole"
    assert (marked, marks._depth) == ([1], 0)  # the save is marked


def test_lightning_that_fails_to_save_leaves_what_was_whole(lightning, planned_at, tmp_path):
    def fails(path):
        path.write_text("ha")
        raise OSError(28, "No space left on device")

    planned_at(lightning, 1)
    (tmp_path / "planned-step=3.ckpt").touch()
    callback, trainer = lightning.SaveBeforeStop(tmp_path), Trainer(4, save=fails)
    with pytest.raises(OSError, match="No space"):
        callback.on_train_batch_end(trainer, None, None, None, 0)
    assert lightning.newest(tmp_path) == str(tmp_path / "planned-step=3.ckpt")


def test_lightning_renames_a_folder_of_shards_and_only_rank_0_does(lightning, planned_at, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "mark", lambda: "of-rank-0")  # which all ranks get

    def shards(path):
        path.mkdir(exist_ok=True)
        (path / "part").write_text("new")

    planned_at(lightning, 1)
    old = tmp_path / "planned-step=4.ckpt"
    shards(old)
    (old / "more").touch()
    for rank in (1, 0):
        with pytest.raises(SystemExit):
            lightning.SaveBeforeStop(tmp_path).on_train_batch_end(Trainer(4, rank=rank, save=shards), None)
        assert names(old) == (["more", "part"] if rank else ["part"])
    assert names(tmp_path) == [old.name]


def test_lightning_leaves_alone_what_another_process_is_saving(lightning, planned_at, tmp_path):
    planned_at(lightning, 1)
    theirs = tmp_path / f".saving-planned-step=4.ckpt-{'0' * 12}-1-1-abcd"  # of another host
    without_mark = tmp_path / ".saving-planned-step=4.ckpt"  # of an earlier version
    removing = tmp_path / ".removing-planned-step=2.ckpt-abcd"
    seen = []

    def while_theirs_is_saved(path):
        for other in (theirs, without_mark):
            other.write_text("half")
        removing.touch()
        seen.append(path.name)
        path.write_text("whole")

    for old in (False, True):
        if old:
            os.utime(theirs, (1, 1))
            os.utime(without_mark, (1, 1))
        trainer = Trainer(4, save=while_theirs_is_saved if not old else lambda path: path.write_text("again"))
        with pytest.raises(SystemExit):
            lightning.SaveBeforeStop(tmp_path).on_train_batch_end(trainer, None, None, None, 0)
        left = [] if old else [theirs.name, without_mark.name]
        assert names(tmp_path) == sorted([*left, "planned-step=4.ckpt"])
    assert seen[0] not in (theirs.name, without_mark.name)
    assert (tmp_path / "planned-step=4.ckpt").read_text() == "again"


def test_lightning_takes_the_place_of_what_another_process_has_just_saved(lightning, tmp_path, monkeypatch):
    ours, name, give_name = tmp_path / ".saving", tmp_path / "planned-step=4.ckpt", lightning.give_name
    ours.mkdir()
    (ours / "part").write_text("ours")
    tried = []

    def another_was_first(unfinished, saved):
        tried.append(saved)
        if len(tried) == 1:
            (saved / "theirs").mkdir(parents=True)
        give_name(unfinished, saved)

    monkeypatch.setattr(lightning, "give_name", another_was_first)
    lightning._take_place(ours, name)
    assert (len(tried), names(name), names(tmp_path)) == (2, ["part"], [name.name])


def test_lightning_that_is_to_stop_before_it_begins_saves_nothing(lightning, planned_at, tmp_path):
    planned_at(lightning, 0)
    with pytest.raises(SystemExit):
        lightning.SaveBeforeStop(tmp_path).on_train_start(Trainer(5), None)
    assert names(tmp_path) == []


def test_lightning_counts_and_keeps_the_sampler_and_hides_its_length(lightning, planned_at, tmp_path):
    planned_at(lightning, 9)
    sampler = ElasticSampler(12, batch_size=2, shuffle=False, rank=0, world_size=1)
    callback, batches = lightning.SaveBeforeStop(tmp_path, sampler=sampler), lightning.Batches(sampler)
    for _ in range(2):
        callback.on_train_batch_end(Trainer(1), None, None, None, 0)
    assert list(batches) == [[4, 5], [6, 7], [8, 9], [10, 11]]
    assert not hasattr(batches, "__len__")
    again = ElasticSampler(12, batch_size=4, shuffle=False, rank=0, world_size=1)
    lightning.SaveBeforeStop(tmp_path, sampler=again).load_state_dict(callback.state_dict())
    assert list(again) == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert lightning.SaveBeforeStop(tmp_path).state_dict() == {}


def test_newest_of_lightning_has_the_most_steps(lightning, tmp_path):
    assert lightning.newest(tmp_path / "not there") is None
    for name in ("last.ckpt", ".saving-planned-step=99.ckpt", "epoch=9-step=70.txt", "step=lots.ckpt"):
        (tmp_path / name).touch()
    assert lightning.newest(tmp_path) is None
    for name in ("planned-step=8.ckpt", "epoch=1-step=9.ckpt", "epoch=1-step=10-v1.ckpt", "step=7.ckpt"):
        (tmp_path / name).touch()
        assert lightning.newest(tmp_path)
    assert lightning.newest(tmp_path) == str(tmp_path / "epoch=1-step=10-v1.ckpt")


# --- transformers


def test_transformers_saves_stops_and_ends_at_the_step(transformers, planned_at):
    asked, state = planned_at(transformers, 7), SimpleNamespace(global_step=5)
    control = SimpleNamespace(should_save=False, should_training_stop=False, should_evaluate=True)
    callback = transformers.SaveBeforeStop()
    callback.on_train_begin(None, state, control, model=None)
    for state.global_step in (6, 7):
        assert not control.should_training_stop
        callback.on_save(None, state, control)  # one that was due anyway
        callback.on_step_end(None, state, control, model=None)
    assert vars(control) == {"should_save": True, "should_training_stop": True, "should_evaluate": False}
    assert marks._depth == 1  # the save is marked
    with pytest.raises(SystemExit) as ended:
        callback.on_save(None, state, control)
    assert not ended.value.code
    assert (asked, marks._depth) == ([5, 6, 7], 0)


def test_transformers_that_is_to_stop_before_it_begins_ends(transformers, planned_at):
    planned_at(transformers, 0)
    with pytest.raises(SystemExit):
        transformers.SaveBeforeStop().on_train_begin(None, SimpleNamespace(global_step=5), None)


def test_newest_of_transformers_was_written_to_its_end(transformers, tmp_path):
    assert transformers.newest(tmp_path / "not there") is None
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-11", "checkpoint-final"):
        (tmp_path / name).mkdir()
    assert transformers.newest(tmp_path) is None
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-final"):
        (tmp_path / name / "trainer_state.json").touch()
    assert transformers.newest(tmp_path) == str(tmp_path / "checkpoint-10")


# --- ranks that do not go on from the same step


def test_ranks_that_go_on_from_different_steps_are_named(monkeypatch):
    def gather(found, step):
        found[:] = [step, step, step - 100]

    ranks = SimpleNamespace(get_world_size=lambda: 3, all_gather_object=gather)
    monkeypatch.setattr(resumed, "distributed", lambda: ranks)
    with pytest.raises(ValueError, match=r"^rank 0 goes on from step 200, rank 2 from step 100\. Try: "):
        resumed.check_same_step(200)
    ranks.all_gather_object = lambda found, step: found.__setitem__(slice(None), [step] * 3)
    resumed.check_same_step(200)
    monkeypatch.setattr(resumed, "distributed", lambda: None)
    resumed.check_same_step(200)
