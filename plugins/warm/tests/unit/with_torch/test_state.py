"""`State` in one process: its attributes, commits that are cut, objects in place, and the files of the last commit."""

import itertools
import os
import random

import pytest
import torch

import elastic_warm as warm
from elastic_core.api import ConfigError
from elastic_warm import host_copy, objects, shared
from elastic_warm.host_copy import HostCopies
from elastic_warm.shared import SharedMemory, memories
from elastic_warm.state import describe_commits, forget_shards
from elastic_warm.state_errors import StateError
from interrupts import Interrupt, cut_at


@pytest.fixture(autouse=True)
def each_state_is_that_of_a_new_process(monkeypatch):
    monkeypatch.setattr(shared, "_numbers", itertools.repeat(0))


class Training:
    def __init__(self, optimizer=torch.optim.AdamW, **options):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)
        )
        self.optimizer = optimizer(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.state = warm.State(
            model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, step=0, seen=[], **options
        )

    def steps(self, count):
        losses = []
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(5, 4)).square().mean() * random.random()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.state.step += 1
            self.state.seen = [*self.state.seen, self.state.step]
            losses.append(loss.item())
        return losses


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.LBFGS])
def test_a_restore_returns_to_the_last_commit_bit_for_bit_and_in_place(optimizer):
    if optimizer is torch.optim.LBFGS:
        model = torch.nn.Linear(2, 1)
        lbfgs = optimizer(model.parameters(), lr=0.1, max_iter=3)
        state = warm.State(model=model, optimizer=lbfgs)

        def closure():
            lbfgs.zero_grad()
            loss = (model(torch.ones(3, 2)) - 2).square().sum()
            loss.backward()
            return loss

        lbfgs.step(closure)
        state.commit()
        first = [lbfgs.step(closure).item() for _ in range(2)]
        state.restore()
        assert [lbfgs.step(closure).item() for _ in range(2)] == first
        return
    training = Training(optimizer)
    training.steps(3)
    training.state.commit()
    objects = [*training.model.parameters(), *training.model.buffers()]
    objects += [each for values in training.optimizer.state.values() for each in values.values()]
    first = training.steps(3)
    training.state.restore()
    assert training.state.step == 3
    assert training.state.seen == [1, 2, 3]
    now = [*training.model.parameters(), *training.model.buffers()]
    now += [each for values in training.optimizer.state.values() for each in values.values()]
    assert [id(each) for each in now] == [id(each) for each in objects]
    assert all(each.grad is None for each in training.model.parameters())
    assert training.steps(3) == first


def test_a_restore_to_before_the_first_step_empties_the_optimizer():
    training = Training()
    training.state.commit()
    first = training.steps(2)
    training.state.restore()
    assert not training.optimizer.state
    assert training.steps(2) == first


def test_an_optimizer_keeps_the_dtype_of_its_state():
    """Torch's `load_state_dict` would convert it to that of the parameter."""
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    exact = torch.tensor([1 / 3, 1e-9, 5.0])
    optimizer.state[parameter]["momentum_buffer"] = exact.clone()
    state = warm.State(optimizer=optimizer)
    state.commit()
    optimizer.state.clear()
    state.restore()
    assert torch.equal(optimizer.state[parameter]["momentum_buffer"], exact)


def test_attributes_read_and_write_parts():
    state = warm.State(step=1, name="a", weights=torch.zeros(2))
    state.step += 1
    state.name = "b"
    assert state.parts() == {"step": 2, "name": "b", "weights": state.weights}
    weights = state.weights
    state.commit()
    weights.fill_(3)
    state.step, state.name = 9, "c"
    state.restore()
    assert (state.step, state.name) == (2, "b")
    assert state.weights is weights
    assert weights.tolist() == [0, 0]
    assert repr(state) == "State(step, name, weights)"
    with pytest.raises(AttributeError, match="State has no part 'epoch'; it has 'step', 'name', 'weights'"):
        _ = state.epoch
    with pytest.raises(AttributeError, match="all parts are named when it is made"):
        state.epoch = 1


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, r"State\(\) has no part"),
        ({"commit": 1}, r"State\(commit=…\): the name is taken. Try: commit_part=…"),
        ({"_x": 1}, r"State\(_x=…\): the name is taken"),
        ({"a": 1, "load": bool, "checkpointer": object()}, "both load a checkpoint"),
    ],
)
def test_arguments_that_can_not_be_used_are_one_line(parts, words):
    with pytest.raises(ConfigError, match=words):
        warm.State(**parts)


def test_without_a_commit_there_is_nothing_to_return_to():
    with pytest.raises(StateError, match=r"^there is no commit to return to\. Try: commit\(\) or sync\(\) before"):
        warm.State(step=0).restore()


def test_a_commit_that_is_cut_never_counts(monkeypatch):
    state = warm.State(a=torch.zeros(3), b=torch.zeros(3), step=0)
    copy_all = host_copy.copy_all

    def cut(targets, sources):
        copy_all(targets[:1], sources[:1])
        raise Interrupt

    for step in range(1, 4):
        state.a.fill_(step)
        state.b.fill_(step)
        state.step = step
        state.commit()
        with monkeypatch.context() as patch:
            patch.setattr(host_copy, "copy_all", cut)
            for _ in range(2):
                state.a.fill_(-1)
                state.b.fill_(-1)
                with pytest.raises(Interrupt):
                    state.commit()
        state.restore()
        assert (state.a.tolist(), state.b.tolist(), state.step) == ([step] * 3, [step] * 3, step)


def test_only_frozen_parameters_count_as_unchanged_and_only_if_they_are():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 64))
    frozen = [model[0].weight, model[0].bias]
    for parameter in frozen:
        parameter.requires_grad_(False)
    state = warm.State(model=model, random=False)
    for _ in range(2):
        state.commit()  # each of the two buffers has them once
    whole = state.last_commit_bytes
    state.commit()
    assert state.last_commit_bytes == whole - 4 * (64 * 64 + 64)
    for write in (
        lambda: frozen[0].add_(1),  # counted by torch
        lambda: frozen[0].data.add_(1),  # not counted by torch
        lambda: setattr(frozen[0], "data", torch.rand(64, 64)),
        lambda: model[1](torch.randn(4, 64)),  # nor are the buffers of batch norm
    ):
        write()
        expected = {name: value.clone() for name, value in model.state_dict().items()}
        state.commit()
        with torch.no_grad():
            for value in model.state_dict().values():
                value.zero_()
        state.restore()
        assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_an_object_that_does_not_fit_is_one_line():
    state = warm.State(model=torch.nn.Linear(2, 2))
    state.commit()
    state.model = torch.nn.Linear(2, 3)
    with pytest.raises(StateError, match=r"^state\.model\['weight'\] is torch\.float32 \(3, 2\), and the commit has"):
        state.restore()
    state.model = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(StateError, match=r"^state\.model and its commit differ in 'bias'"):
        state.restore()


def test_a_wrapped_module_counts_as_the_module():
    class OptimizedModule(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self._orig_mod = module

    model = torch.nn.Linear(2, 2)
    state = warm.State(model=OptimizedModule(model))
    state.commit()
    before = model.weight.clone()
    with torch.no_grad():
        model.weight.zero_()
    state.model = model
    state.restore()
    assert torch.equal(model.weight, before)


# --- files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINING_WARM_DIR", str(tmp_path))
    monkeypatch.setenv("LOCAL_RANK", "3")
    return tmp_path


def committed(step):
    state = warm.State(weights=torch.full((1000,), float(step)), step=step, random=False)
    for _ in range(2):
        state.step += 1
        state.weights += 1
        state.commit()
    return state


def found():
    copies = HostCopies(memories(2, is_pinned=False))
    assert all(isinstance(slot.memory, SharedMemory) for slot in copies.slots)
    return [slot.memory.found() for slot in copies.slots]


def test_the_last_commits_are_in_files_of_this_user_alone(folder):
    committed(5)
    assert sorted(path.name for path in folder.iterdir()) == ["commit-3-0", "commit-3-1"]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    again = warm.State(weights=torch.zeros(1000), step=0, random=False)
    synced = again.sync()
    assert (synced.source, synced.step, again.step) == ("memory", 7, 7)
    assert again.weights.tolist() == [7.0] * 1000
    again.step += 1
    again.commit()  # in the file of the older one
    assert {each.key.step for each in found()} == {7, 8}


def test_without_sync_the_commits_of_the_worker_before_are_forgotten(folder):
    committed(5).sync()
    committed(7).sync()
    state = committed(1)
    state.step = 0
    state.restore()
    assert state.step == 3


def test_a_file_that_is_torn_or_damaged_or_of_others_is_not_used(folder, caplog):
    committed(5)
    newer = max(folder.iterdir(), key=lambda path: SharedMemory(path, None).found().key)
    whole = newer.read_bytes()

    def steps():
        return sorted(each.key.step for each in found() if each is not None)

    assert steps() == [6, 7]
    odd = bytearray(whole)
    odd[8] |= 1  # as of a process that was killed while it wrote
    newer.write_bytes(odd)
    assert steps() == [6]
    assert not caplog.records
    damaged = bytearray(whole)
    damaged[5000] ^= 1
    newer.write_bytes(damaged)
    assert steps() == [6]
    assert "its checksum differs" in caplog.text
    for content, words in ((whole[:100], "too short"), (b"x" * 5000, "of another kind or version")):
        caplog.clear()
        newer.write_bytes(content)
        assert steps() == [6]
        assert words in caplog.text
    newer.write_bytes(whole)
    newer.chmod(0o644)
    assert steps() == [6]
    assert "not a file of this user alone" in caplog.text
    newer.unlink()
    newer.symlink_to("/etc/passwd")
    assert steps() == [6]
    state = warm.State(weights=torch.zeros(1000), step=0, random=False)
    assert state.sync().step == 6


def test_files_are_bounded(folder, monkeypatch, caplog):
    monkeypatch.setenv("TRAINING_WARM_BYTES", "10000")
    state = committed(1)
    assert list(folder.iterdir()) == []
    assert "TRAINING_WARM_BYTES allows 5000 for each of the two" in caplog.text
    state.weights.zero_()
    state.restore()
    assert state.weights.tolist() == [3.0] * 1000


def test_a_folder_that_is_gone_costs_one_line(folder, caplog):
    folder.rmdir()
    state = committed(1)
    folder.mkdir()
    assert "the last commit of this worker ends with its process: No such file or directory" in caplog.text
    state.step = 0
    state.restore()
    assert state.step == 3


def test_without_the_variable_there_is_no_file(tmp_path, monkeypatch):
    monkeypatch.delenv("TRAINING_WARM_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    committed(1)
    assert os.listdir(tmp_path) == []


# --- a process alone


def test_a_process_alone_returns_to_its_commit_or_loads_or_begins():
    training = Training()
    assert training.state.sync().source == "start"
    training.steps(2)
    training.state.commit()
    first = training.steps(2)
    synced = training.state.sync()
    assert (synced.source, synced.step, synced.received) == ("memory", 2, False)
    assert training.steps(2) == first

    def load():
        other.step = 11
        return True

    other = warm.State(step=0, load=load)
    synced = other.sync()
    assert (synced.source, synced.step) == ("checkpoint", 11)
    nothing = warm.State(step=4, load=lambda: None)
    assert nothing.sync()[:2] == ("start", 4)


class Checkpointer:
    """As that of elastic-train: objects are loaded, and plain values are in the result."""

    def load(self, into):
        into["model"].load_state_dict({"weight": torch.ones(1, 1)})
        return type("Loaded", (), {"state": {"step": 6, "model": {}}})


def test_a_checkpointer_loads_all_parts():
    model = torch.nn.Linear(1, 1, bias=False)
    state = warm.State(model=model, step=0, checkpointer=Checkpointer())
    assert state.sync()[:2] == ("checkpoint", 6)
    assert state.step == 6
    assert model.weight.item() == 1


# --- an exception at any line, as that of a signal's handler


def test_two_states_of_a_script_have_files_of_their_own(folder, monkeypatch):
    monkeypatch.setattr(shared, "_numbers", itertools.count())
    for value in (1.0, 2.0):
        state = warm.State(total=torch.full((3,), value), step=0, random=False)
        state.sync()
        state.step = int(value)
        state.commit()
    monkeypatch.setattr(shared, "_numbers", itertools.count())
    for value in (1.0, 2.0):
        again = warm.State(total=torch.zeros(3), step=0, random=False)
        again.sync()
        assert (again.step, again.total.tolist()) == (int(value), [value] * 3)


class Pair:
    """A state of two parts that always change together."""

    def __init__(self, sharded=None):
        self.state = warm.State(a=torch.zeros(3), b=[0, torch.zeros(2)], step=0, random=False, sharded=sharded)

    def step(self):
        state = self.state
        state.step += 1
        state.a.fill_(state.step)
        state.b = [state.step, torch.full((2,), float(state.step))]

    def whole_step(self):
        state = self.state
        assert state.a.tolist() == [state.step] * 3
        assert state.b[0] == state.step
        assert state.b[1].tolist() == [state.step] * 2
        return state.step


@pytest.mark.parametrize("sharded", [None, True])
@pytest.mark.parametrize("in_file", [False, True])
def test_an_exception_at_any_line_of_a_commit_leaves_a_whole_one(tmp_path, monkeypatch, in_file, sharded):
    done, line = False, 0
    while not done:
        line += 1
        if in_file:
            folder = tmp_path / str(line)
            folder.mkdir()
            monkeypatch.setenv("TRAINING_WARM_DIR", str(folder))
        pair = Pair(sharded)
        pair.state.sync()
        for _ in range(2):
            pair.step()
            pair.state.commit()
        pair.step()
        done = cut_at(line, pair.state.commit)
        if in_file:
            anew = Pair(sharded)
            assert anew.state.sync().step in (2, 3)
            assert anew.whole_step() in (2, 3)
        pair.state.restore()
        found = pair.whole_step()
        assert found in (2, 3)
        pair.step()  # and training goes on
        pair.state.commit()
        pair.step()
        pair.state.restore()
        assert pair.whole_step() == found + 1
    assert line > 50


@pytest.mark.parametrize("call", ["restore", "sync"])
def test_an_exception_at_any_line_of_a_return_can_be_followed_by_another_one(call):
    done, line = False, 0
    while not done:
        line += 1
        pair = Pair()
        pair.state.sync()
        for _ in range(2):
            pair.step()
            pair.state.commit()
        pair.step()
        done = cut_at(line, getattr(pair.state, call))
        pair.state.sync()
        assert pair.whole_step() == 2
    assert line > 20


def test_commits_are_described_before_a_round_begins_in_which_all_ranks_wait_for_it(monkeypatch):
    state = warm.State(weights=torch.zeros(3), step=0)
    describe_commits()  # there is none, and no memory for one is made
    assert state._copies is None
    state.sync()
    state.commit()
    known = [commit.as_copy() for commit in state._copies.commits()]
    state.restore()
    state.commit()
    describe_commits()
    monkeypatch.setattr(host_copy, "skeleton", None)  # any call fails
    assert len(known) == len([commit.as_copy() for commit in state._copies.commits()]) == 2


def test_sharded_parts_are_forgotten_when_their_round_was_left(monkeypatch):
    monkeypatch.setattr(objects, "is_sharded", lambda part: part == "sharded")
    kept = warm.State(model="sharded", plain="same on all ranks", step=3)
    forget_shards()
    assert kept.parts() == {"model": None, "plain": "same on all ranks", "step": 3}
