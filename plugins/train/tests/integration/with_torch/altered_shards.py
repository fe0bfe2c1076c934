"""A sharded checkpoint that somebody has altered, and one whose disk is full; run by `test_checkpoints.py`."""

import io
import json
import logging
import os
import pickle
import resource
import shutil
import sys
from hashlib import sha256
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

from elastic_train import Checkpointer, CheckpointError, init_process_group

FOLDER = Path(sys.argv[1])
RAN = FOLDER / "ran"


class Code:
    def __reduce__(self):
        return os.system, (f"echo $PPID >> {RAN}",)


def stored(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def as_bytes(path):
    """The tensor's entry is one of bytes, which torch reads as any pickle."""
    evil = stored(Code())
    (path / "shards/__0_0.distcp").write_bytes(evil)
    index = pickle.loads((path / "shards/.metadata").read_bytes())
    (name,) = index.state_dict_metadata
    index.state_dict_metadata[name] = BytesStorageMetadata()
    index.storage_data = {MetadataIndex(name): _StorageInfo("__0_0.distcp", 0, len(evil))}
    (path / "shards/.metadata").write_bytes(pickle.dumps(index))


def as_tensor(path):
    """The tensor's file is the pickle of something else."""
    evil = stored(Code())
    (path / "shards/__0_0.distcp").write_bytes(evil)
    index = pickle.loads((path / "shards/.metadata").read_bytes())
    for part in index.storage_data.values():
        part.offset, part.length = 0, len(evil)
    (path / "shards/.metadata").write_bytes(pickle.dumps(index))


def as_index(path):
    (path / "shards/.metadata").write_bytes(pickle.dumps(Code()))


def as_values(path):
    (path / "state.pt").write_bytes(stored({"w": Code()}))


def as_old_values(path):
    """In the form of torch before 1.6, a pickle without an archive."""
    (path / "state.pt").write_bytes(pickle.dumps(Code(), 2))


def endless(path):
    """What needs no code to end a reader: a list that has itself in it."""
    values = [1]
    values.append(values)
    (path / "state.pt").write_bytes(stored({"w": values}))


def no_shards(path):
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"] = [each for each in manifest["files"] if each["name"] == "state.pt"]
    (path / "manifest.json").write_text(json.dumps(manifest))


def with_true_checksums(path):
    manifest = json.loads((path / "manifest.json").read_text())
    for file in manifest["files"]:
        raw = (path / file["name"]).read_bytes()
        file["bytes"], file["sha256"] = len(raw), sha256(raw).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


class Lines(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())


lines = []
logging.getLogger("elastic_train").addHandler(Lines())
logging.getLogger("elastic_train").propagate = False
with init_process_group(backend="gloo"):
    mesh = init_device_mesh("cpu", (1,))

    def tensor(fill):
        return distribute_tensor(torch.full((4,), float(fill)), mesh, [Shard(0)])

    honest = Checkpointer(FOLDER / "honest")
    honest.save({"w": tensor(1)}, step=1)
    honest.save({"w": tensor(2)}, step=2)
    for alter in (as_bytes, as_tensor, as_index, as_values, as_old_values, endless, no_shards):
        shutil.copytree(FOLDER / "honest", FOLDER / alter.__name__)
        newest = FOLDER / alter.__name__ / "00000002-step-2"
        alter(newest)
        with_true_checksums(newest)
        del lines[:]
        target = tensor(0)
        try:
            step = Checkpointer(FOLDER / alter.__name__).load({"w": target}).step
        except CheckpointError as error:
            step = None
            lines.append(str(error))
        assert not RAN.exists(), alter
        assert len(lines) == 1, (alter, lines)
        assert "\n" not in lines[0], lines
        assert "weights_only" not in lines[0], lines
        print(alter.__name__, step, lines[0].replace(str(FOLDER), ""))
        if step == 1:
            assert target.full_tensor().tolist() == [1.0] * 4
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        honest.save({"w": distribute_tensor(torch.zeros(100_000), mesh, [Shard(0)])}, step=3)
    except CheckpointError as error:
        print("full", error.what.replace(str(FOLDER), ""))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert honest.latest() == 2
sys.stdout.flush()
os._exit(0)  # torch's meshes keep their groups, whose threads may abort an interpreter that ends
