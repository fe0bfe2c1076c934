"""A folder of checkpoints on a disk: what is whole, what is refused, what is removed."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_train import Checkpointer, CheckpointError
from elastic_train.checkpoint import ranks
from elastic_train.checkpoint.layout import CheckpointFolder, damage, described


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints", "")


def saved(folder, serial, step, content=b"state"):
    unfinished = folder.begin(serial, step)
    (unfinished / "state.pt").write_bytes(content)
    files = described(unfinished, ["state.pt"])
    return folder.complete(unfinished, world_size=2, kind="one", files=files, more={"run_id": "r"})


def steps(folder):
    return [each.step for each in folder.scan().whole]


def names(folder):
    return sorted(entry.name for entry in folder.path.iterdir())


def test_what_is_saved_later_is_newer_whatever_its_step(folder):
    assert folder.scan() == ([], [], 0)
    saved(folder, 1, 500)
    path = saved(folder, 2, 400)
    assert steps(folder) == [400, 500]
    newest = folder.scan().whole[0]
    assert (newest.name, newest.world_size, newest.kind) == ("00000002-step-400", 2, "one")
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["step"], manifest["run_id"]) == (1, 400, "r")
    assert damage(newest, ["state.pt"]) == ""


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name_and_its_name_after(folder, monkeypatch):
    done, fsync, rename = [], os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd)))
    monkeypatch.setattr(Path, "rename", lambda path, name: (done.append("rename"), rename(path, name)))
    saved(folder, 1, 10)
    unfinished = folder.unfinished(1, 10)
    assert done == [str(unfinished / "manifest.json"), str(unfinished), "rename", str(folder.path)]


def test_remains_of_a_save_are_nothing_and_the_next_one_removes_them(folder):
    saved(folder, 1, 10)
    (folder.begin(2, 20) / "state.pt").write_bytes(b"half")
    (folder.path / ".removing-00000000-step-5").mkdir()
    (folder.path / "notes.txt").write_text("somebody's own")
    (folder.path / ".saving-notes").mkdir()
    assert steps(folder) == [10]
    saved(folder, 3, 30)
    assert names(folder) == [".saving-notes", "00000001-step-10", "00000003-step-30", "notes.txt"]


BREAKS = {
    "state.pt is missing": lambda path: (path / "state.pt").unlink(),
    "state.pt has 2 bytes of 5": lambda path: (path / "state.pt").write_bytes(b"st"),
    "manifest.json is missing or torn": lambda path: (path / "manifest.json").unlink(),
    "manifest.json is missing or torn ": lambda path: (path / "manifest.json").write_text("{"),
    "manifest.json is missing or torn  ": lambda path: (path / "manifest.json").write_text("[]"),
    "manifest.json is torn": lambda path: (path / "manifest.json").write_text('{"format": 1, "files": [3]}'),
    "manifest.json names a file elsewhere": lambda path: (path / "manifest.json").write_text(
        (path / "manifest.json").read_text().replace("state.pt", "../../secret")
    ),
}


@pytest.mark.parametrize("reason", BREAKS)
def test_what_is_half_deleted_is_left_out_with_a_line(folder, reason):
    saved(folder, 1, 10)
    path = saved(folder, 2, 20)
    BREAKS[reason](path)
    assert steps(folder) == [10]
    assert folder.scan().broken == [f"checkpoint {str(path)!r} is left out: {reason.strip()}"]
    assert folder.scan().last_serial == 2  # its number is not given again
    folder.prune(1, ())
    assert names(folder) == ["00000001-step-10", "00000002-step-20"]  # it takes no whole one's place, and stays


def test_a_newer_format_is_refused(folder):
    path = saved(folder, 1, 10)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": 2, "files": "elsewhere"}))
    with pytest.raises(CheckpointError, match=r"is of format 2, this elastic-train reads 1. Try: the elastic-train"):
        folder.scan()


def test_another_job_is_refused_and_loses_nothing(folder):
    folder.job = "bert"
    saved(folder, 1, 10)
    other = Checkpointer(folder.path, job="gpt", keep=1)
    for call in (other.latest, other.load, lambda: other.save({"a": 1}, step=20)):
        with pytest.raises(CheckpointError, match=r"is of the job 'bert', this is 'gpt'. Try: a folder for each job"):
            call()
    assert names(folder) == ["00000001-step-10"]
    assert Checkpointer(folder.path).latest() == Checkpointer(folder.path, job="bert").latest() == 10


def test_a_checksum_that_differs_is_found(folder):
    path = saved(folder, 1, 10)
    (path / "state.pt").write_bytes(b"STATE")
    (whole,) = folder.scan().whole
    assert damage(whole, ["state.pt"]) == "the checksum of state.pt differs from the manifest's"
    shutil.rmtree(path)
    assert damage(whole, ["state.pt"]).startswith("state.pt can't be read: No such file")


def test_a_folder_that_can_not_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"can't be written to .*: Not a directory .* Try: a folder that"):
        CheckpointFolder(tmp_path / "file" / "checkpoints", "").begin(1, 10)
    with pytest.raises(CheckpointError, match=r"can't be read: Not a directory .* Try: a folder that"):
        CheckpointFolder(tmp_path / "file", "").scan()


def test_a_file_that_rank_0_does_not_see_is_no_part_of_a_checkpoint(folder):
    unfinished = folder.begin(1, 10)
    (unfinished / "rank-00001.pt").write_bytes(b"state")
    files = described(unfinished, ["rank-00001.pt"])
    (unfinished / "rank-00001.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"rank-00001.pt is missing where rank 0 looks"):
        folder.complete(unfinished, world_size=2, kind="each", files=files, more={})
    assert steps(folder) == []


def test_pruning_spares_what_is_damaged(folder):
    for serial in (1, 2, 3, 4):
        saved(folder, serial, serial * 10)
    folder.prune(2, {"00000003-step-30"})
    assert steps(folder) == [40, 30, 20]


class Group:
    """Something that a group's weak reference may be to."""


def test_ranks_that_do_not_meet_are_one_line_in_torchs_words(monkeypatch):
    said = "[gloo/pair.cc:553] Connection closed by peer [10.0.0.7]:1373.\nThis is typically caused by …"
    group, ours = SimpleNamespace(WORLD=Group()), Group()

    def gone(found, value, group):
        raise RuntimeError(said)

    dist = SimpleNamespace(
        group=group, get_rank=lambda: 1, get_world_size=lambda: 2, new_group=lambda **_: ours, all_gather_object=gone
    )
    monkeypatch.setattr(ranks, "distributed", lambda: dist)
    with pytest.raises(
        CheckpointError, match=r"rank 1 did not meet .*: .* Connection closed by peer .* Try: "
    ) as caught:
        Checkpointer("checkpoints").latest()
    assert "\n" not in str(caught.value)
