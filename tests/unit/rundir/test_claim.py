"""Whose a chosen run directory is, on whatever host its agent lives, and where other nodes have their files then."""

import fcntl
import os
from contextlib import closing

import pytest
from msgspec.structs import replace

from elastic_core.encoding import encode_json
from elastic_core.errors import ConfigError
from elastic_core.rundir import claim as claims
from elastic_core.rundir.claim import CLAIM_FILE, Claim, claim
from elastic_core.rundir.directory import RunDirectory
from elastic_core.rundir.identity import AgentIdentity

OURS = AgentIdentity.own(host="gpu-1", started_ns=0)
ENDED = replace(OURS, start_ticks=OURS.start_ticks + 1)  # an earlier process with our number
CONTAINER = replace(OURS, pid_namespace="pid:[1]")
OTHER_HOST = replace(OURS, host="gpu-2", boot_id="another")


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "shared"
    made.mkdir(mode=0o700)
    return made


def leave(folder, content):
    """Leave the claim of another agent there, as far as one sees from here."""
    path = folder / CLAIM_FILE
    path.write_bytes(content if isinstance(content, bytes) else encode_json(content))
    return path


def test_a_directory_has_one_agent_until_it_lets_go(folder):
    first = claim(folder)
    assert isinstance(first, Claim)
    assert claim(folder) == f"the agent with pid {os.getpid()} on host {os.uname().nodename!r}"
    first.release()
    first.release()
    assert list(folder.iterdir()) == []
    with closing(claim(folder)) as second:
        assert isinstance(second, Claim)


@pytest.mark.parametrize("holder", [ENDED, CONTAINER])
def test_the_claim_of_an_agent_of_this_host_that_has_ended_is_taken_over(folder, holder):
    leave(folder, holder)
    with closing(claim(folder)) as ours:
        assert isinstance(ours, Claim)
        assert isinstance(claim(folder), str)


@pytest.mark.parametrize("holder", [ENDED, CONTAINER])
def test_one_whose_lock_is_held_is_not(folder, holder):
    path = leave(folder, holder)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert claim(folder) == f"the agent with pid {holder.pid} on host 'gpu-1'"


@pytest.mark.parametrize("holder", [OTHER_HOST, replace(OTHER_HOST, host="gpu-1"), b"", b"{", b"\xff"])
def test_one_that_can_not_be_seen_from_here_is_respected_though_no_lock_reaches_us(folder, holder):
    leave(folder, holder)
    assert isinstance(claim(folder), str)


def test_where_there_are_no_locks_a_claim_counts_as_long_as_its_file_is_there(folder, monkeypatch):
    def refuse(fd, operation):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(claims.fcntl, "flock", refuse)
    path = leave(folder, ENDED)
    assert isinstance(claim(folder), str)
    path.unlink()
    ours = claim(folder)
    assert isinstance(ours, Claim)
    ours.release()
    assert not path.exists()


def test_a_claim_that_is_released_while_it_is_looked_at_is_made_anew(folder, monkeypatch):
    path = leave(folder, ENDED)
    real = fcntl.flock

    def released_first(fd, operation):
        if path.exists() and path.read_bytes() == encode_json(ENDED):
            path.unlink()
        real(fd, operation)

    monkeypatch.setattr(claims.fcntl, "flock", released_first)
    with closing(claim(folder)) as ours:
        assert isinstance(ours, Claim)
        assert claims._is_at(ours._fd, path)


def test_one_that_another_agent_has_taken_over_is_not_removed_with_ours(folder):
    ours = claim(folder)
    (folder / CLAIM_FILE).unlink()
    theirs = leave(folder, OTHER_HOST)
    ours.release()
    assert theirs.exists()


def test_a_full_disk_is_no_reason_to_share_a_directory(folder, monkeypatch):
    def full(fd, data, at):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(claims.os, "pwrite", full)
    with closing(claim(folder)):
        assert claim(folder) == "another agent"


def test_a_link_in_its_way_is_not_followed(folder, tmp_path):
    (tmp_path / "victim").write_text("precious")
    (folder / CLAIM_FILE).symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        claim(folder)
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.fixture
def create(folder):
    made = []

    def create(node_id):
        made.append(run := RunDirectory(str(folder), "bert-7", node_id))
        return run

    yield create
    for run in made:
        run.close()


def test_each_node_has_a_place_of_its_own_below_a_directory_that_another_agent_has(create, folder):
    first, second, same, odd = create("a"), create("b"), create("b"), create("../" + "x" * 300)
    assert first.path == folder
    assert first.notice == ""
    assert second.path == folder / "node_b"
    first_agent = f"the agent with pid {os.getpid()} on host {os.uname().nodename!r}"
    assert second.notice == (
        f"--run-dir {str(folder)!r} has files of {first_agent}: this node's are in {str(folder / 'node_b')!r}. "
        f"Try: a --run-dir for each node, or rm {str(folder / CLAIM_FILE)!r} if that agent was killed"
    )
    assert same.path == folder / "node_b-2"
    assert odd.path.parent == folder
    assert len({run.path for run in (first, second, same, odd)}) == 4
    assert {run.path.stat().st_mode & 0o777 for run in (second, same, odd)} == {0o700}


def test_the_directory_is_free_again_when_its_run_has_ended(create, folder):
    for success in (True, False):
        run = create("a")
        assert run.path == folder
        assert run.finish(success=success)
        run.close()
        assert not (folder / CLAIM_FILE).exists()


def test_agents_of_another_host_keep_theirs_until_somebody_removes_their_claim(create, folder):
    path = leave(folder, OTHER_HOST)
    run = create("a")
    assert run.path == folder / "node_a"
    assert f"the agent with pid {OTHER_HOST.pid} on host 'gpu-2'" in run.notice
    path.unlink()
    assert create("c").path == folder


def test_a_directory_where_no_claim_can_be_made_is_one_line(folder, monkeypatch):
    def full(path, flags, mode=0):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(claims.os, "open", full)
    with pytest.raises(ConfigError, match=r"--run-dir '.*' can't be written \(No space left on device\)\. Try: "):
        RunDirectory(str(folder), "bert-7", "a")
