"""The index of a sharded checkpoint: what is read of torch's pickle, and what is refused without being run."""

import os
import pickle

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from elastic_train import CheckpointError
from elastic_train.checkpoint.shard_records import read_index

SIZE = torch.Size([4])
START = torch.Size([0])


def index(entry=None, at=None, part=None):
    """An index as torch writes it, but for what is given."""
    tensor = TensorStorageMetadata(TensorProperties(dtype=torch.bfloat16), SIZE, [ChunkStorageMetadata(START, SIZE)])
    return Metadata(
        {"w": entry or tensor},
        planner_data={"w": ("w",)},
        storage_data={at or MetadataIndex("w", START, 0): part or _StorageInfo("__0_0.distcp", 0, 100)},
        storage_meta=StorageMeta(checkpoint_id="x", save_id="y"),
    )


def read(tmp_path, raw):
    (tmp_path / ".metadata").write_bytes(raw)
    return read_index(tmp_path / ".metadata", ["__0_0.distcp"])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_an_index_of_torchs_is_read(tmp_path, protocol):
    found = read(tmp_path, pickle.dumps(index(), protocol))
    made = index()
    assert found.state_dict_metadata == made.state_dict_metadata
    assert found.storage_data == made.storage_data
    assert found.planner_data is None  # of use to torch where a checkpoint tells what the state is; ours does not


class _Runs:
    def __init__(self, call, *arguments):
        self.made_by = call, arguments

    def __reduce__(self):
        return self.made_by


def _edited(**changes):
    part = _StorageInfo("__0_0.distcp", 0, 100)
    vars(part).update(changes)
    return part


REFUSED = {
    "has an entry that is no tensor ('w'), which only code could read": index(entry=BytesStorageMetadata()),
    "has something that only code could read": _Runs(os.system, "touch ran"),
    "has something that only code could read ": index(part=_Runs(eval, "open('ran', 'w')")),
    "has something that only code could read  ": _Runs(getattr, "torch", "load"),
    "names a file that the checkpoint has not ('/dev/zero')": index(part=_edited(relative_path="/dev/zero")),
    "names a file that the checkpoint has not ('../state.pt')": index(part=_edited(relative_path="../state.pt")),
    "names a transformation, and a save has none": index(part=_edited(transform_descriptors=["stream.zstd/1"])),
    "has a part of no tensor ('v')": index(at=MetadataIndex("v", START)),
    "is torn: it has a size that is none": index(part=_edited(offset=-1)),
    "is torn: it has a size that is none ": index(part=_edited(length=1 << 63)),
    "is torn: it has a int in place of a str": index(part=_edited(relative_path=3)),
    "is torn: it has a dict in place of a Metadata": {"state_dict_metadata": {}},
    "is torn: it has a _StorageInfo in place of a TensorStorageMetadata": index(entry=_edited()),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_a_save_does_not_write_is_refused_and_nothing_is_run(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, pickle.dumps(REFUSED[line]))
    assert caught.value.what == f".metadata of its shards {line.strip()}"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("raw", [b"", b"\x80\x04", pickle.dumps(index())[:-40], b"\x80\x04K\x01b.", b"\x80\x04N}b."])
def test_a_torn_index_is_one_line(tmp_path, raw):
    with pytest.raises(CheckpointError, match=r"^\.metadata of its shards (is torn|has something)"):
        read(tmp_path, raw)


def test_a_file_changes_no_class_of_this_process(tmp_path):
    module = b"torch.distributed.checkpoint.metadata\n"
    # BUILD on a class: its state is (None, {"version": "poison"}), whose second part is set as attributes.
    raw = b"c" + module + b"Metadata\n(N(dVversion\nVpoison\nstb."
    before = Metadata.version
    with pytest.raises(CheckpointError):
        read(tmp_path, raw)
    assert Metadata.version == before
