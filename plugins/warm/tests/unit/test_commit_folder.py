"""The folder in shared memory: of this user alone, and gone with its agent."""

import os
import stat
import subprocess
import sys

import pytest

from elastic_warm.commit_folder import CommitFolder


def test_a_folder_is_for_its_user_alone_and_is_removed(tmp_path):
    folder = CommitFolder(tmp_path)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    (folder.path / "commit-0-0").write_bytes(b"state")
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_processes_that_were_killed_are_removed_and_others_stay(tmp_path):
    code = (
        "import os, sys, pathlib; from elastic_warm.commit_folder import CommitFolder; "
        "print(CommitFolder(pathlib.Path(sys.argv[1])).path, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        theirs = other.stdout.readline().strip()
        ours = CommitFolder(tmp_path)
        assert os.path.isdir(theirs), "its process runs"
        ours.close()
        other.kill()
    assert os.path.isdir(theirs)
    ours = CommitFolder(tmp_path)
    assert not os.path.exists(theirs)
    ours.close()


def test_a_folder_that_others_can_read_is_not_used(tmp_path):
    (tmp_path / f"elastic-warm-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="not a folder of this user alone"):
        CommitFolder(tmp_path)


def test_a_link_is_not_used(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"elastic-warm-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        CommitFolder(tmp_path)
