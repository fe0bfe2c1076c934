"""The run directory's rules: where it is made, who may read it, when it goes."""

import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from elastic_core.errors import ConfigError
from elastic_core.rundir import directory as rundir
from elastic_core.rundir.directory import RunDirectory, runs_folders


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A runtime directory of the user's own."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("TMPDIR", str(runtime))
    return runtime


def parent_of(base):
    return base / f"elastic-{os.geteuid()}"


def test_it_is_made_for_its_owner_only_and_removed_on_success(base):
    run = RunDirectory(None, "job-1")
    assert run.path.parent == parent_of(base)
    assert run.path.name.startswith("job-1-")
    assert {stat.S_IMODE(p.stat().st_mode) for p in (run.path, run.path.parent)} == {0o700}
    deep = run.path / "attempt_0" / "0"
    deep.mkdir(parents=True)
    (deep / "stdout.log").write_text("x")
    (run.path / "link").symlink_to(base)
    assert run.finish(success=True) is False
    assert list(parent_of(base).iterdir()) == []


def test_it_is_kept_on_failure_and_where_somebody_wants_it(base):
    failed, wanted, plain = (RunDirectory(None, "a") for _ in range(3))
    wanted.keep("logs were asked for")
    wanted.keep("another reason")
    assert failed.finish(success=False)
    assert wanted.finish(success=True)
    assert not plain.finish(success=True)
    assert set(parent_of(base).iterdir()) == {failed.path, wanted.path}
    assert (failed.kept_because, wanted.kept_because, plain.kept_because) == (
        "the run failed",
        "logs were asked for",
        "",
    )


@pytest.mark.parametrize("run_id", ["team/job", "..", "ünï çødé", "x" * 5000, "a\nb", "", "%2F", "/" * 100])
def test_any_run_id_makes_one_short_name(base, run_id):
    run = RunDirectory(None, run_id)
    assert run.path.parent == parent_of(base)
    assert len(run.path.name) <= 50
    assert run.path.name.isascii()
    assert run.path.is_dir()


def test_a_file_that_a_worker_made_unremovable_by_mode_goes_too(base):
    run = RunDirectory(None, "a")
    closed = run.path / "closed"
    closed.mkdir()
    (closed / "file").touch()
    closed.chmod(0o500)
    assert not run.finish(success=True)


def test_what_can_not_be_removed_stays_without_an_error(base, monkeypatch):
    run = RunDirectory(None, "a")
    (run.path / "held").touch()
    monkeypatch.setattr(rundir.os, "unlink", lambda path: (_ for _ in ()).throw(OSError("busy")))
    assert run.finish(success=True) is True


def test_a_parent_that_others_can_write_to_is_refused(base):
    parent_of(base).mkdir()
    parent_of(base).chmod(0o770)
    with pytest.raises(ConfigError, match=r"can be written by others \(mode 770\).*Try: remove it, or --run-dir"):
        RunDirectory(None, "a")


def test_a_parent_of_another_user_is_refused(base, monkeypatch):
    parent_of(base).mkdir(mode=0o700)
    foreign = os.geteuid() + 1
    monkeypatch.setattr(rundir, "_is_private", lambda path: True)
    parent_of(base).rename(base / f"elastic-{foreign}")
    monkeypatch.setattr(rundir.os, "geteuid", lambda: foreign)
    with pytest.raises(ConfigError, match=rf"belongs to user {foreign - 1}; expected a directory of user {foreign} "):
        RunDirectory(None, "a")


def test_a_parent_that_is_a_link_or_a_file_is_refused(base, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    parent_of(base).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a symbolic link"):
        RunDirectory(None, "a")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    parent_of(base).unlink()
    parent_of(base).touch()
    with pytest.raises(ConfigError, match="is not a directory"):
        RunDirectory(None, "a")


def test_a_parent_that_racing_runs_remove_is_made_again(base, monkeypatch):
    checks = []
    check = rundir._check_owner_only

    def removed_meanwhile(parent):
        check(parent)
        checks.append(parent)
        if len(checks) < 4:
            parent.rmdir()

    monkeypatch.setattr(rundir, "_check_owner_only", removed_meanwhile)
    assert RunDirectory(None, "a").path.is_dir()
    assert len(checks) == 4
    monkeypatch.setattr(rundir, "_check_owner_only", lambda parent: (_ for _ in ()).throw(FileNotFoundError))
    with pytest.raises(ConfigError, match="it keeps vanishing"):
        RunDirectory(None, "a")


def test_a_runtime_directory_of_somebody_else_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "temp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temp"))
    somebody_elses = tmp_path / "theirs"
    somebody_elses.mkdir()
    real_stat = Path.stat

    def stat_of(self, **options):
        found = real_stat(self, **options)
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:10])) if self == somebody_elses else found

    monkeypatch.setattr(Path, "stat", stat_of)
    for useless in (str(somebody_elses), "relative", str(tmp_path / "missing"), ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", useless)
        run = RunDirectory(None, "a")
        assert run.path.parent == parent_of(tmp_path / "temp")
        run.finish(success=True)


def test_no_temp_directory_is_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setattr(rundir, "_is_writable_directory", lambda path: False)
    with pytest.raises(ConfigError, match=r"no writable directory .*missing, .*/tmp.* Try: --run-dir") as caught:
        RunDirectory(None, "a")
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_one_line(base, monkeypatch):
    def full(self, mode=0o777, parents=False, exist_ok=False):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(ConfigError, match=r"no run directory can be made in '.*' \(No space left on device\). Try: "):
        RunDirectory(None, "a")


def test_a_chosen_directory_is_made_and_never_removed(tmp_path):
    run = RunDirectory(str(tmp_path / "deep" / "runs"), "a")
    assert run.path == tmp_path / "deep" / "runs"
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    (run.path / "mine").touch()
    assert run.finish(success=True)
    assert (run.path / "mine").exists()
    assert RunDirectory(str(run.path), "a").path == run.path


def test_a_chosen_directory_that_can_not_be_used_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    cases = [
        ("file", "is a file"),
        ("file/below", "lies below a file"),
        ("file/a/b", "lies below a file"),
        ("x" * 300, "too long"),
    ]
    for name, words in cases:
        with pytest.raises(ConfigError, match=f"--run-dir .*{words}.*Try: ") as caught:
            RunDirectory(str(tmp_path / name), "a")
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="--run-dir is empty"):
        RunDirectory("", "a")
    monkeypatch.setattr(rundir.os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="not writable by this user"):
        RunDirectory(str(tmp_path), "a")


@pytest.fixture
def two(tmp_path, monkeypatch):
    """A runtime directory of the user's own, and a temp directory."""
    places = tmp_path / "runtime", tmp_path / "temp"
    for place, name in zip(places, ("XDG_RUNTIME_DIR", "TMPDIR"), strict=True):
        place.mkdir(mode=0o700)
        monkeypatch.setenv(name, str(place))
    return places


@pytest.mark.parametrize("terminal", [True, False])
def test_the_runtime_directory_is_for_runs_with_a_terminal(two, terminal, monkeypatch):
    monkeypatch.setattr(rundir, "_has_terminal", lambda: terminal)
    runtime, temp = two
    assert RunDirectory(None, "a").path.parent == parent_of(runtime if terminal else temp)
    assert set(runs_folders()) == {parent_of(runtime), parent_of(temp)}


def test_a_place_that_takes_no_directory_gives_way_to_the_next(two, monkeypatch):
    monkeypatch.setattr(rundir, "_has_terminal", lambda: True)
    runtime, temp = two
    make = Path.mkdir

    def full(self, *args, **more):
        if runtime in self.parents:
            raise OSError(28, "No space left on device")
        make(self, *args, **more)

    monkeypatch.setattr(Path, "mkdir", full)
    assert RunDirectory(None, "a").path.parent == parent_of(temp)


def is_locked(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # what systemd-tmpfiles tries before it looks into a directory
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def test_cleaners_are_kept_out_while_the_run_lives(base):
    run = RunDirectory(None, "a")
    assert is_locked(run.path)
    run.close()
    assert not is_locked(run.path)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_a_chosen_directory_that_others_can_write_to_is_refused(tmp_path, mode):
    (tmp_path / "run").mkdir()
    if mode == 0o770:
        if os.geteuid():
            pytest.skip("only root can give a directory to another group")
        os.chown(tmp_path / "run", -1, 65534)
    (tmp_path / "run").chmod(mode)
    match = rf"^--run-dir '.*run' can be written by others \(mode {mode:03o}\); expected a directory of user \d+ that"
    with pytest.raises(ConfigError, match=match) as caught:
        RunDirectory(str(tmp_path / "run"), "a")
    assert "Try: --run-dir" in str(caught.value)


def test_a_chosen_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ConfigError, match=rf"--run-dir '.*' belongs to user {tmp_path.stat().st_uid}; expected"):
        RunDirectory(str(tmp_path), "a")


def test_a_chosen_directory_with_links_in_it_is_refused(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / "journal.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match=r"has a symbolic link in it \('journal.jsonl'\); expected a directory"):
        RunDirectory(str(tmp_path / "run"), "a")
    (tmp_path / "mine").symlink_to(tmp_path / "deep")
    (tmp_path / "deep").mkdir(mode=0o700)
    assert RunDirectory(str(tmp_path / "mine"), "a").path == tmp_path / "mine"  # the user's own shorthand


def test_a_chosen_directory_that_the_users_own_group_can_write_to_will_do(tmp_path):
    if tmp_path.stat().st_gid != tmp_path.stat().st_uid:
        pytest.skip("this user has no group of its own number")
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o775)  # a umask of 002, usual where each user has a group
    assert RunDirectory(str(tmp_path / "run"), "a").path == tmp_path / "run"


@pytest.mark.parametrize("mask", [0o300, 0o777])
def test_a_umask_that_keeps_rights_from_the_owner_ends_no_run_of_this_user(base, tmp_path, mask):
    before = os.umask(mask)
    try:
        made = [RunDirectory(None, "a"), RunDirectory(str(tmp_path / "x" / "y"), "a")]
    finally:
        os.umask(before)
    folders = (made[0].path, made[0].path.parent, made[1].path, made[1].path.parent)
    assert [stat.S_IMODE(folder.stat().st_mode) & 0o700 for folder in folders] == [0o700] * 4


def test_a_place_that_an_earlier_version_has_made_without_rights_is_mended(base):
    parent_of(base).mkdir(mode=0)
    RunDirectory(None, "a")
    assert stat.S_IMODE(parent_of(base).stat().st_mode) == 0o700


@pytest.mark.parametrize("chosen", [True, False])
def test_directory_is_closed_once_if_the_thread_that_finishes_it_is_held_up(tmp_path, monkeypatch, chosen):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    directory = RunDirectory(str(tmp_path / "run") if chosen else None, "run")
    closes, goes_on, close, closed = threading.Event(), threading.Event(), os.close, []

    def close_held(fd):
        closed.append(fd)
        if threading.current_thread() is not threading.main_thread():
            closes.set()
            assert goes_on.wait(60)
        close(fd)

    monkeypatch.setattr(os, "close", close_held)
    thread = threading.Thread(target=directory.finish, args=(True,))
    thread.start()
    assert closes.wait(60)
    directory.close()  # the run ends at its limit
    goes_on.set()
    thread.join()
    monkeypatch.undo()
    assert len(closed) == len(set(closed)) == (2 if chosen else 1), closed
