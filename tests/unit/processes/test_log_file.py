"""Log files of the agent: exact, rotated between two lines, and never the end of a run."""

import itertools
import os
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.processes.output.log_file import LogFile
from support import Lines


@pytest.fixture
def notices():
    return Lines()


@pytest.fixture
def open_file(tmp_path, notices):
    files = []

    def open_file(**more):
        files.append(LogFile(str(tmp_path / "stdout.log"), log=notices, **more))
        return files[-1]

    yield open_file
    for file in files:
        file.close()


def parts(folder):
    """Return what the files hold, the oldest first."""
    found = [path for path in folder.iterdir() if re.fullmatch(r"stdout\.log(\.\d+)?", path.name)]
    found.sort(key=lambda path: -int(path.suffix[1:]) if path.suffix != ".log" else 0)
    return [path.read_bytes() for path in found]


def test_without_a_limit_a_file_grows(tmp_path, open_file):
    (tmp_path / "stdout.log").write_bytes(b"earlier\n")
    file = open_file()
    for _ in range(100):
        file.write(b"x" * 1000)
    file.close()
    file.write(b"too late")
    assert parts(tmp_path) == [b"earlier\n" + b"x" * 100_000]


def test_a_full_file_makes_room_between_two_lines(tmp_path, open_file):
    open_file(max_bytes=10, backups=9).write(b"one\ntwo\nthree\nfour\nfive")
    assert parts(tmp_path) == [b"one\ntwo\n", b"three\n", b"four\nfive"]


def test_a_line_that_was_begun_is_ended_in_its_file(tmp_path, open_file):
    file = open_file(max_bytes=10, backups=9)
    for chunk in (b"12345678", b"9abc", b"d\r", b"\nnext\n", b"bar\rbar\r"):
        file.write(chunk)
    assert parts(tmp_path) == [b"123456789abcd\r\n", b"next\nbar\r", b"bar\r"]


def test_a_line_that_no_file_can_hold_is_broken(tmp_path, open_file):
    file = open_file(max_bytes=10, backups=9)
    file.write(b"x" * 45 + b"\nend\n")
    assert parts(tmp_path) == [b"x" * 20, b"x" * 20, b"x" * 5 + b"\nend\n"]
    file.write(b"1234567890")
    file.write(b"y" * 15)
    file.write(b"z")
    assert parts(tmp_path)[3:] == [b"1234567890" + b"y" * 10, b"y" * 5 + b"z"]


LINE = st.binary(max_size=39).map(lambda data: data.translate(None, b"\n\r") + b"\n")


@given(
    lines=st.lists(LINE, max_size=60),
    cuts=st.lists(st.integers(min_value=0, max_value=2400), max_size=20),
    limit=st.integers(min_value=40, max_value=200),
)
def test_whatever_the_chunks_no_byte_is_lost_and_no_line_torn(tmp_path_factory, lines, cuts, limit):
    folder = tmp_path_factory.mktemp("logs")
    data = b"".join(lines)
    file = LogFile(str(folder / "stdout.log"), log=SimpleNamespace(notice=pytest.fail), max_bytes=limit, backups=999)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for start, end in itertools.pairwise(bounds):
        file.write(data[start:end])
    file.close()
    found = parts(folder)
    assert b"".join(found) == data
    assert all(part.endswith(b"\n") for part in found if part)
    assert all(len(part) < limit + 40 for part in found)


@given(chunks=st.lists(st.binary(max_size=60), max_size=10), limit=st.integers(min_value=5, max_value=50))
def test_whatever_the_bytes_none_is_lost(tmp_path_factory, chunks, limit):
    folder = tmp_path_factory.mktemp("logs")
    file = LogFile(str(folder / "stdout.log"), log=SimpleNamespace(notice=pytest.fail), max_bytes=limit, backups=999)
    for chunk in chunks:
        file.write(chunk)
    file.close()
    found = parts(folder)
    assert b"".join(found) == b"".join(chunks)
    assert all(len(part) <= 2 * limit for part in found)


def test_the_oldest_is_dropped(tmp_path, open_file):
    file = open_file(max_bytes=4, backups=2)
    for number in range(6):
        file.write(b"%d..\n" % number)
    assert parts(tmp_path) == [b"3..\n", b"4..\n", b"5..\n"]


def test_without_backups_one_file_is_kept(tmp_path, open_file):
    open_file(max_bytes=4, backups=0).write(b"1..\n2..\n3..\n")
    assert parts(tmp_path) == [b"3..\n"]


@pytest.mark.parametrize("obstacle", ["stdout.log.1", "stdout.log.2"])
def test_a_rename_that_fails_is_one_notice_and_the_log_goes_on(tmp_path, open_file, notices, obstacle):
    file = open_file(max_bytes=8, backups=int(obstacle[-1]))
    file.write(b"1......\n")
    if obstacle == "stdout.log.2":
        file.write(b"2......\n")
    (tmp_path / obstacle).mkdir()
    (tmp_path / obstacle / "x").touch()
    file.write(b"3......\n4......\n5......\n")
    assert (tmp_path / "stdout.log").read_bytes().endswith(b"3......\n4......\n5......\n")
    (notice,) = notices
    assert notice.startswith(f"can't rotate {str(tmp_path / 'stdout.log')!r}: Is a directory; its log exceeds")
    (tmp_path / obstacle / "x").unlink()
    (tmp_path / obstacle).rmdir()
    file.write(b"6......\n7......\n")
    assert (tmp_path / "stdout.log").read_bytes() == b"7......\n"  # tried again, and it worked
    assert len(notices) == 1


def test_a_fresh_file_that_can_not_be_opened_leaves_all_as_it_was(tmp_path, open_file, notices, monkeypatch):
    file = open_file(max_bytes=8, backups=2)
    file.write(b"1......\n")

    def refuse(path):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("elastic_core.processes.output.log_file.open_log", refuse)
    file.write(b"2......\n")
    assert parts(tmp_path) == [b"1......\n2......\n"]
    assert "Too many open files" in notices[0]


def test_a_full_disk_is_told_once(notices):
    file = LogFile("/dev/full", log=notices, max_bytes=1024, backups=1)
    for _ in range(3):
        file.write(b"x\n")
    file.close()
    assert notices == ["can't write '/dev/full': No space left on device; the worker continues, its log has a gap"]
    assert os.path.exists("/dev/full")
