"""What is read from /proc, and how a mark in an environment is recognised."""

import threading
import time

import pytest

from elastic_core.processes import procfs, sweep
from elastic_core.processes.lineage import Lineage
from patience import kept
from support import wait_for

ENTRY = b"ELASTIC_INCARNATION=abc"


def survivors(*, root_pid, exclude=(), **options):
    found = sweep.survivors(Lineage("abc", **options), root_pid=root_pid, exclude=exclude)
    return tuple(stat.pid for stat in found)


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
    start_ticks = procfs.read_stat(77).start_ticks
    proc["/proc/77/stat"] = stat_of(b"python").replace(b"9876", b"9999")
    assert not sweep.kill(77, start_ticks, 9)
    proc["/proc/77/stat"] = stat_of(b"python")
    assert sweep.kill(77, start_ticks, 9)
    assert killed == [(77, 9)]


def test_without_children_files_the_children_come_from_a_map(proc, monkeypatch):
    monkeypatch.setattr(procfs, "has_children_files", lambda: False)
    monkeypatch.setattr(procfs, "list_pids", lambda: [5, 77, 78])
    proc["/proc/77/stat"] = stat_of(b"child")
    proc["/proc/78/stat"] = stat_of(b"grandchild", pid=78, parent=77)
    children = procfs.children_map()
    assert (children(5), children(77), children(78)) == ([77], [78], [])
    assert survivors(root_pid=5, complete=True) == (77, 78)
    assert survivors(root_pid=5, complete=True, exclude=[77]) == ()


# --- reads that do not return


class Locks:
    """Processes whose memory is locked: reading there does not return."""

    def __init__(self, proc, monkeypatch):
        self.held, self.reads = {}, []
        monkeypatch.setattr(procfs, "read_file", lambda path: self._read(path) or proc.get(path))

    def _read(self, path):
        self.reads.append(path)
        if path in self.held:
            self.held[path].wait()

    def hold(self, path):
        self.held[path] = threading.Event()

    def release(self, path):
        self.held.pop(path).set()


@pytest.fixture
def locks(proc, monkeypatch):
    locks = Locks(proc, monkeypatch)
    yield locks
    for path in list(locks.held):
        locks.release(path)
    wait_for(lambda: not procfs._blocked, what="the reads that were given up to return")


def marked(pids):
    return procfs.unblocked(lambda: [pid for pid in pids if procfs.has_environment_entry(pid, ENTRY)])


def test_a_process_whose_memory_is_locked_has_no_environment_until_it_is_unlocked(proc, locks):
    for pid in (1, 2, 3):
        proc[f"/proc/{pid}/environ"] = ENTRY
    locks.hold("/proc/2/environ")
    assert marked([1, 2, 3]) == [1, 3]
    assert marked([1, 2, 3]) == [1, 3]
    assert locks.reads.count("/proc/2/environ") == 1, "one thread is left behind for each process"
    assert not procfs.unblocked(lambda: procfs.is_guard(2))
    locks.release("/proc/2/environ")
    wait_for(lambda: marked([1, 2, 3]) == [1, 2, 3], what="the environment of an unlocked process")


def test_many_locked_processes_cost_little_more_than_one(proc, locks, monkeypatch):
    monkeypatch.setattr(procfs, "_PATIENCE_S", 0.1)
    for pid in range(40):
        proc[f"/proc/{pid}/environ"] = ENTRY
        if pid % 4:
            locks.hold(f"/proc/{pid}/environ")
    began_s = time.monotonic()
    assert set(marked(range(40))) <= set(range(0, 40, 4))
    kept(time.monotonic() - began_s, 2.0)  # a tenth of a second for each would be 3 to 6 s
    assert len(procfs._blocked) >= 30


def test_a_look_that_was_left_behind_does_nothing_more(proc, locks):
    done = []

    def look():
        procfs.has_environment_entry(1, ENTRY)
        done.append(threading.get_ident())

    locks.hold("/proc/1/environ")
    procfs.unblocked(look)
    locks.release("/proc/1/environ")
    wait_for(lambda: not procfs._blocked, what="the end of the read")
    assert len(done) == 1


def test_a_look_that_takes_long_is_not_given_up_while_its_reads_return(monkeypatch, locks):
    monkeypatch.setattr(procfs, "_PATIENCE_S", 0.001)
    monkeypatch.setattr(procfs, "_LEAST_PATIENCE_S", 0.001)
    threads = set()

    def look():
        threads.add(threading.get_ident())
        end_s = time.monotonic() + 0.05
        while time.monotonic() < end_s:
            pass
        return "done"

    assert procfs.unblocked(look) == "done"
    assert len(threads) == 1


def test_what_a_look_raises_is_raised_to_who_asked():
    with pytest.raises(KeyError):
        procfs.unblocked(lambda: {}["x"])


def test_where_no_thread_can_be_had_the_look_is_done_all_the_same(monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(procfs._thread, "start_new_thread", refuse)
    assert procfs.unblocked(threading.get_ident) == threading.get_ident()


# --- who is a worker's


class Table:
    """A process table; who is in it is seen by sweeps."""

    def __init__(self, proc, monkeypatch):
        self.proc, self.pids, self.sessions = proc, [], {}
        monkeypatch.setattr(procfs, "list_pids", lambda: sorted(self.pids))
        monkeypatch.setattr(procfs, "has_children_files", lambda: False)
        monkeypatch.setattr(sweep.os, "getpid", lambda: 5)
        monkeypatch.setattr(sweep.os, "getsid", lambda pid: self.sessions.get(pid, -1))

    def add(self, pid, *, parent=1, group=None, session=None, environ=b"", limit=-1, command=b"x\0", start=9876):
        ids = b"%d %d" % (group or pid, session or group or pid)
        line = stat_of(b"x", pid=pid, parent=parent).replace(b"70 60", ids)
        self.proc[f"/proc/{pid}/stat"] = line.replace(b"9876", b"%d" % start)
        self.proc[f"/proc/{pid}/environ"] = environ
        self.proc[f"/proc/{pid}/limits"] = b"Max file locks            %d  unlimited  locks\n" % limit
        self.proc[f"/proc/{pid}/cmdline"] = command
        self.pids.append(pid)
        self.sessions[pid] = session or group or pid

    def remove(self, pid):
        self.pids.remove(pid)
        del self.sessions[pid], self.proc[f"/proc/{pid}/stat"]


@pytest.fixture
def table(proc, monkeypatch):
    table = Table(proc, monkeypatch)
    table.add(5)
    return table


LIMIT = procfs.limit_mark("abc")


def test_a_limit_mark_is_this_incarnations_and_beyond_what_could_be_reached(table):
    table.add(10, limit=LIMIT)
    table.add(11, limit=procfs.limit_mark("abd"))
    assert [procfs.has_limit(pid, LIMIT) for pid in (10, 11, 12)] == [True, False, False]
    assert 1 << 62 <= LIMIT < (1 << 63) - 1


def test_beside_strangers_only_what_is_a_workers_counts_among_our_descendants(table):
    table.add(10, parent=5)  # was there before, or was attached
    table.add(11, parent=10)
    table.add(20, parent=5, environ=ENTRY)
    table.add(21, parent=20)
    table.add(22, parent=5, session=20)
    table.add(23, parent=5, group=22, session=22)
    table.add(30, parent=5, limit=LIMIT)
    table.add(31, parent=5, session=30)
    table.add(40, parent=5, session=7)
    assert tuple(sorted(survivors(root_pid=5, complete=True))) == (10, 11, 20, 21, 22, 23, 30, 31, 40)
    assert set(survivors(root_pid=5)) == {20, 21, 22, 23, 30, 31}
    assert set(survivors(root_pid=5, led=[7])) == {20, 21, 22, 23, 30, 31, 40}


def test_the_guard_of_an_agent_that_a_worker_is_is_nobodys_prey(table):
    table.add(10, limit=LIMIT)
    table.add(11, parent=10, limit=LIMIT, command=b"python\0elastic-guard\0")
    table.add(12, parent=11, limit=LIMIT)
    assert survivors(root_pid=None) == (10,)


def sweeper(**changes):
    options = {"subreaper": False, "strangers": False, "spared": tuple} | changes
    return sweep.Sweeper("abc", **options)


@pytest.fixture
def usable(monkeypatch):
    monkeypatch.setattr(procfs, "is_usable", lambda: True)


def found_by(made):
    return {found.pid for found in made.look(workers=(), abandoned=())}


def test_a_session_counts_while_it_has_existed_without_a_gap(table, usable):
    made = sweeper()
    table.add(71, session=70)
    made.ended(70)
    made.ended(80)  # has left nobody
    table.add(72, session=70)
    table.add(81, session=80)
    assert found_by(made) == {71, 72}
    table.remove(71)
    assert found_by(made) == {72}, "it was seen together with the first"
    table.remove(72)
    table.add(73, session=70)
    assert found_by(made) == set(), "the session of another that was given the number"


def test_a_number_that_comes_again_with_another_start_holds_no_session(table, usable):
    made = sweeper()
    table.add(71, session=70)
    made.ended(70)
    table.remove(71)
    table.add(71, session=70, start=9999)
    assert found_by(made) == set()


def test_what_is_to_stay_is_spared_with_all_that_it_starts(table, usable):
    made = sweeper()
    table.add(10, environ=ENTRY)
    table.add(11, parent=10, environ=ENTRY + b"\0ELASTIC_KEEP=1\0")
    table.add(12, parent=11, limit=LIMIT)
    table.add(13, environ=ENTRY + b"\0ELASTIC_KEEP=0\0")
    table.proc["/proc/11/comm"] = b"up\x1b[2J\nload\xff\n"
    assert found_by(made) == {10, 13}
    assert made.left_running() == ("11 up?[2J?load\ufffd", "12 ?")
    table.remove(11)
    assert made.left_running() == ("12 ?",)


@pytest.mark.parametrize("shown", ["/proc/self of nobody", "4711"])
def test_without_a_proc_of_ours_nobody_is_found(table, monkeypatch, shown):
    def readlink(path):
        if shown.isdigit():
            return shown
        raise FileNotFoundError(path)

    monkeypatch.setattr(procfs.os, "readlink", readlink)
    table.add(10, environ=ENTRY)
    made = sweeper()
    assert made.blind
    assert found_by(made) == set()
