"""A folder that goes with its owner."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_backend_net.hosted_server import HostedProcess
from elastic_rdzv_etcd.hosting import folder_keeper
from elastic_rdzv_etcd.hosting.kept_folder import KeptFolder
from group_kit import all_closed_since, open_fds
from proc_kit import is_alive
from support import processes_with, wait_for


def test_a_folder_is_its_owners_alone_and_goes(tmp_path):
    before = open_fds()
    folder = KeptFolder("kept-", parent=str(tmp_path))
    assert not folder.path.exists()
    folder.make()
    assert folder.path.parent == tmp_path
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (keeper,) = folder.pids()
    fill(folder.path)
    folder.remove()
    folder.remove()
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{keeper}").exists()
    assert folder.pids() == frozenset()
    all_closed_since(before)


def test_a_folder_that_can_not_be_made_leaves_no_keeper(tmp_path):
    folder = KeptFolder("kept-", parent=str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError):
        folder.make()
    assert folder.pids() == frozenset()


OWNER = """
import os, signal, sys
from elastic_backend_net.hosted_server import HostedProcess
from elastic_rdzv_etcd.hosting.kept_folder import KeptFolder
folder = KeptFolder("kept-", parent=sys.argv[1])
folder.make()
(folder.path / "deep" / "deeper").mkdir(parents=True)
(folder.path / "deep" / "deeper" / "file").write_text("x")
(folder.path / "link").symlink_to(sys.argv[2])
process = HostedProcess(["/bin/sleep", "300"], dict(folder.mark))
process.start()
if sys.argv[3] == "fork" and not os.fork():
    signal.pause()
print(*process.pids(), *folder.pids(), flush=True)
if sys.argv[3] != "end":
    signal.pause()
"""


@pytest.mark.parametrize("how", ["killed", "end", "fork"])
def test_a_folder_goes_when_its_owner_does_not_say_farewell(tmp_path, how):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for made in (outside, inside):
        made.mkdir()
    (outside / "precious").write_text("")
    argv = [sys.executable, "-c", OWNER, inside, outside, how]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        server, keeper = map(int, owner.stdout.readline().split())
        if how != "end":
            owner.kill()
        owner.wait(20)
        try:
            wait_for(lambda: not list(inside.iterdir()), what="the folder's end")
            wait_for(lambda: not is_alive(server) and not is_alive(keeper), what="the processes' end")
        finally:
            if how == "fork":
                os.killpg(owner.pid, signal.SIGKILL)
    assert [path.name for path in outside.iterdir()] == ["precious"]


def test_a_server_that_is_just_being_started_does_not_outlive_the_folder(tmp_path, monkeypatch):
    """Its owner goes on, and may be killed, before the kernel shows what it was started with."""
    kept, read, early = tmp_path / "kept", folder_keeper._read, []
    kept.mkdir()
    process = HostedProcess(["/bin/sleep", "300"], {folder_keeper.KEPT_FOLDER_VARIABLE: str(kept)})
    process.start()
    (pid,) = process.pids()

    def reads(of, name):
        if of == pid and name != "stat" and len(early) < 20:
            assert kept.exists()
            early.append(name)
            return b""
        return read(of, name)

    monkeypatch.setattr(folder_keeper, "_read", reads)
    folder_keeper.clear(str(kept))
    try:
        wait_for(lambda: not process.alive, what="the server's end")
    finally:
        process.stop()
    assert len(early) == 20
    assert not kept.exists()


def test_a_kernel_thread_a_zombie_and_one_without_environment_are_not_just_being_started():
    assert not [pid for pid in (2, 1, os.getpid()) if folder_keeper._is_starting(pid)]
    with subprocess.Popen(["/bin/sleep", "60"], env={}) as bare:
        wait_for(lambda: Path(f"/proc/{bare.pid}/cmdline").read_bytes(), what="its command line")
        assert not folder_keeper._is_starting(bare.pid)
        bare.kill()
        wait_for(lambda: " Z " in Path(f"/proc/{bare.pid}/stat").read_text(), what="a zombie")
        assert not folder_keeper._is_starting(bare.pid)


def test_a_keeper_kills_only_who_is_marked(tmp_path):
    script = OWNER.replace("dict(folder.mark)", "{}")
    argv = [sys.executable, "-c", script, tmp_path, tmp_path, "end"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True, start_new_session=True)
    server, keeper = map(int, ended.stdout.split())
    wait_for(lambda: not is_alive(keeper) and not list(tmp_path.iterdir()), what="the folder's end")
    assert is_alive(server)
    os.kill(server, signal.SIGKILL)


def test_a_process_is_found_by_the_mark_of_its_folder(tmp_path):
    folder = KeptFolder("kept-", parent=str(tmp_path))
    process = HostedProcess(["/bin/sleep", "60"], folder.mark)
    process.start()
    entry = "=".join(next(iter(folder.mark.items())))
    try:
        wait_for(lambda: processes_with(entry) == list(process.pids()), what="the mark")
    finally:
        process.stop()


def fill(folder):
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("content")
