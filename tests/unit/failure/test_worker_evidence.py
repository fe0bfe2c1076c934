"""The evidence of a round's workers on this node, from files as workers leave them."""

import json
import os

import pytest

from elastic_core.failure.worker_evidence import WorkerEvidence
from elastic_core.processes.errors.record_pipe import BEGUN_SUFFIX
from elastic_core.processes.spec import WorkerPaths
from elastic_core.types import WorkerExit

AT_NS = 1_700_000_000_000_000_000
EXIT = WorkerExit(local_rank=0, global_rank=4, pid=100, code=1, at_s=1.0, at_ns=AT_NS, runtime_s=9.0)


class Disk:
    """Runs jobs at once; one that hangs yields nothing."""

    def __init__(self, *, hangs=False):
        self.hangs = hangs

    def run(self, path, job, take, *, within_s):
        if self.hangs:
            take(None, TimeoutError(0, "Timed out"))
        else:
            take(job(), None)


class Log:
    def notice(self, text):
        pass


@pytest.fixture
def paths(tmp_path):
    return {
        rank: WorkerPaths(error_file=str(tmp_path / f"error-{rank}.json"), fault_file=str(tmp_path / f"fault-{rank}"))
        for rank in range(6)
    }


def begun(paths, *, disk=None):
    """Return what is known after the first worker's evidence was read."""
    evidence, done = WorkerEvidence(paths, script=None), []
    evidence.read_ahead(EXIT, lambda: done.append(True), disk=disk or Disk(), log=Log())
    assert done == [True]
    return {rank: evidence.begun_ns([rank]) for rank in paths}


def leave(path, text, at_ns=AT_NS):
    with open(path, "w") as file:
        file.write(text)
    os.utime(path, ns=(at_ns, at_ns))


def test_workers_that_have_begun_to_record_a_failure_are_known_with_the_time(paths):
    leave(paths[1].error_file + BEGUN_SUFFIX, "", AT_NS - 5)
    leave(paths[2].fault_file, "Fatal Python error: Segmentation fault", AT_NS - 7)
    leave(paths[3].fault_file, "")  # as each interpreter makes it
    leave(paths[4].error_file, "")  # an earlier interpreter's record, emptied by a later one
    assert begun(paths) == {0: [], 1: [AT_NS - 5], 2: [AT_NS - 7], 3: [], 4: [], 5: []}


def test_a_complete_record_that_is_not_read_yet_may_be_of_any_time(paths):
    leave(paths[1].error_file, json.dumps({"message": "boom"}), AT_NS + 9)
    leave(paths[1].error_file + BEGUN_SUFFIX, "", AT_NS - 5)
    assert begun(paths)[1] == [0]


def test_nothing_is_known_of_workers_without_files_or_on_a_disk_that_hangs(paths):
    leave(paths[1].error_file + BEGUN_SUFFIX, "")
    assert begun(paths, disk=Disk(hangs=True))[1] == []
    paths[1] = WorkerPaths(error_file="", fault_file="")
    assert begun(paths)[1] == []
