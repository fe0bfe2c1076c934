"""The file with a run's secret: whose it is, who may read it, and what earlier attempts leave."""

import os
import stat

import pytest

from elastic_core.api import RendezvousSettings
from elastic_rdzv_redis import secret_file
from elastic_rdzv_redis.secret_file import SecretFile, UnusableError

SECRET, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def file(tmp_path):
    def file(run_id="4711.0", port=21_000, *, job="slurm 4711", attempt=0, given=True, folder=tmp_path / "secrets"):
        settings = RendezvousSettings(run_id=run_id, job=job, attempt=attempt, attempt_given=given)
        return SecretFile(folder, settings, port)

    return file


def shared(file, secret=SECRET):
    file.prepare(secret)
    file.publish()
    return file


def refused(call, *args):
    with pytest.raises(UnusableError) as caught:
        call(*args)
    return str(caught.value)


def test_the_file_is_this_users_alone(file, tmp_path):
    umask = os.umask(0)
    try:
        shared(file())
    finally:
        os.umask(umask)
    (path,) = (tmp_path / "secrets").iterdir()
    assert path.name == "4711.0@slurm%204711.0.21000"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert file().read() == SECRET


def test_no_node_finds_it_before_it_is_published(file, tmp_path):
    first = file()
    first.prepare(SECRET)
    assert refused(file().read) == f"no file of the run in {tmp_path / 'secrets'}"
    first.publish()
    assert file().read() == SECRET
    first.remove()
    first.remove()
    assert not list((tmp_path / "secrets").iterdir())


def test_what_is_prepared_and_not_published_is_removed(file, tmp_path):
    first = file()
    first.prepare(SECRET)
    first.prepare(OTHER)
    first.remove()
    assert not list((tmp_path / "secrets").iterdir())


@pytest.mark.parametrize(
    "other",
    [{"attempt": 1}, {"run_id": "4711.1"}, {"run_id": "4711"}, {"port": 21_001}, {"job": "slurm 4712"}],
    ids=lambda other: next(iter(other)),
)
def test_another_attempt_step_job_or_port_has_another_file(file, other):
    shared(file())
    assert refused(file(**other).read).startswith("no file of the run in ")


def test_a_killed_attempt_leaves_nothing_to_the_next_one(file, tmp_path):
    shared(file())
    shared(file(attempt=1), OTHER)
    assert [path.name for path in (tmp_path / "secrets").iterdir()] == ["4711.0@slurm%204711.1.21000"]
    assert file(attempt=1).read() == OTHER


def test_an_agent_that_is_begun_again_in_the_same_step_replaces_the_secret(file):
    killed = shared(file())
    shared(file(), OTHER)
    assert file().read() == OTHER
    killed.remove()  # it is not its own any more
    assert file().read() == OTHER


def test_a_command_reads_the_newest_file_of_a_run(file, tmp_path):
    shared(file(job="slurm 4711", attempt=2))
    shared(file(job="slurm 4712"), OTHER)
    os.utime(tmp_path / "secrets" / "4711.0@slurm%204711.2.21000", (1, 1))
    command = file(job="", given=False)
    assert command.read() == OTHER
    assert refused(file("4711", job="", given=False).read).startswith("no file of the run in ")


def test_long_ids_and_ids_with_slashes_stay_in_the_folder(file, tmp_path):
    for run_id in ("../x", "r" * 500):
        shared(file(run_id))
        assert file(run_id).read() == SECRET
    assert {path.parent for path in tmp_path.rglob("*@*")} == {tmp_path / "secrets"}


def test_a_planted_link_is_neither_read_nor_written(file, tmp_path):
    target = tmp_path / "target"
    target.write_text(OTHER)
    target.chmod(0o600)
    (tmp_path / "secrets").mkdir(mode=0o700)
    (tmp_path / "secrets" / "4711.0@slurm%204711.0.21000").symlink_to(target)
    assert "symbolic link" in refused(file().read)
    shared(file())
    assert target.read_text() == OTHER
    assert file().read() == SECRET


def test_a_linked_folder_is_refused(file, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert refused(file(folder=tmp_path / "link").prepare, SECRET).startswith(f"folder {tmp_path / 'link'}: ")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_that_others_can_write_is_refused(file, tmp_path, mode):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets").chmod(mode)
    words = f"folder {tmp_path / 'secrets'} can be written by other users (mode {mode:04o})"
    assert refused(file().prepare, SECRET) == refused(file().read) == words


def test_what_belongs_to_another_user_is_refused(file, tmp_path, monkeypatch):
    shared(file())
    monkeypatch.setattr(secret_file.os, "geteuid", lambda: os.getuid() + 1)
    words = f"folder {tmp_path / 'secrets'} belongs to user id {os.getuid()}, not to {os.getuid() + 1}"
    assert refused(file().prepare, SECRET) == refused(file().read) == words


@pytest.mark.parametrize(
    ("mode", "text", "words"),
    [(0o644, SECRET, "is not this user's alone"), (0o600, "", "has no secret in it"), (0o600, "x", "has no secret in")],
)
def test_a_file_that_is_no_secret_is_refused(file, tmp_path, mode, text, words):
    shared(file())
    (path,) = (tmp_path / "secrets").iterdir()
    path.write_text(text)
    path.chmod(mode)
    assert words in refused(file().read)


def test_a_pipe_in_its_place_is_refused_at_once(file, tmp_path):
    (tmp_path / "secrets").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "secrets" / "4711.0@slurm%204711.0.21000", 0o600)
    assert "is not this user's alone" in refused(file().read)


def test_a_folder_that_can_not_be_made_is_one_line(file, tmp_path):
    (tmp_path / "file").write_text("")
    words = refused(file(folder=tmp_path / "file" / "secrets").prepare, SECRET)
    assert words == f"folder {tmp_path / 'file' / 'secrets'}: Not a directory"
