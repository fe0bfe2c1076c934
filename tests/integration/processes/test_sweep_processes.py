"""Finding, killing and reaping what workers left, with real processes."""

import os
import secrets
import signal
import subprocess
import sys

import pytest

from elastic_core.processes import procfs, sweep
from elastic_core.processes.lineage import Lineage
from patience import patience
from support import processes_with, wait_for

FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(60)
    os._exit(0)
os.wait()
os.write(1, b"%d\\n" % os.getpid())
time.sleep(60)
"""


def survivors(incarnation, exclude=()):
    return {stat.pid for stat in sweep.survivors(Lineage(incarnation), root_pid=None, exclude=exclude)}


def descendants(root_pid=None, exclude=()):
    lineage = Lineage("", complete=True)
    return {stat.pid for stat in sweep.survivors(lineage, root_pid=root_pid or os.getpid(), exclude=exclude)}


def kill(found):
    return sum(sweep.kill(stat.pid, stat.start_ticks, signal.SIGKILL) for stat in found)


@pytest.fixture
def incarnation():
    mark = secrets.token_hex(8)
    yield mark
    for pid in processes_with(f"ELASTIC_INCARNATION={mark}"):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def family(incarnation):
    """A worker and its detached grandchild, both running; returns (process, their pids)."""
    process = subprocess.Popen(
        [sys.executable, "-c", FAMILY],
        env={**os.environ, "ELASTIC_INCARNATION": incarnation},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    yield process, {int(process.stdout.readline()), int(process.stdout.readline())}
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_mark_finds_who_detached_itself(family, incarnation):
    process, pids = family
    found = sweep.survivors(Lineage(incarnation), root_pid=None)
    assert {stat.pid for stat in found} == pids
    assert {stat.group for stat in found} == {os.getpgid(pid) for pid in pids}
    assert survivors(incarnation, exclude=[process.pid]) == pids - {process.pid}
    assert survivors(incarnation[:-1]) == set()


def test_the_walk_finds_descendants_but_not_those_of_the_excluded(family):
    process, _ = family
    assert process.pid in descendants()
    assert process.pid not in descendants(exclude=[process.pid])
    assert descendants(root_pid=process.pid) == set()


def test_the_walk_needs_no_children_files(family, monkeypatch):
    process, _ = family
    monkeypatch.setattr(procfs, "has_children_files", lambda: False)
    assert process.pid in descendants()


def test_a_worker_without_environment_is_found_by_its_group(incarnation):
    code = "import os, time; print(flush=True); os.fork(); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], env={}, stdout=subprocess.PIPE, start_new_session=True)
    try:
        process.stdout.readline()
        assert survivors(incarnation) == set()
        lineage = Lineage(incarnation, led=[process.pid])
        found = wait_for(lambda: len(f := sweep.survivors(lineage, root_pid=None)) == 2 and f)
        assert process.pid in {stat.pid for stat in found}
        assert kill(found) == 2
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_that_lives_on_without_its_main_thread_is_found(incarnation):
    env = {**os.environ, "ELASTIC_INCARNATION": incarnation}
    process = subprocess.Popen([sys.executable, "-c", HEADLESS], env=env)
    try:
        wait_for(lambda: procfs.read_stat(process.pid).state == "Z")
        assert sweep.is_alive(process.pid)
        assert survivors(incarnation) == {process.pid}
        assert process.pid in descendants()
    finally:
        process.kill()
        process.wait()


def test_killed_and_ended_processes_are_no_survivors(family, incarnation):
    process, pids = family
    found = sweep.survivors(Lineage(incarnation), root_pid=None)
    assert kill(found) == len(pids)
    wait_for(lambda: not any(map(sweep.is_alive, pids)), within_s=5)
    assert procfs.read_stat(process.pid).state == "Z"
    assert survivors(incarnation) == set()
    assert pids.isdisjoint(descendants())
    assert kill(found) == 0


def test_a_later_process_with_a_survivors_number_is_left_alone(family, incarnation):
    process, _ = family
    found = sweep.survivors(Lineage(incarnation), root_pid=None)
    for stat in found:
        stat.start_ticks -= 1  # what we found was an earlier one
    assert kill(found) == 0
    assert sweep.is_alive(process.pid)


def test_a_look_needs_a_thread_only_if_something_may_be_left(family, incarnation, monkeypatch):
    process, _ = family
    own = set(procfs.children_map()(os.getpid())) - {process.pid}  # a test process may have other children
    swept = sweep.Sweeper(incarnation, subreaper=True, strangers=False, spared=lambda: own)
    assert [found.pid for found in swept.look(workers=(), abandoned=())] == [process.pid]
    monkeypatch.setattr(procfs, "unblocked", lambda look: pytest.fail("a thread reads environments"))
    assert swept.look(workers=(), abandoned=[process.pid]) == ()
    assert swept.mixed_groups({1 << 40}) == {}  # a group without members


def test_a_signal_that_we_may_not_send_is_passed_over(family, incarnation, monkeypatch):
    def refused(pidfd, signum):
        raise PermissionError

    monkeypatch.setattr(signal, "pidfd_send_signal", refused)
    assert kill(sweep.survivors(Lineage(incarnation), root_pid=None)) == 0


AGENT = """
import os, signal, subprocess, sys, time
from elastic_core.processes.sweep import become_subreaper
from elastic_core.processes import procfs, sweep
from elastic_core.processes.lineage import Lineage

own = os.getpid()
everything = Lineage("", complete=True)

def reap(*spared):
    children = procfs.children_map()(own)
    sweep.Sweeper("x", subreaper=True, strangers=True, spared=lambda: spared).reap_adopted()
    return sorted(set(children).difference(procfs.children_map()(own)))

known = subprocess.Popen(["/bin/sh", "-c", "exit 7"])
assert become_subreaper()
# The worker ends at once, and leaves two: one detached as far as can be, one that ends soon.
subprocess.run(["/bin/sh", "-c", "env -i setsid sleep 60 & (sleep 0.2; exit 3) &"], check=True)
end_s = time.monotonic() + 10
reaped = []
while len(reaped) < 1 and time.monotonic() < end_s:
    reaped += reap(known.pid)
orphan, = sweep.survivors(everything, root_pid=own)
assert reaped and orphan.pid not in reaped
assert known.wait() == 7, "its exit was stolen"
assert reap() == []
assert sweep.kill(orphan.pid, orphan.start_ticks, signal.SIGKILL)
while reap() != [orphan.pid]:
    assert time.monotonic() < end_s
assert sweep.survivors(everything, root_pid=own) == ()
print("done")
"""


def test_a_subreaper_inherits_finds_and_reaps_orphans(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", AGENT], cwd=tmp_path, capture_output=True, text=True, timeout=patience(30), check=False
    )
    assert result.stdout == "done\n", result.stderr


HOOKS = """
import os, subprocess, sys, threading
from elastic_core.processes.sweep import become_subreaper
from elastic_core.processes import procfs, sweep

assert become_subreaper()
ours, go_on = [], threading.Event()

def hook():  # waits for what it has started when it has the time
    ours.append(subprocess.Popen(["/bin/sh", "-c", "exit 7"]))
    orphan = "(while kill -0 $$; do sleep 0.02; done; exit 3) >/dev/null 2>&1 & echo $!"  # ends after its parent
    left = subprocess.run(["/bin/sh", "-c", orphan], stdout=subprocess.PIPE, check=True).stdout
    ours.append(int(left))
    go_on.wait()
    print(ours[0].wait(), flush=True)

thread = threading.Thread(target=hook)
thread.start()
with_strangers, without = (
    sweep.Sweeper("x", subreaper=True, strangers=strangers, spared=tuple) for strangers in (True, False)
)
while len(ours) < 2 or procfs.read_stat(ours[1]) is not None or procfs.read_stat(ours[0].pid).state != "Z":
    with_strangers.reap_adopted()
without.reap_adopted()
assert procfs.read_stat(ours[0].pid).state == "Z"
go_on.set()
thread.join()
"""


def test_a_child_that_a_hook_waits_for_is_left_to_it(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", HOOKS], cwd=tmp_path, capture_output=True, text=True, timeout=patience(30), check=False
    )
    assert result.stdout == "7\n", result.stderr
