"""A folder of checkpoints on a disk: what is whole, what is refused, what is removed."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_train import Checkpointer, CheckpointError
from elastic_train.checkpoint import checkpointer, layout, ranks, writer
from elastic_train.checkpoint.disk import write_file
from elastic_train.checkpoint.layout import CheckpointFolder, Scan, damage, described


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints", "")


def saved(folder, serial, step, content=b"state"):
    unfinished = folder.begin(serial, step).folder
    (unfinished / "state.pt").write_bytes(content)
    files = described(unfinished, ["state.pt"])
    return folder.complete(unfinished, world_size=2, kind="one", files=files, more={"run_id": "r"})


def of_an_ended_process(unfinished):
    """The name that a save would have had of a process of this host that is no more."""
    *name, _start, random = unfinished.name.split("-")
    return unfinished.with_name("-".join([*name, "1", random]))  # another one had this process's id before it


def steps(folder):
    return [each.step for each in folder.scan().whole]


def names(folder):
    return sorted(entry.name for entry in folder.path.iterdir())


def test_what_is_saved_later_is_newer_whatever_its_step(folder):
    assert folder.scan() == Scan([], [], 0)
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
    begun = []
    begin = folder.begin
    monkeypatch.setattr(folder, "begin", lambda *args: begun.append(begin(*args)) or begun[0])
    saved(folder, 1, 10)
    unfinished = begun[0].folder
    assert done == [str(unfinished / "manifest.json"), str(unfinished), "rename", str(folder.path)]


def test_remains_of_a_save_are_nothing_and_the_next_one_removes_them(folder):
    saved(folder, 1, 10)
    half = folder.begin(2, 20).folder
    (half / "state.pt").write_bytes(b"half")
    half.rename(of_an_ended_process(half))
    (folder.path / ".removing-00000000-step-5").mkdir()
    (folder.path / "notes.txt").write_text("somebody's own")
    (folder.path / ".saving-notes").mkdir()
    assert steps(folder) == [10]
    saved(folder, 3, 30)
    assert names(folder) == [".saving-notes", "00000001-step-10", "00000003-step-30", "notes.txt"]


def of_another_host(unfinished, age_s=0.0):
    """Make what is being saved a save of a process that this one knows nothing of, written to a while ago."""
    *name, _place, pid, start, random = unfinished.name.split("-")
    other = unfinished.rename(unfinished.with_name("-".join([*name, "0" * 12, pid, start, random])))
    last_s = other.stat().st_mtime - age_s
    for path in (*other.rglob("*"), other):
        os.utime(path, (last_s, last_s))
    return other


def test_two_that_save_the_same_step_at_once_get_a_checkpoint_each(folder):
    saved(folder, 1, 10)
    begun = [folder.begin(2, 20).folder for _ in range(2)]
    assert begun[0] != begun[1]
    for path, content in zip(begun, (b"one", b"other"), strict=True):
        (path / "state.pt").write_bytes(content)
    for path in begun:
        folder.complete(path, world_size=1, kind="one", files=described(path, ["state.pt"]), more={})
    assert names(folder) == ["00000001-step-10", "00000002-step-20", "00000003-step-20"]
    assert [(each.folder / "state.pt").read_bytes() for each in folder.scan().whole] == [b"other", b"one", b"state"]
    assert folder.begin(2, 30).serial == 4  # whatever this process believes to be the newest


def test_a_save_that_is_under_way_is_spared_and_reported(folder):
    other = of_another_host(folder.begin(1, 10).folder)
    begun = folder.begin(1, 10, known=())
    assert begun.another == (
        f"checkpoints in {str(folder.path)!r}: another process saves there, or did until it was cut off within the "
        f"last 180 s: {other.name!r} is left alone; expected one run for each folder. "
        "Try: the end of one of the runs, or a folder for each"
    )
    assert other.exists()
    folder.discard(begun.folder)


@pytest.mark.parametrize(("age_s", "file_age_s", "stays"), [(170, 170, True), (190, 190, False), (190, 170, True)])
def test_remains_that_were_not_written_to_lately_are_removed(folder, age_s, file_age_s, stays):
    other = folder.begin(1, 10).folder
    (other / "shards").mkdir()
    (other / "shards" / "__0_0.distcp").write_bytes(b"half")
    other = of_another_host(other, age_s)
    last_s = other.stat().st_mtime + age_s - file_age_s
    os.utime(other / "shards" / "__0_0.distcp", (last_s, last_s))
    assert bool(folder.begin(1, 10).another) == stays
    assert other.exists() == stays


def test_a_checkpoint_that_another_process_has_saved_is_reported(folder):
    path = saved(folder, 1, 10)
    path.rename(folder.path / "00000002-step-7")
    begun = folder.begin(2, 20, known=["00000001-step-10"])
    assert begun.serial == 3
    assert "another process saves there: it has saved '00000002-step-7'; expected one run" in begun.another
    for known in (None, ["00000002-step-7"]):
        folder.discard(begun.folder)
        begun = folder.begin(2, 20, known=known)
        assert begun.another == ""


def test_what_this_process_has_saved_is_not_another_ones(folder):
    saved(folder, 1, 10)
    saved(folder, 2, 20)
    assert folder.begin(3, 30, known=()).another == ""


def test_remains_that_are_no_folders_are_removed_too(folder, tmp_path):
    saved(folder, 1, 10)
    (tmp_path / "kept").mkdir()
    (folder.path / ".removing-00000000-step-5-abcd").symlink_to(tmp_path / "kept")
    (folder.path / ".removing-00000000-step-6").write_text("")
    (folder.path / "00000002-step-20").symlink_to(folder.path / "00000001-step-10")
    saved(folder, 3, 30)
    folder.prune(1, ())  # of a link, the link
    assert names(folder) == ["00000003-step-30"]
    assert (tmp_path / "kept").is_dir()


def test_remains_that_can_not_be_removed_do_not_stop_a_save(folder, monkeypatch):
    saved(folder, 1, 10)
    remains = folder.path / ".removing-00000000-step-5"
    remains.mkdir()

    def refuse(path, by_name):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(layout, "remove", refuse)
    begun = folder.begin(2, 20)
    assert begun.staying.startswith(f"remains of a save stay, {str(remains)!r}: Permission denied")


def test_two_that_remove_the_same_are_no_error(folder, monkeypatch):
    for serial in (1, 2, 3):
        saved(folder, serial, 10)
    rmtree = shutil.rmtree

    def other_was_first(path):
        rmtree(path)
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(shutil, "rmtree", other_was_first)
    folder.prune(1, ())
    assert names(folder) == ["00000003-step-10"]


def test_a_file_of_a_checkpoint_is_never_written_twice(tmp_path):
    write_file(tmp_path / "state.pt", lambda file: file.write(b"one"))
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "state.pt", lambda file: file.write(b"other"))
    assert (tmp_path / "state.pt").read_bytes() == b"one"


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        (lambda place, pid, start, rest: (place, pid, start, rest), False),
        (lambda place, pid, start, rest: (place, pid, "1", rest), True),
        (lambda place, pid, start, rest: (place, str(1 << 40), start, rest), True),
        (lambda place, pid, start, rest: ("0" * 12, pid, "1", rest), False),
        (lambda place, pid, start, rest: (place, "x", start, rest), False),
        (lambda place, pid, start, rest: (place, pid), False),
        (lambda place, pid, start, rest: (), False),
    ],
)
def test_a_process_is_gone_where_that_can_be_known(change, gone):
    mark = writer.mark()
    assert mark != writer.mark()
    assert writer.is_gone("-".join(change(*mark.split("-")))) == gone


def with_manifest(**changes):
    """Return what changes a manifest: its fields, and those of its one file, which begin with `file_`."""

    def change(path):
        manifest = json.loads((path / "manifest.json").read_text())
        for name, value in changes.items():
            if name.startswith("file_"):
                manifest["files"][0][name.removeprefix("file_")] = value
            else:
                manifest[name] = value
        (path / "manifest.json").write_text(json.dumps(manifest))

    return change


def with_text(text):
    return lambda path: (path / "manifest.json").write_text(text)


def in_place_of(name, make):
    """Return what puts something else in place of a file."""

    def change(path):
        (path / name).unlink()
        make(path / name)

    return change


TORN = "manifest.json is torn"
MISSING = "manifest.json is missing or torn"
STRANGE = "manifest.json names a file that no save has"
BREAKS = {
    "no file": ("state.pt is missing", lambda path: (path / "state.pt").unlink()),
    "another size": ("state.pt has 2 bytes of 5", lambda path: (path / "state.pt").write_bytes(b"st")),
    "no manifest": (MISSING, lambda path: (path / "manifest.json").unlink()),
    "a torn manifest": (MISSING, with_text("{")),
    "a list": (MISSING, with_text("[]")),
    "nested too deep": (MISSING, with_text("[" * 200_000)),
    "nested too deep inside": (MISSING, with_text('{"format": ' + "[" * 200_000)),
    "a number too long": (MISSING, with_text('{"format": ' + "9" * 5_000 + "}")),
    "no text": (MISSING, lambda path: (path / "manifest.json").write_bytes(b"\xff\xfe{")),
    "a manifest that is a pipe": (MISSING, in_place_of("manifest.json", os.mkfifo)),
    "a manifest that is a folder": (MISSING, in_place_of("manifest.json", Path.mkdir)),
    "a manifest that is a link to itself": (MISSING, in_place_of("manifest.json", lambda path: path.symlink_to(path))),
    "a manifest without an end": (MISSING, in_place_of("manifest.json", lambda path: path.symlink_to("/dev/zero"))),
    "a format of text": (MISSING, with_manifest(format="2")),
    "a format that is none": (MISSING, with_manifest(format=True)),
    "files that are none": (TORN, with_manifest(files=[3])),
    "no list of files": (TORN, with_manifest(files={"name": "state.pt"})),
    "no files": ("manifest.json lacks files of values", with_manifest(files=[])),
    "fewer files than ranks": ("manifest.json lacks files of values", with_manifest(kind="each", world_size=10**15)),
    "infinitely many ranks": (
        TORN,
        with_text('{"format": 1, "job": "", "world_size": 1e999, "kind": "one", "files": []}'),
    ),
    "no ranks": (TORN, with_manifest(world_size=0)),
    "ranks of text": (TORN, with_manifest(world_size="2")),
    "a kind that is none": (TORN, with_manifest(kind=["one"])),
    "a job that is none": (TORN, with_manifest(job=None)),
    "a file without a name": (TORN, with_manifest(file_name=None)),
    "a size that is none": (TORN, with_manifest(file_bytes=float("inf"))),
    "a checksum that is none": (TORN, with_manifest(file_sha256=1)),
    "a file elsewhere": ("manifest.json names a file elsewhere", with_manifest(file_name="../../secret")),
    "a path elsewhere": ("manifest.json names a file elsewhere", with_manifest(file_name="/etc/passwd")),
    "a zero in a name": (STRANGE, with_manifest(file_name="a\0b")),
    "half a character in a name": (STRANGE, with_manifest(file_name="\ud800")),
    "a line's end in a name": (STRANGE, with_manifest(file_name="state.pt\n")),
    "a name too long": (STRANGE, with_manifest(file_name="a" * 5_000)),
    "the folder as a file": (STRANGE, with_manifest(file_name="..")),
    "a link elsewhere": (
        "manifest.json names a file elsewhere",
        in_place_of("state.pt", lambda path: path.symlink_to("/etc/passwd")),
    ),
    "a link to itself": ("state.pt: ", in_place_of("state.pt", lambda path: path.symlink_to(path))),
    "a pipe": ("state.pt is no file", in_place_of("state.pt", os.mkfifo)),
    "a folder": ("state.pt is no file", in_place_of("state.pt", Path.mkdir)),
    "a file in place of the folder": (MISSING, lambda path: (shutil.rmtree(path), path.write_text(""))),
    "a link in place of the folder": (MISSING, lambda path: (shutil.rmtree(path), path.symlink_to(path))),
}


@pytest.mark.parametrize("what", BREAKS)
def test_what_is_half_deleted_or_odd_is_left_out_with_a_line(folder, what):
    saved(folder, 1, 10)
    path = saved(folder, 2, 20)
    reason, change = BREAKS[what]
    change(path)
    assert steps(folder) == [10]
    (line,) = folder.scan().broken
    assert line.startswith(f"checkpoint {str(path)!r} is left out: {reason}")
    assert "\n" not in line
    line.encode()
    assert folder.scan().last_serial == 2  # its number is not given again
    folder.prune(1, ())
    assert names(folder) == ["00000001-step-10", "00000002-step-20"]  # it takes no whole one's place, and stays


def test_a_name_that_no_save_gives_is_no_checkpoint(folder):
    saved(folder, 1, 10)
    for name in ("9" * 200 + "-step-1", "00000002-step-" + "9" * 200, "\u0661" * 8 + "-step-1", "1-step-1"):
        (folder.path / name).mkdir()
    assert folder.scan().last_serial == 1
    assert steps(folder) == [10]


def test_a_newer_format_is_refused(folder):
    path = saved(folder, 1, 10)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": 2, "files": "elsewhere"}))
    with pytest.raises(CheckpointError, match=r"is of format 2, this elastic-train reads 1. Try: the elastic-train"):
        folder.scan()


def test_another_job_is_refused_and_loses_nothing(folder, monkeypatch):
    monkeypatch.setattr(checkpointer, "import_torch", lambda _: None)
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
    unfinished = folder.begin(1, 10).folder
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
