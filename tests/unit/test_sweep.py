"""What is read from /proc, and how a mark in an environment is recognised."""

import pytest

from elastic_core.multiprocessing import procfs, sweep

ENTRY = b"ELASTIC_INCARNATION=abc"


def stat_of(name, state=b"S", threads=1, pid=77, parent=5):
    return b"%d (%b) %b %d 70 60 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 %d 0 9876 1 2 3" % (
        pid,
        name,
        state,
        parent,
        threads,
    )


@pytest.fixture
def proc(monkeypatch):
    """A /proc of our own making: path to content; what is missing is gone."""
    files = {}
    monkeypatch.setattr(procfs, "read_file", files.get)
    return files


@pytest.mark.parametrize("name", [b"python", b"a) R 1 (b", b"", b"two words"])
def test_a_stat_line_is_read_whatever_the_process_calls_itself(proc, name):
    proc["/proc/77/stat"] = stat_of(name)
    stat = procfs.read_stat(77)
    assert (stat.pid, stat.state, stat.parent, stat.group, stat.session) == (77, "S", 5, 70, 60)
    assert (stat.thread_count, stat.start_ticks) == (1, 9876)


@pytest.mark.parametrize("content", [None, b"", b"77 (python) S 5"])
def test_a_process_that_vanishes_has_no_stat(proc, content):
    proc["/proc/77/stat"] = content
    assert procfs.read_stat(77) is None
    assert not sweep.is_alive(77)


@pytest.mark.parametrize(
    ("state", "threads", "alive"),
    [(b"R", 1, True), (b"D", 1, True), (b"T", 1, True), (b"Z", 1, False), (b"Z", 3, True), (b"X", 1, False)],
)
def test_a_zombie_lives_only_in_its_other_threads(proc, state, threads, alive):
    proc["/proc/77/stat"] = stat_of(b"python", state, threads)
    assert sweep.is_alive(77) is alive


@pytest.mark.parametrize(
    ("environ", "marked"),
    [
        (ENTRY + b"\0", True),
        (b"A=1\0" + ENTRY + b"\0B=2\0", True),
        (b"A=1\0" + ENTRY, True),
        (b"X" + ENTRY + b"\0", False),
        (ENTRY + b"d\0", False),
        (b"A=" + ENTRY + b"\0", False),
        (b"A=" + ENTRY + b"\0" + ENTRY + b"\0", True),
        (b"X" * 3_000_000 + b"\0" + ENTRY + b"\0", True),
        (b"", False),
        (None, False),
    ],
)
def test_only_a_whole_entry_is_a_mark(proc, environ, marked):
    proc["/proc/77/environ"] = environ
    proc["/proc/77/stat"] = stat_of(b"python")
    assert procfs.has_environment_entry(77, ENTRY) is marked


@pytest.mark.parametrize("environ", [b"", None])  # older and newer kernels
def test_the_mark_of_a_process_without_its_main_thread_is_read_from_another(proc, monkeypatch, environ):
    proc["/proc/77/environ"] = environ
    proc["/proc/77/stat"] = stat_of(b"python", b"Z", 3)
    proc["/proc/77/task/79/environ"] = ENTRY + b"\0"
    monkeypatch.setattr(procfs, "thread_ids", lambda pid: [77, 79])
    assert procfs.has_environment_entry(77, ENTRY)


def test_a_process_with_the_number_of_a_survivor_is_not_killed(proc, monkeypatch):
    monkeypatch.setattr(sweep.os, "pidfd_open", lambda pid: -1)
    killed = []
    monkeypatch.setattr(sweep.os, "kill", lambda pid, signum: killed.append((pid, signum)))
    proc["/proc/77/stat"] = stat_of(b"python")
    survivor = sweep.Survivor.of(procfs.read_stat(77))
    proc["/proc/77/stat"] = stat_of(b"python").replace(b"9876", b"9999")
    assert sweep.kill_pids([survivor], 9) == 0
    proc["/proc/77/stat"] = stat_of(b"python")
    assert sweep.kill_pids([survivor], 9) == 1
    assert killed == [(77, 9)]


def test_without_children_files_the_children_come_from_a_map(proc, monkeypatch):
    monkeypatch.setattr(procfs, "has_children_files", lambda: False)
    monkeypatch.setattr(procfs, "list_pids", lambda: [5, 77, 78])
    proc["/proc/77/stat"] = stat_of(b"child")
    proc["/proc/78/stat"] = stat_of(b"grandchild", pid=78, parent=77)
    children = procfs.children_map()
    assert (children(5), children(77), children(78)) == ([77], [78], [])
    assert sweep.survivors("abc", root_pid=5) == (77, 78)
    assert sweep.survivors("abc", root_pid=5, exclude=[77]) == ()
