"""Files of one user in places where others may be."""

import os
import stat

import pytest

from elastic_core.system.private_file import make_chosen_folder, make_folder, read_file, replace_file


@pytest.fixture(autouse=True)
def no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_file_is_its_owners_only_and_replaced_as_a_whole(tmp_path):
    path = tmp_path / "status.json"
    for content in (b"one", b"two"):
        replace_file(path, content)
        assert path.read_bytes() == content
        assert mode(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["status.json", "status.json.PID.tmp"])
def test_a_link_in_its_way_is_replaced_not_followed(tmp_path, name):
    name = name.replace("PID", str(os.getpid()))
    (tmp_path / "victim").write_text("precious")
    (tmp_path / name).symlink_to(tmp_path / "victim")
    replace_file(tmp_path / "status.json", b"ours")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "status.json").is_symlink()
    assert (tmp_path / "status.json").read_bytes() == b"ours"


def test_what_can_not_be_written_leaves_nothing(tmp_path):
    (tmp_path / "status.json").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "status.json", b"ours")
    assert list(tmp_path.iterdir()) == [tmp_path / "status.json"]


def test_missing_folders_are_made_for_their_owner_only(tmp_path):
    make_folder(str(tmp_path / "a" / "b" / "c"))
    make_folder(str(tmp_path / "a" / "b" / "c"))
    assert {mode(tmp_path / "a"), mode(tmp_path / "a" / "b"), mode(tmp_path / "a" / "b" / "c")} == {0o700}


@pytest.fixture(params=[0o300, 0o377, 0o777])
def greedy_umask(request, no_umask):
    """One that keeps rights from the owner, too."""
    os.umask(request.param)


def test_the_owner_keeps_all_rights_whatever_the_umask(tmp_path, greedy_umask):
    make_folder(str(tmp_path / "a" / "b"))
    replace_file(tmp_path / "a" / "b" / "status.json", b"{}")
    assert {mode(tmp_path / "a"), mode(tmp_path / "a" / "b")} == {0o700}
    assert mode(tmp_path / "a" / "b" / "status.json") == 0o600


def test_a_chosen_folder_is_as_the_umask_has_it_for_others_and_its_owners_to_use(tmp_path, greedy_umask):
    make_chosen_folder(str(tmp_path / "a" / "b"))
    make_chosen_folder(str(tmp_path / "a" / "b"))
    kept = 0o777 & ~os.umask(0) | 0o700
    assert {mode(tmp_path / "a"), mode(tmp_path / "a" / "b")} == {kept}


def test_a_chosen_folder_with_the_usual_umask_is_open_to_read(tmp_path):
    os.umask(0o022)
    make_chosen_folder(str(tmp_path / "a" / "b"))
    assert {mode(tmp_path / "a"), mode(tmp_path / "a" / "b")} == {0o755}
    (tmp_path / "file").touch()
    for below, error in (("file", FileExistsError), ("file/x", FileExistsError), ("file/x/y", OSError)):
        with pytest.raises(error):
            make_chosen_folder(str(tmp_path / below))


def test_nothing_is_made_where_others_could_replace_it(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by others"):
        make_folder(str(tmp_path / "open" / "a"))
    (tmp_path / "open").chmod(0o1777)  # as /tmp is
    make_folder(str(tmp_path / "open" / "a" / "b"))
    assert mode(tmp_path / "open" / "a") == 0o700


def test_a_file_is_read_up_to_a_bound(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_file(path, most_bytes=100) == b"x" * 100
    with pytest.raises(OSError, match="File too large"):
        read_file(path, most_bytes=99)
    with pytest.raises(OSError, match="File too large"):
        read_file("/dev/zero", most_bytes=99)
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path, most_bytes=99)


def test_nobody_waits_for_a_pipe_of_that_name(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert read_file(path, most_bytes=99) == b""
