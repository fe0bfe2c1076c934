"""Which rounds and processes may save in a folder of checkpoints: claims, in the order of first loads and saves."""

import json
import os
from types import SimpleNamespace

import pytest

from elastic_train import Checkpointer, CheckpointError
from elastic_train.checkpoint import checkpointer, claims, ranks
from elastic_train.checkpoint.claims import Claims, claims_of
from elastic_train.checkpoint.layout import CheckpointFolder, described


class Writer:
    """Rank 0 of a round, or of no round, as far as it claims and saves."""

    def __init__(self, folder, monkeypatch, variables):
        self.folder, self.monkeypatch, self.variables = CheckpointFolder(folder, ""), monkeypatch, variables
        self.claims = Claims(folder)

    def load(self):
        with self.monkeypatch.context() as patch:
            self.launched(patch)
            self.claims.load()

    def begin(self, step):
        with self.monkeypatch.context() as patch:
            self.launched(patch)
            return self.folder.begin(1, step, claims=self.claims).folder

    def save(self, step, meanwhile=lambda: None):
        unfinished = self.begin(step)
        (unfinished / "state.pt").write_bytes(b"state")
        meanwhile()
        files = described(unfinished, ["state.pt"])
        return self.folder.complete(unfinished, world_size=1, kind="one", files=files, more={}, claims=self.claims)

    def launched(self, patch):
        for name in ("TORCHELASTIC_RUN_ID", "ELASTIC_ROUND", "MASTER_ADDR", "MASTER_PORT"):
            patch.delenv(name, raising=False)
        for name, value in self.variables.items():
            patch.setenv(name, value)


@pytest.fixture
def writer(tmp_path, monkeypatch):
    """Return what makes a writer: of a round of `elastic run`, or of none where no round is given."""
    monkeypatch.setattr(claims, "_AGAIN_S", 0)

    def make(round_index=None, run_id="bert-7", port=29500):
        variables = {
            "TORCHELASTIC_RUN_ID": run_id,
            "ELASTIC_ROUND": str(round_index),
            "MASTER_ADDR": "gpu-7",
            "MASTER_PORT": str(port + (round_index or 0)),
        }
        return Writer(tmp_path / "checkpoints", monkeypatch, {} if round_index is None else variables)

    return make


def steps(writer):
    return [each.step for each in writer.folder.scan().whole]


def claimed(writer):
    return sorted(name for name in os.listdir(writer.folder.path) if name.startswith(".claim-"))


def remains(writer):
    return [name for name in os.listdir(writer.folder.path) if name.startswith(".saving-")]


def test_a_later_round_outdates_an_earlier_one_by_its_load(writer):
    old, new = writer(0), writer(1)
    old.load()
    old.save(10)
    new.load()
    with pytest.raises(CheckpointError) as caught:
        old.save(20)
    line = str(caught.value)
    assert line.startswith(f"step 20 was not saved in {str(old.folder.path)!r}: round 1 of run 'bert-7' (pid ")
    assert line.endswith(
        ", after the first load or save of round 0 of run 'bert-7'; expected one round or process that saves there. "
        "Try: the end of this process, whose round is over"
    )
    assert "\n" not in line
    assert remains(old) == []
    new.save(15)
    assert steps(new) == [15, 10]
    assert claimed(new) == [".claim-00000001", ".claim-00000002"]


def test_a_save_that_is_under_way_is_not_published_any_more(writer):
    old, new = writer(0), writer(1)
    old.save(10)
    with pytest.raises(CheckpointError, match=r"^round 1 of run 'bert-7' .* has claimed the folder at "):
        old.save(20, meanwhile=new.load)
    assert steps(old) == [10]


def test_the_later_round_keeps_the_folder_whichever_of_both_saves_first(writer):
    for first_to_save in (0, 1):
        old, new = writer(0, f"run-{first_to_save}"), writer(1, f"run-{first_to_save}")
        old.load()
        new.load()
        if first_to_save == 0:
            old.save(10)
        new.save(15)
        with pytest.raises(CheckpointError, match=r"round 1 of run .* has claimed the folder"):
            old.save(20)
        new.save(25)


def test_a_job_that_only_loads_outdates_no_training(writer):
    training = writer(0)
    training.save(10)
    for evaluation in (writer(5, "evaluation"), writer(), writer(0)):
        evaluation.load()
    assert claimed(training) == [".claim-00000001"]
    training.save(20)


def test_of_two_runs_the_one_that_saves_later_has_the_folder(writer):
    old, new = writer(3, "bert-7"), writer(0, "bert-8")
    old.save(10)
    new.load()
    old.save(20)
    new.save(30)
    with pytest.raises(
        CheckpointError, match=r"round 0 of run 'bert-8' \(.* Try: the end of one of them, or a folder for each$"
    ):
        old.save(40)
    new.save(50)


def test_of_two_that_have_loaded_the_first_to_save_has_the_folder(writer):
    first, second = writer(), writer()
    for each in (first, second):
        each.load()
    first.save(10)
    with pytest.raises(CheckpointError, match=r"pid \d+ on .* after the first load or save of this process"):
        second.save(20)
    first.save(30)


def test_a_run_that_begins_anew_with_round_0_goes_on_in_its_folder(writer):
    old = writer(7)
    old.save(10)
    new = writer(0)
    new.load()
    new.save(20)
    with pytest.raises(CheckpointError, match="round 0 of run 'bert-7'"):
        old.save(30)
    later = writer(1)
    later.save(40)  # a script that does not load


def test_processes_of_one_round_have_one_claim(writer):
    one, another = writer(2), writer(2)
    one.load()
    another.save(10)
    one.save(20)
    another.save(30)
    assert claimed(one) == [".claim-00000001"]
    writer(2, port=29501).save(40)  # the same number of another life of the run
    with pytest.raises(CheckpointError, match="round 2 of run 'bert-7'"):
        one.save(50)


def test_only_the_newest_claims_stay(writer):
    for round_index in range(7):
        each = writer(round_index)
        each.load()
        each.save(round_index)
    assert claimed(each) == [f".claim-{number:08d}" for number in (4, 5, 6, 7)]
    each.save(8)
    assert claimed(each)[-1] == ".claim-00000007"


def test_a_folder_that_can_not_be_written_is_loaded_and_not_saved_in(writer, monkeypatch):
    writer(0).save(10)
    new = writer(1)

    def refuse(path, content):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(claims, "write_json", refuse)
        new.load()
        with pytest.raises(CheckpointError, match=r"can't be written to .*: Permission denied .* Try: a folder that"):
            new.begin(20)
    assert claimed(new) == [".claim-00000001"]
    new.save(20)


def test_a_claim_that_could_not_be_written_to_its_end_is_no_claim(writer, monkeypatch):
    one = writer(0)

    def full(path, content):
        path.touch(exist_ok=False)
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(claims, "write_json", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            one.begin(10)
    assert claimed(one) == []
    one.save(10)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"pid": "x"}', "[" * 100_000, '{"pid": 1, "host": "a\\nb"}', '{"pid": 1, "run_id": "\\ud800"}'],
)
def test_a_claim_that_can_not_be_read_counts_all_the_same(writer, text):
    old = writer(0)
    old.save(10)
    (old.folder.path / ".claim-00000002").write_text(text)
    with pytest.raises(CheckpointError, match="a process that left no name has claimed the folder, after"):
        old.save(20)
    writer(1).save(30)


def test_a_claim_that_is_just_being_written_is_read_again(writer, monkeypatch):
    one, another, read, seen = writer(0), writer(0), claims.read_json, []
    one.load()
    another.save(10)

    def late(path, most_bytes):
        seen.append(path.name)
        return read(path, most_bytes) if len(seen) > 2 else None

    monkeypatch.setattr(claims, "read_json", late)
    one.save(20)
    assert seen == [".claim-00000001"] * 3


def test_what_is_no_claim_is_left_alone(writer):
    one = writer(0)
    one.save(10)
    for name in (".claim-1", ".claim-notes", ".claim-" + "9" * 30, "claim-00000009"):
        (one.folder.path / name).touch()
    one.save(20)
    assert steps(one) == [20, 10]


def test_a_folder_that_was_emptied_is_claimed_again(writer):
    one = writer(1)
    writer(0).save(10)
    one.save(20)

    def emptied():
        for name in claimed(one):
            (one.folder.path / name).unlink()

    emptied()
    one.save(20)
    assert claimed(one) == [".claim-00000001"]
    emptied()
    other = writer(0, "another")
    for name in (".claim-00000001", ".claim-00000002"):
        (one.folder.path / name).touch()
    other.save(30)
    with pytest.raises(CheckpointError, match="round 0 of run 'another'"):
        one.save(40)


def test_a_claim_is_made_once_and_a_listing_may_lag(writer, monkeypatch):
    one, other = writer(0), writer(0, "other")
    one.load()
    other.save(10)
    monkeypatch.setattr(Claims, "_numbers", lambda claims, entries=None: [])  # as NFS may show the folder
    with pytest.raises(CheckpointError, match="round 0 of run 'other'"):
        one.save(20)


def test_a_claim_says_who(writer):
    one = writer(4)
    one.save(10)
    content = json.loads((one.folder.path / ".claim-00000001").read_text())
    assert (content["run_id"], content["round"], content["master"]) == ("bert-7", 4, "gpu-7:29504")
    assert content["pid"] == os.getpid()


class Group:
    """Something that a group's weak reference may be to."""


def test_checkpointers_of_a_process_have_one_claim_for_each_process_group(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "checkpoints")
    group = SimpleNamespace(WORLD=Group())
    dist = SimpleNamespace(group=group, get_rank=lambda: 0, get_world_size=lambda: 1)
    alone = claims_of(tmp_path / "checkpoints", lambda: None)
    monkeypatch.setattr(ranks, "distributed", lambda: dist)
    monkeypatch.setattr(checkpointer, "import_torch", lambda _: None)
    found = []
    for name in ("checkpoints", "link"):
        each = Checkpointer(tmp_path / name)
        assert each.load() is None
        found.append(each._claims)
    assert found[0] is found[1]
    assert found[0] is not alone
    group.WORLD = Group()
    assert each.load() is None
    assert each._claims is not found[0]
    assert not (tmp_path / "checkpoints").exists()  # a load makes none
