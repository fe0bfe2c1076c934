"""The guard's decisions, in a process table of our own making: whom it hunts, whom it spares, when it is done."""

import copy
import errno
from contextlib import suppress

import pytest

from elastic_core.agent.guard import guard
from elastic_core.processes import procfs

MARK = b"ELASTIC_INCARNATION=abc"
OWN = 2


def look_and_kill(workers=None, **options):
    """Do one look, as a hunt does."""
    looks = []

    def one_look(look):
        looks.append(look())
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(procfs, "is_usable", lambda: True)
        patch.setattr(procfs, "unblocked", one_look)
        guard.hunt("abc", workers or {}, **options)
    return looks[0]


class Table:
    """A process table; `looks` are done to it one by one, each before the processes are listed."""

    def __init__(self):
        self.processes, self.environments, self.command_lines, self.killed, self.looks = {}, {}, {}, [], []

    def add(self, pid, *, parent=1, group=None, session=None, environ=b"", command=b"python\0", start=100):
        fields = [b"S", *(b"%d" % n for n in (parent, group or pid, session or group or pid)), *[b"0"] * 16]
        fields[17], fields[19] = b"1", b"%d" % start
        self.processes[pid] = procfs.ProcessStat(pid, fields)
        self.environments[pid], self.command_lines[pid] = environ, command

    def list_pids(self):
        if self.looks:
            self.looks.pop(0)()
        return list(self.processes)

    def kill(self, pid, signum):
        assert signum == 9
        self.killed.append(pid)
        del self.processes[pid]
        for child in [stat for stat in self.processes.values() if stat.parent == pid]:
            orphan = copy.copy(child)
            orphan.parent = 1
            self.processes[child.pid] = orphan


@pytest.fixture
def table(monkeypatch):
    table = Table()
    table.add(1)
    table.add(OWN)
    monkeypatch.setattr(procfs, "list_pids", table.list_pids)
    monkeypatch.setattr(procfs, "read_stat", lambda pid: table.processes.get(pid))
    monkeypatch.setattr(procfs, "has_environment_entry", lambda pid, entry: entry in table.environments[pid])
    monkeypatch.setattr(procfs, "read_file", lambda path: table.command_lines.get(int(path.split("/")[2])))
    monkeypatch.setattr(guard.os, "kill", table.kill)
    monkeypatch.setattr(guard.os, "getpid", lambda: OWN)
    return table


def look(table, workers=None):
    found = look_and_kill(workers)
    assert found == table.killed
    return table.killed


def test_marked_processes_and_all_that_they_started_are_killed(table):
    table.add(10, environ=MARK)
    table.add(11, parent=10)
    table.add(12, parent=11)
    table.add(13)
    assert sorted(look(table)) == [10, 11, 12]


def test_who_stayed_in_a_workers_group_or_session_is_killed(table):
    table.add(10, environ=MARK)
    table.add(11, group=10)
    table.add(12, group=12, session=10)
    table.add(13, group=12, session=10)
    table.add(14, group=9, session=9)
    assert sorted(look(table)) == [10, 11, 12, 13]


def test_a_marked_process_that_leads_nothing_gives_away_no_group(table):
    table.add(8)
    table.add(10, group=8, session=8, environ=MARK)
    table.add(11, group=8, session=8)
    assert look(table) == [10]


def test_a_named_worker_is_killed_without_a_mark_unless_its_number_was_used_again(table):
    table.add(10, start=100)
    table.add(11, start=100)
    assert look(table, {10: 100, 11: 99}) == [10]


def test_what_a_named_worker_left_in_its_session_is_killed_though_it_ended_first(table):
    table.add(11, group=10)
    assert look(table, {10: 100}) == [11]


def test_the_session_of_one_with_a_dead_workers_number_is_left_alone(table):
    table.add(10, start=100)
    table.add(11, group=10)
    assert look(table, {10: 99}) == []


def test_the_guard_of_an_inner_agent_is_spared(table):
    table.add(10, environ=MARK)
    table.add(11, parent=10, command=b"python\0-c\0code\0elastic-guard\0")
    table.add(12, parent=10, command=b"elastic-guard\0and more\0")
    assert look(table) == [10, 12]


def test_a_fence_spares_the_agent_and_its_servers_but_not_what_they_hide(table):
    table.add(5, environ=MARK)  # an agent that is marked itself, by mistake
    table.add(10, parent=5, environ=MARK)
    table.add(11, parent=10)
    table.add(12, parent=5, environ=MARK + b"\0" + guard.SIDECAR_ENTRY)
    table.add(13, parent=12)
    table.add(14, parent=5)
    look_and_kill({10: 100}, fenced_agent=5)
    assert table.killed == [10, 11]
    table.killed.clear()
    look_and_kill()
    assert sorted(table.killed) == [5, 12, 13, 14], "not so when the agent has died"


def test_who_is_forked_while_we_look_is_found_in_the_same_look(table):
    table.looks = [lambda: None, lambda: table.add(20, environ=MARK), lambda: table.add(21, environ=MARK)]
    assert look(table) == [20, 21]


def test_who_is_started_after_the_word_that_ends_the_hunt_is_spared(table):
    told = []

    def tell():
        told.append("fence")
        table.add(20, environ=MARK)

    table.add(10, environ=MARK)
    table.looks = [lambda: None, tell]
    look_and_kill(fenced_agent=5, still=lambda: not told)
    assert table.killed == [10]


def test_processes_of_others_that_never_stop_coming_do_not_keep_us(table):
    table.looks = [lambda pid=pid: table.add(pid) for pid in range(100, 1000)]
    assert look(table) == []
    assert len(table.looks) > 800


def test_a_number_used_again_before_the_kill_is_left_alone(table, monkeypatch):
    table.add(10, environ=MARK)
    first = table.processes[10]
    table.add(10, start=101)
    reads = iter([table.processes[1], first])
    later = {10: table.processes[10], 1: table.processes[1], OWN: table.processes[OWN]}
    table.environments[10] = MARK
    monkeypatch.setattr(procfs, "read_stat", lambda pid: next(reads, None) or later[pid])
    look_and_kill()
    assert table.killed == []


def test_a_look_that_can_not_see_ourselves_is_none(table):
    del table.processes[OWN]
    assert look_and_kill() is None


def test_without_pidfds_the_hunt_pauses_between_two_looks(monkeypatch):
    pauses = []

    class Poll:
        def poll(self, timeout_ms):
            pauses.append(timeout_ms)

    def refused(pid):
        raise OSError(errno.ENOSYS, "no pidfds")

    monkeypatch.setattr(guard.os, "pidfd_open", refused)
    monkeypatch.setattr(guard.select, "poll", Poll)
    guard._wait_for_ends([7, 8], 0.25)
    assert pauses == [250]


def test_a_hunt_does_not_pause_for_what_has_ended(monkeypatch):
    def gone(pid):
        raise ProcessLookupError

    monkeypatch.setattr(guard.os, "pidfd_open", gone)
    monkeypatch.setattr(guard.select, "poll", lambda: pytest.fail("it pauses"))
    guard._wait_for_ends([7], 0.25)


@pytest.fixture
def clock(monkeypatch):
    """Time that only waiting moves."""
    now = [0.0]

    def wait(pids, timeout_s):
        now[0] += timeout_s

    monkeypatch.setattr(guard, "_wait_for_ends", wait)
    monkeypatch.setattr(guard.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("answers", "looks"),
    [
        ([[]], 5),  # a tenth of a second, for a worker that the agent was just starting
        ([[7], [], [7], [], []], 5),
        ([[7]] * 5 + [[]], 7),
        ([None] * 5 + [[]], 7),
    ],
)
def test_the_hunt_ends_with_two_clear_looks_in_a_row(clock, monkeypatch, answers, looks):
    count = [0]

    def answer(*_):
        count[0] += 1
        return answers[min(count[0], len(answers)) - 1]

    monkeypatch.setattr(guard, "look_and_kill", answer)
    guard.hunt("abc", {})
    assert count[0] == looks


def test_the_hunt_for_the_unkillable_ends_after_half_a_minute(clock, monkeypatch):
    count = [0]

    def stuck(*_):
        count[0] += 1
        return [7]

    monkeypatch.setattr(guard, "look_and_kill", stuck)
    guard.hunt("abc", {})
    assert 30 < clock[0] < 31
    assert count[0] < 80, "it looks ever less often"


def test_a_hunt_that_is_wanted_no_more_ends_after_a_look(clock, monkeypatch):
    monkeypatch.setattr(guard, "look_and_kill", lambda *_: [7])
    wanted = iter([True, True, False])
    assert guard.hunt("abc", {}, fenced_agent=5, still=lambda: next(wanted)) is False
    assert list(wanted) == []


def test_only_a_hunt_that_found_the_end_says_so(clock, monkeypatch):
    monkeypatch.setattr(guard, "look_and_kill", lambda *_: [])
    assert guard.hunt("abc", {}) is True
    monkeypatch.setattr(guard, "look_and_kill", lambda *_: [7])
    assert guard.hunt("abc", {}) is False


def test_a_fence_sets_how_long_the_watch_sleeps(clock, table):
    watch = guard.AgentWatch()
    clock[0] = 100.0
    for line, sleeps_ms in (
        ("workers ", None),
        ("fence 90.0", None),
        ("workers 10", 0.0),  # has ended already: what it left must go
        ("fence 102.5", 2500.0),
        ("fence 1e12", 86_400_000.0),
        ("fence inf", None),
    ):
        watch.take(line)
        assert watch._until_fence_ms() == sleeps_ms, line


def test_the_last_act_is_the_one_told_last(table):
    watch = guard.AgentWatch()
    for line, told in (("last abc", b"abc"), ("last def", b"def"), ("last -", b"")):
        watch.take(line)
        assert watch.last_act == told


def test_the_watch_knows_what_it_was_told(table):
    table.add(10, start=100)
    table.add(11, start=110)
    watch = guard.AgentWatch()
    for line in ("incarnation abc", "workers 10 11 12", "of a later version", ""):
        watch.take(line)
    assert (watch.incarnation, watch.workers, watch.farewell) == ("abc", {10: 100, 11: 110}, False)
    watch.take("workers ")
    watch.take("farewell")
    assert (watch.workers, watch.farewell) == ({}, True)
