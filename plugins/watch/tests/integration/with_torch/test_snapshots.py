"""Snapshots of workers with gloo, wherever their main thread is blocked, and what can go wrong around them."""

import errno
import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from elastic_watch.beat_layout import FILE_VARIABLE
from recorder_kit import PREAMBLE, WITHOUT_GROUP, Workers, group
from support import wait_for
from truth.forked import start_server


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory):
    """The path of the socket of an interpreter that has imported torch, and forks workers."""
    yield from start_server(tmp_path_factory.mktemp("fork"))


@pytest.fixture
def interpreters(tmp_path):
    """Start workers that are interpreters, which import torch themselves."""
    made = []

    def start(text, **arguments):
        made.append(Workers(tmp_path, text, **arguments))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def workers(interpreters, fork_server):
    """Start workers that have torch already."""
    return partial(interpreters, forks=fork_server)


@pytest.fixture
def patient(monkeypatch):
    """The collector waits for a response as long as a busy machine needs."""
    for name in ("ANSWER_S", "FILE_S"):
        monkeypatch.setattr(f"elastic_watch.recorder.collector.{name}", 60.0)


def settled(taken):
    """Whether each rank has completed what it has entered: torch notes that a moment after the call returns."""
    return all(own.completed == own.enqueued for snapshot in taken.values() for own in snapshot.groups)


GROUPS = """
dp = dist.new_group([0, 1], group_desc="dp")
dist.new_group([0])
for _ in range(3):
    dist.all_reduce(ones)
dist.all_reduce(ones, group=dp)
if rank:
    hang()
dist.all_reduce(ones.double(), group=dp)
"""


def has_hung(taken):
    numbers = [[(own.enqueued, own.completed) for own in taken[rank].groups] for rank in (0, 1)]
    return numbers == [[(3, 3), (2, 1)], [(3, 3), (1, 1)]]


def test_a_snapshot_has_the_members_numbers_and_signatures_of_each_group(workers):
    node = workers(PREAMBLE + GROUPS)
    taken = node.take(has_hung)
    both = [group(taken[rank], "default_pg") for rank in (0, 1)]
    assert [(own.backend, own.members, own.enqueued, own.completed) for own in both] == [("gloo", (0, 1), 3, 3)] * 2
    ahead, behind = (group(taken[rank], "dp") for rank in (0, 1))
    assert [(own.enqueued, own.completed) for own in (ahead, behind)] == [(2, 1), (1, 1)]
    assert [(each.seq, each.name, each.signature) for each in ahead.last] == [
        (1, "all_reduce", "Float[10] -> Float[10]"),
        (2, "all_reduce", "Double[10] -> Double[10]"),
    ]
    assert {(own.torch[:2], own.recorder, own.error, own.arrivals) for own in taken.values()} == {("2.", True, "", ())}


def test_arrivals_are_on_the_clock_of_the_agent(workers):
    node = workers(PREAMBLE + GROUPS)
    taken = node.take(lambda taken: len(taken[0].arrivals) == 5, arrivals=True)
    for rank, count in ((0, 5), (1, 4)):
        arrivals = taken[rank].arrivals
        assert [(each.group, each.seq) for each in arrivals] == [("0", 1), ("0", 2), ("0", 3), ("1", 1), ("1", 2)][
            :count
        ]
        times = [each.entered_ns for each in arrivals]
        assert times == sorted(times)
        assert 0 < taken[rank].taken_ns - times[-1] < 60e9


HANGS = {
    "recv": "dist.recv(ones, 1)",
    "barrier": "dist.barrier()",
    "new_group": "dist.new_group([0, 1])",
    "store.get": "dist.distributed_c10d._get_default_store().get('never')",
    "sleep": "time.sleep(600)",
    "collective": "dist.broadcast(ones, 1)",
    "lock": "threading.Lock().acquire(); lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "loop": "while True: pass",
}


@pytest.mark.parametrize("place", HANGS)
def test_a_worker_responds_wherever_its_main_thread_is_blocked(workers, place):
    node = workers(f"{PREAMBLE}dist.all_reduce(ones)\nif rank: hang()\nprint('blocks', flush=True)\n{HANGS[place]}\n")
    assert [node.line(0), node.line(1)] == ["blocks", "hangs"]
    waits = place in ("barrier", "collective")
    expected = (2, 1) if waits else (1, 1)
    taken = node.take(lambda taken: (group(taken[0]).enqueued, group(taken[0]).completed) == expected)
    assert group(taken[1]).enqueued == 1


def test_a_stopped_worker_is_missing_and_responds_later(interpreters):
    node = interpreters(f"{PREAMBLE}hang()\n")
    assert [node.line(0), node.line(1)] == ["hangs"] * 2
    node.take()
    os.kill(node.processes[0].pid, signal.SIGSTOP)
    os.waitid(os.P_PID, node.processes[0].pid, os.WSTOPPED | os.WNOWAIT)  # kill returns before its threads are stopped
    wait_for(lambda: list(node.collector.take()) == [1], within_s=60)
    os.kill(node.processes[0].pid, signal.SIGCONT)
    assert node.take()


def test_a_worker_whose_main_thread_holds_the_interpreter_is_missing(workers):
    holds = "import ctypes\nprint('holds', flush=True)\nctypes.PyDLL(None).sleep(600 * (not rank))\nhang()\n"
    node = workers(PREAMBLE + holds)
    assert node.line(1) == node.line(0) == "holds"
    assert node.line(1) == "hangs"
    wait_for(lambda: list(node.collector.take()) == [1], within_s=60)


def test_a_worker_that_has_ended_is_missing_without_a_wait(workers, monkeypatch):
    monkeypatch.setattr("elastic_watch.recorder.collector.ANSWER_S", 3600.0)
    node = workers(f"{PREAMBLE}print('up', flush=True)\nif rank: hang()\nos._exit(0)\n")
    assert node.line(1) == "up"
    node.processes[0].wait(60)
    assert list(node.collector.take()) == [1]


# --- generations and sub-meshes

GENERATIONS = """
for _ in range(5):
    dist.all_reduce(ones)
tp = dist.new_group([0, 1], group_desc="tp")
dist.all_reduce(ones, group=tp)
dist.destroy_process_group(tp)
print("first", flush=True)
sys.stdin.readline()
dist.destroy_process_group()
os.environ["GROUP_FILE"] += "2"
begin()
print("second", flush=True)
sys.stdin.readline()
dist.all_reduce(ones)
hang()
"""


def test_entries_of_destroyed_groups_are_dropped(workers):
    node = workers(PREAMBLE + GENERATIONS)
    assert node.line(0) == node.line(1) == "first"
    for snapshot in node.take(settled).values():
        assert [(own.group, own.enqueued) for own in snapshot.groups] == [("0", 5)]
    node.go_on()
    assert node.line(0) == node.line(1) == "second"
    for snapshot in node.take().values():
        assert [(own.group, own.enqueued, own.last) for own in snapshot.groups] == [("0", 0, ())]
    node.go_on()
    assert node.line(0) == node.line(1) == "hangs"
    for snapshot in node.take(settled).values():
        assert [(own.group, own.enqueued, own.completed) for own in snapshot.groups] == [("0", 1, 1)]


MESH = """
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
dist.all_reduce(ones, group=mesh["tp"].get_group())
dist.all_reduce(ones, group=mesh["dp"].get_group())
if rank == 3:
    hang()
dist.all_reduce(ones, group=mesh["tp"].get_group())
dist.all_reduce(ones, group=mesh["dp"].get_group())
hang()
"""


def test_the_groups_of_a_mesh_have_the_members_of_each_rank(workers):
    node = workers(PREAMBLE + MESH, count=4)
    assert node.line(3) == "hangs"

    def dimension(snapshot, members):
        (found,) = (own for own in snapshot.groups if own.members == members)
        return found.enqueued, found.completed

    def waits(taken):
        return dimension(taken[2], (2, 3)) == (2, 1) and dimension(taken[1], (1, 3)) == (2, 1)

    taken = node.take(waits)
    assert [dimension(taken[rank], (0, 1)) for rank in (0, 1)] == [(2, 2)] * 2
    assert [dimension(taken[3], members) for members in ((2, 3), (1, 3))] == [(1, 1)] * 2


# --- files


def analysis(folder):
    command = (sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "-p", "rank_")
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_torchfrtrace_reads_the_files_of_a_hang(workers, tmp_path):
    node = workers(PREAMBLE + GROUPS)
    node.take(has_hung)
    folder = tmp_path / "hang" / "round_0_1"
    node.take(dump=folder)
    assert sorted(os.listdir(folder)) == ["rank_0", "rank_1"]
    assert {(folder / name).stat().st_mode & 0o777 for name in os.listdir(folder)} == {0o600}
    assert (folder.stat().st_mode & 0o777) == 0o700
    found = analysis(folder)
    assert found.returncode == 0, found.stderr
    text = found.stdout + found.stderr
    assert "missing ranks: {1}" in text
    assert "group info: 1:dp" in text


def test_files_of_ranks_of_another_node_are_named_by_their_global_ranks(workers, tmp_path, patient):
    text = PREAMBLE.replace("rank=rank", "rank=rank - 4") + "dist.all_reduce(ones)\nhang()\n"
    node = workers(text, base_rank=4)
    node.take(lambda taken: all(own.groups and group(own).completed == 1 for own in taken.values()))
    seen = []
    node.collector.take_later(seen.append, dump=tmp_path / "files", ranks=[1])
    wait_for(lambda: node.run.timers and node.run.pass_time(0) is None and seen, within_s=60)
    assert (list(seen[0]), os.listdir(tmp_path / "files"), node.run.notices) == ([1], ["rank_5"], [])


def test_a_folder_that_cannot_be_written_costs_a_line_and_the_files(workers, tmp_path, patient):
    node = workers(f"{PREAMBLE}hang()\n")
    node.take()
    (tmp_path / "file").touch()
    seen = []
    node.collector.take_later(seen.append, dump=tmp_path / "file" / "folder")
    wait_for(lambda: node.run.timers and node.run.pass_time(0) is None and seen, within_s=60)
    (line,) = node.run.notices
    folder = str(tmp_path / "file" / "folder")
    assert line == f"the recorder's files can't be written to {folder!r}: {os.strerror(errno.ENOTDIR)}"
    assert sorted(seen[0]) == [0, 1]


# --- variables

VARIABLES = """
print(*(os.environ.get(name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")), flush=True)
dist.all_reduce(ones)
hang()
"""


@pytest.mark.parametrize(
    ("given", "printed", "records"),
    [
        ({}, "2000 None", True),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, "0 None", False),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}, "None 7", True),
    ],
)
def test_the_users_variables_stay_by_either_name(workers, given, printed, records):
    node = workers(PREAMBLE + VARIABLES, environment=given)
    assert node.line(0) == node.line(1) == printed
    assert node.line(0) == node.line(1) == "hangs"
    taken = node.take()
    assert [own.recorder for own in taken.values()] == [records] * 2
    states = [(own.members, own.enqueued) for each in taken.values() for own in each.groups]
    assert states == ([((0, 1), 1)] * 2 if records else [((0, 1), 0)] * 2)


def test_operations_that_the_recorder_has_overwritten_are_not_taken_for_none(workers):
    text = """
dp = dist.new_group([0, 1], group_desc="dp")
unused = dist.new_group([0, 1], group_desc="unused")
dist.all_reduce(ones, group=dp)
for _ in range(30):
    dist.all_reduce(ones)
hang()
"""
    node = workers(PREAMBLE + text, environment={"TORCH_FR_BUFFER_SIZE": "10"})
    assert node.line(0) == node.line(1) == "hangs"
    for snapshot in node.take(settled).values():
        states = [(own.description, own.enqueued, own.completed) for own in snapshot.groups]
        assert states == [("default_pg", 30, 30), ("unused", 0, 0)]
        assert snapshot.groups_dropped == 1


# --- what scripts do to their process


def test_forks_from_several_threads_leave_the_worker_responding(workers):
    text = """
def forks():
    for _ in range(20):
        pid = os.fork()
        if not pid:
            os._exit(len(os.listdir("/proc/self/task")) - 1)  # a thread of ours would be one more
        assert os.waitpid(pid, 0)[1] == 0, "more than one thread"

threads = [threading.Thread(target=forks) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
hang()
"""
    node = workers(PREAMBLE + text)
    assert node.line(0) == node.line(1) == "hangs"
    assert sorted(node.take()) == [0, 1]


def test_the_thread_has_ended_while_the_process_forks(workers):
    text = """
def tasks():
    return len(os.listdir("/proc/self/task"))

before = tasks()
pid = os.fork()
if not pid:
    print(tasks(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(tasks() == before, flush=True)
hang()
"""
    node = workers(PREAMBLE + text)
    for rank in (0, 1):
        assert [node.line(rank) for _ in range(3)] == ["1", "True", "hangs"]


def test_a_child_does_not_respond_for_the_worker(workers):
    text = """
import subprocess
if not os.fork():
    time.sleep(600)
code = "import torch.distributed, time; print('child', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code])
sys.stdin.readline()
os._exit(0)
"""
    node = workers(PREAMBLE + text)
    assert node.line(0) == node.line(1) == "child"
    node.take()
    node.go_on()
    for process in node.processes.values():
        process.wait(30)
    assert node.collector.take() == {}


def test_a_child_that_is_forked_before_torch_is_imported_does_not_respond(interpreters):
    text = """
import os, sys, time
if not os.fork():
    import torch.distributed
    print("child", flush=True)
    time.sleep(600)
time.sleep(600)
"""
    node = interpreters(text, count=1)
    assert node.line(0) == "child"
    assert node.collector.take() == {}


CLOSES = """
os.closerange(3, 4096)
print("closed", flush=True)
time.sleep(600)
"""


def test_a_script_may_close_all_descriptors(workers):
    node = workers(WITHOUT_GROUP + CLOSES)
    assert node.line(0) == node.line(1) == "closed"
    assert [own.groups for own in node.take().values()] == [(), ()]


IMPORTS = {
    "from": "from torch import distributed\n",
    "path": "import sys\nclass Mine:\n    find_spec = lambda *_: None\nsys.meta_path.insert(0, Mine)\nimport torch\n",
    "thread": "import threading\nt = threading.Thread(target=__import__, args=('torch',))\nt.start()\nt.join()\n",
    "find": "import importlib.util\nassert importlib.util.find_spec('torch.distributed')\nimport torch\n",
}


@pytest.mark.parametrize("way", IMPORTS)
def test_however_a_script_imports_torch_it_responds(interpreters, way):
    node = interpreters(f"{IMPORTS[way]}import time\nprint('up', flush=True)\ntime.sleep(600)\n", count=1)
    assert node.line(0) == "up"
    (snapshot,) = node.take().values()
    assert (snapshot.groups, snapshot.error, snapshot.recorder) == ((), "", True)


def test_a_script_that_replaces_the_finders_runs_without_snapshots(interpreters):
    text = """
import sys, time
sys.meta_path[:] = [each for each in sys.meta_path if "elastic_watch" not in type(each).__module__]
import torch
print("up", flush=True)
time.sleep(600)
"""
    node = interpreters(text, count=1)
    assert node.line(0) == "up"
    assert node.collector.take() == {}


def test_signals_reach_the_script_and_none_of_our_threads(workers):
    text = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait({signal.SIGUSR1}).name, threading.active_count(), flush=True)
hang()
"""
    node = workers(WITHOUT_GROUP + text)
    assert node.line(0) == node.line(1) == "SIGUSR1 1"


PLAIN = """
import os, sys
print(len(os.listdir("/proc/self/task")), sorted(set(sys.modules) & {"ctypes", "json", "pickle", "mmap"}),
      [name for name in os.environ if name.startswith("TORCH_")], flush=True)
"""


def test_a_script_without_torch_gets_no_thread_no_import_and_no_variable(interpreters):
    node = interpreters(PLAIN, count=1)
    assert node.line(0) == "1 [] []"


# --- the end of a process

ENDS = {
    "returns": ("pass", 0),
    "exits": ("sys.exit(3)", 3),
    "raises": ("raise ValueError", 1),
    "threads": ("threading.Thread(target=lambda: time.sleep(0.1)).start()", 0),
    "destroys": ("begin(); dist.all_reduce(ones); dist.destroy_process_group()", 0),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_worker_ends_as_it_would_while_its_agent_requests_snapshots(interpreters, end):
    text, code = ENDS[end]
    node = interpreters(f"{WITHOUT_GROUP}print('up', flush=True)\n{text}\n")
    assert node.line(0) == node.line(1) == "up"
    while any(process.poll() is None for process in node.processes.values()):
        node.collector.take()
    assert [process.returncode for process in node.processes.values()] == [code] * 2
    errors = [process.stderr.read() for process in node.processes.values()]
    assert [each for each in errors if "elastic_watch" in each or (each and end != "raises")] == []


def test_an_interrupt_ends_a_worker_as_usual(interpreters):
    # In short sleeps: an interrupt right before the call of a long one would be seen only after it.
    node = interpreters(f"{PREAMBLE}print('hangs', flush=True)\nwhile True:\n    time.sleep(0.1)\n")
    assert node.line(0) == node.line(1) == "hangs"
    for process in node.processes.values():
        process.send_signal(signal.SIGINT)
    while any(process.poll() is None for process in node.processes.values()):
        node.collector.take()
    for process in node.processes.values():
        assert process.returncode == -signal.SIGINT
        assert process.stderr.read().rstrip().endswith("KeyboardInterrupt")


def test_a_spare_that_has_imported_torch_responds_once_it_is_a_worker(interpreters):
    text = """
import os
path = os.environ.pop("KEPT")
import torch.distributed, time
print("imported", flush=True)
os.environ["%s"] = path
from elastic_watch.recorder_arming import arm
arm()
print("worker", os.environ["TORCH_FR_BUFFER_SIZE"], flush=True)
time.sleep(600)
"""
    node = interpreters(text % FILE_VARIABLE, count=1, hidden="KEPT")
    assert node.line(0) == "imported"
    assert node.line(0) == "worker 2000"
    assert node.take()[0].torch.startswith("2.")
