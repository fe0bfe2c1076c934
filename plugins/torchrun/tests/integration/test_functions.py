"""Functions as workers, by each of the three start methods: real processes."""

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

import function_samples as samples
from elastic_core.errors import ConfigError, WorkerError
from elastic_core.system.reactor import Reactor
from elastic_torchrun.functions import START_METHODS, FunctionCall, call, server
from elastic_torchrun.functions.result import ResultPipe, open_result_pipe
from elastic_torchrun.functions.start import FunctionStarter
from function_kit import run
from group_kit import GroupKit, set_subreaper, start_of
from patience import kept, patience
from proc_kit import children, is_alive, state_of
from support import launcher, wait_for

ALL = pytest.mark.parametrize("method", START_METHODS)


@pytest.fixture
def start(tmp_path):
    folder = tmp_path / "agents"
    folder.mkdir()
    yield from launcher(folder)


# --- results


@ALL
def test_results_come_by_rank(group, method):
    kit = group(samples.add, method=method, by_rank={0: (1,), 1: (2, 40)})
    assert run(kit, 2) == {0: 2, 1: 42}
    assert [exit.code for exit in kit.exits] == [0, 0]


@ALL
def test_a_worker_is_as_a_script_would_be(group, method, monkeypatch):
    monkeypatch.setenv("ELASTIC_TEST_ONLY_OURS", "given")
    kit = group(samples.describe, "a", 2, method=method)
    cpus = os.sched_getaffinity(0)
    cpu = min(cpus)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    found = run(kit, cpus=frozenset({cpu}))[0]
    assert found["args"] == ("a", 2)
    assert found["pid"] == found["sid"] == kit.exits[0].pid
    assert (found["rank"], found["home"]) == ("0", "given")
    assert found["argv"] == sys.argv
    assert found["cpus"] == {cpu}
    assert found["mask"] == mask
    assert found["sigint"]
    assert found["threads"] == 1
    assert found["children"] == 0
    assert kit.said(0, "out") == "to stdout\n"
    assert kit.said(0, "err") == "to stderr\n"
    assert os.sched_getaffinity(0) == cpus


@ALL
def test_a_second_round_is_as_the_first(group, method):
    kit = group(samples.add, 1, method=method)
    for _ in range(2):
        kit.exits.clear()
        assert run(kit) == {0: 2}
        kit.stop()


def test_a_closure_works_with_fork_and_sees_what_the_caller_had(group):
    seen = [1]
    kit = group(lambda: seen, method="fork")
    seen.append(2)  # after the copy was made
    assert run(kit) == {0: [1]}


@ALL
def test_a_result_of_200_mb_does_not_block(group, method):
    kit = group(samples.big, 200_000_000, method=method)
    kit.start_calls()
    took_s = kit.run_until_exits(1)
    assert len(kit.return_values[0]) == 200_000_000
    kept(took_s, 20)


@ALL
def test_a_result_counts_though_the_worker_hangs_in_its_exit_handlers(group, method, tmp_path, monkeypatch):
    monkeypatch.setattr("elastic_torchrun.functions.start.LINGER_S", 0.1)
    path = tmp_path / "hanging"
    kit = group(samples.return_then_hang, str(path), method=method)
    kit.start_calls()
    kit.run_until(path.exists)
    kit.run_until(lambda: kit.notices)
    assert "(pid " in kit.notices[0]
    assert "returned 0.1 s ago, as all others, and has not ended: it waits in its exit handlers" in kit.notices[0]
    assert kit.exits == []
    assert kit.return_values == {}  # it has not ended
    kit.stop(grace_s=20)
    assert kit.exits[0].code == -signal.SIGTERM


@ALL
def test_a_worker_that_has_returned_ends_when_all_have(group, method, tmp_path):
    ended, go = tmp_path / "ended", tmp_path / "go"
    by_rank = {0: (str(ended), ""), 1: ("", str(go))}
    kit = group(samples.note_the_end, method=method, by_rank=by_rank)
    kit.start_calls(2)
    kit.run_until(lambda: kit.calls.complete(0))
    copy = os.fork()  # it holds a copy of each descriptor that this process has
    if copy == 0:
        signal.pause()
    try:
        assert not ended.exists()
        assert is_alive(kit.group.pids[0])
        go.touch()
        kit.run_until_exits(2)
    finally:
        os.kill(copy, signal.SIGKILL)
        os.waitpid(copy, 0)
    assert ended.exists()
    assert [exit.code for exit in kit.exits] == [0, 0]


@ALL
def test_a_worker_that_has_returned_ends_with_a_stop_whatever_it_does_at_a_signal(group, method, tmp_path):
    ended = tmp_path / "ended"
    by_rank = {0: (str(ended), ""), 1: ("", str(tmp_path / "never"))}
    kit = group(samples.note_the_end, method=method, by_rank=by_rank)
    kit.start_calls(2)
    kit.run_until(lambda: kit.calls.complete(0))
    kit.stop(signal.SIGUSR1, grace_s=30, within_s=20)  # which rank 0 ignores
    assert ended.exists()
    assert sorted(exit.code for exit in kit.exits) == [-signal.SIGUSR1, 0]


@ALL
def test_a_rank_that_fails_while_others_have_returned_is_the_one_that_failed(group, method, tmp_path):
    go = tmp_path / "go"
    kit = group(samples.fail_after, method=method, by_rank={0: ("",), 1: (str(go),)})
    kit.start_calls(2)
    kit.run_until(lambda: kit.calls.complete(0))
    go.touch()
    kit.run_until_exits(1)
    assert (kit.exits[0].local_rank, kit.exits[0].code) == (1, 3)
    kit.stop()


@ALL
def test_an_abort_after_the_result_is_a_line(group, method):
    kit = group(samples.return_then_abort, method=method)
    assert run(kit) == {0: "done"}
    assert kit.exits[0].code == 0
    (line,) = kit.notices
    assert "SIGABRT while its process ended, after its function had returned; the result counts. Try: torch" in line


@ALL
def test_an_abort_without_a_result_is_a_failure(group, method):
    kit = group(samples.die, signal.SIGABRT, method=method)
    run(kit)
    assert kit.exits[0].code == -signal.SIGABRT
    assert kit.notices == []


@ALL
def test_a_result_is_whole_while_a_child_of_the_worker_holds_the_pipe(group, method, tmp_path):
    path = tmp_path / "child"
    kit = group(samples.return_with_a_child_that_stays, str(path), method=method)
    assert run(kit) == {0: "done"}
    child = int(wait_for(lambda: path.read_text(), what="the child's pid"))  # the file is there before its content
    kit.stop(grace_s=1)
    kit.run_until(lambda: not is_alive(child))


@pytest.fixture(params=START_METHODS)
def queue(request):
    queue = multiprocessing.get_context(request.param).Queue()
    yield request.param, queue
    queue.close()
    queue._writer.close()  # only a garbage collection would


def test_queues_of_multiprocessing_can_be_arguments(queue, group):
    method, queue = queue
    run(group(samples.put, queue, "hello", method=method))
    assert queue.get(timeout=patience(10)) == "hello"


# --- failures


@ALL
def test_an_exception_is_recorded_and_printed_as_of_a_script(group, method, tmp_path, monkeypatch):
    error_file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(error_file))
    monkeypatch.setenv("ELASTIC_WORKER_HOOKS", "1")
    kit = group(samples.fail, "boom", method=method)
    assert run(kit) == {}
    assert kit.exits[0].code == 1
    printed = kit.said(0, "err")
    assert printed.startswith("Traceback (most recent call last):\n")
    assert printed.endswith("ValueError: boom\n")
    assert printed.count("Traceback") == 1
    assert "elastic_core" not in printed
    assert '"ValueError: boom"' in error_file.read_text()


@ALL
def test_exit_codes_and_signals_are_told(group, method):
    kit = group(samples.leave, method=method, by_rank={0: (0,), 1: (7,)})
    assert run(kit, 2) == {0: None}
    assert {exit.local_rank: exit.code for exit in kit.exits} == {0: 0, 1: 7}
    kit = group(samples.die, signal.SIGKILL, method=method)
    run(kit)
    assert kit.exits[0].code == -signal.SIGKILL


@ALL
def test_who_is_killed_while_it_returns_leaves_its_words_and_no_result(group, method):
    kit = group(samples.killed_while_it_returns, method=method)
    assert run(kit) == {}
    assert kit.exits[0].code == -signal.SIGKILL
    assert (kit.said(0, "out"), kit.said(0, "err")) == ("returning, no line's end", "and on stderr")


@ALL
def test_a_result_that_cannot_be_pickled_is_one_line(group, method):
    kit = group(samples.lock, method=method)
    assert run(kit) == {}
    assert kit.exits[0].code == 1
    last = kit.said(0, "err").splitlines()[-1]
    assert "function 'lock' returned a lock that can't be pickled: TypeError: cannot pickle" in last
    assert "Try: return numbers" in last


def test_a_result_that_cannot_be_loaded_is_one_line(group):
    kit = group(samples.refusing)
    with pytest.raises(WorkerError, match=r"what function 'refusing' returned can't be loaded.*not in this process"):
        run(kit)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_cannot_be_sent_is_one_line(group, method):
    kit = group(lambda: 1, method=method)
    with pytest.raises(WorkerError) as caught:
        kit.start_calls()
    assert "<lambda>' can't be sent to its workers" in str(caught.value)
    assert "Try: define it at the top level of a module, or start_method='fork'" in str(caught.value)
    assert "\n" not in str(caught.value)
    kit = group(samples.add, 1, threading.Lock(), method=method)
    with pytest.raises(WorkerError, match=r"argument 2 \(lock\) of function 'add' can't be sent to its workers"):
        kit.start_calls()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_function_of_a_prompt_is_one_line(method):
    """What a worker can't find: there is no file that it could import."""
    program = (
        "from elastic_core.compat.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes\n"
        "def work(): pass\n"
        "specs = DefaultLogsSpecs()\n"
        f"workers = start_processes('x', work, {{0: ()}}, {{0: {{}}}}, specs, start_method={method!r})\n"
        "print(workers.wait().failures[0].exitcode)\n"
        "import shutil; shutil.rmtree(specs.root_log_dir)\n"
    )
    command = [sys.executable, "-"]
    ran = subprocess.run(command, input=program, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "1\n"
    (line,) = ran.stderr.splitlines()
    assert "the worker does not find its function, or what it is called with: Can't get attribute 'work'. Try:" in line


def test_what_is_no_call_is_refused():
    with pytest.raises(ConfigError, match=r"start method 'threads' is none. Try: spawn, fork, forkserver"):
        FunctionCall(samples.add, (), "threads")
    with pytest.raises(ConfigError, match="is not a function"):
        FunctionCall("train.py")
    assert FunctionCall(partial(samples.add, 1)).name == "add"


def test_a_main_module_without_its_guard_is_one_line():
    call.begin_import("/home/me/train.py")
    try:
        with pytest.raises(ConfigError, match=r"imports the main module '/home/me/train.py'.*__main__"):
            FunctionStarter(FunctionCall(samples.add, (1,)))
    finally:
        call.end_import()


def test_a_result_for_which_there_is_no_memory_is_one_line():
    reactor = Reactor()
    read_fd, write_fd = open_result_pipe()
    pipe = ResultPipe(reactor, read_fd)
    os.write(write_fd, (1 << 62).to_bytes(8, "little"))
    os.close(write_fd)
    pipe.drain()
    reactor.close()
    assert not pipe.complete
    with pytest.raises(WorkerError, match=r"'work' returned 4611686018427387904 bytes, .* no memory\. Try: write it"):
        pipe.value("work")


# --- the life of workers


@ALL
def test_workers_can_be_stopped_at_once(group, method, tmp_path):
    by_rank = {rank: (str(tmp_path / f"worker{rank}"),) for rank in range(2)}
    kit = group(samples.sleep_and_tell, method=method, by_rank=by_rank)
    kit.start_calls(2)
    kit.stop(grace_s=10)  # before their first own line: nothing may be lost
    assert {exit.code for exit in kit.exits} == {-signal.SIGTERM}


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_end_with_a_caller_that_was_killed(method, tmp_path):
    path = tmp_path / "worker"
    caller = os.fork()
    if caller == 0:
        os.setsid()
        kit = GroupKit(tmp_path, call=FunctionCall(samples.sleep_and_tell, (str(path),), method))
        kit.start_calls()
        kit.run_until(path.exists)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(caller, 0)
    pid = int(wait_for(lambda: path.exists() and path.read_text()))
    wait_for(lambda: not is_alive(pid))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_the_end_of_the_server_is_told(group, method, tmp_path):
    path = tmp_path / "worker"
    kit = group(samples.sleep_and_tell, str(path), method=method)
    kit.start_calls()
    kit.run_until(path.exists)
    (server,) = kit.functions.pids()
    os.kill(server, signal.SIGKILL)
    kit.stop(grace_s=5)
    assert kit.exits[0].code in (1, -signal.SIGTERM)  # the former if its new parent was faster than we
    with pytest.raises(WorkerError, match="the process that workers are forked from is gone"):
        kit.start_calls()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_without_their_server_are_reaped_by_whoever_takes_orphans_in(group, method, tmp_path):
    path = tmp_path / "worker"
    set_subreaper(True)
    try:
        kit = group(samples.sleep_and_tell, str(path), method=method)
        kit.start_calls()
        kit.run_until(path.exists)
        (server,) = kit.functions.pids()
        os.kill(server, signal.SIGKILL)
        os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)  # its orphans are ours now
        kit.stop(grace_s=5)
        assert kit.exits[0].code == -signal.SIGTERM
    finally:
        set_subreaper(False)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_that_has_ended_is_reaped_on_order_only(group, method):
    kit = group(samples.add, 1, method=method)
    first = kit.functions.start(start_of(kit.call_launch(0)))
    os.close(first.result_fd)
    wait_for(lambda: not is_alive(first.process.pid))
    second = kit.functions.start(start_of(kit.call_launch(1)))
    assert state_of(first.process.pid) == "Z", "its number must stay its own until somebody has asked"
    assert first.process.reap() == 0
    os.close(second.result_fd)
    wait_for(lambda: second.process.reap() == 0)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_server_that_leaves_ends_its_workers_though_one_has_ended_unseen(group, method, tmp_path):
    go = tmp_path / "go"
    kit = group(samples.note_the_end, method=method, by_rank={0: ("", ""), 1: ("", str(go))})
    ended, running = (kit.functions.start(start_of(kit.call_launch(rank))) for rank in (0, 1))
    for each in (ended, running):
        os.close(each.result_fd)
    wait_for(lambda: not is_alive(ended.process.pid))
    kit.functions.close()
    left = is_alive(running.process.pid)
    go.touch()
    assert not left


class Memory:
    """A process that takes long to fork, without the memory."""

    def __init__(self, monkeypatch, fork_s):
        monkeypatch.setattr(server, "get_context", lambda method: self)
        self.fork_s = fork_s

    def Process(self, **how):  # as of multiprocessing
        threading.Event().wait(self.fork_s)
        return multiprocessing.get_context("fork").Process(**how)


def longest_turn(kit, condition):
    """Turn the loop until the condition holds; return how long the longest turn took, less what it may sleep."""
    took = []
    while not condition():
        began_s = time.monotonic()
        kit.reactor.turn(0.02)
        took.append(time.monotonic() - began_s)
    return max(took)


def test_the_loop_turns_while_processes_are_forked_ahead(group, monkeypatch):
    Memory(monkeypatch, 0.7)
    kit, ready = group(samples.add, 1, method="fork"), []
    kit.calls.prepare(3, lambda: ready.append(1))
    kept(longest_turn(kit, lambda: ready), 0.3)
    began_s = time.monotonic()
    kit.start_calls(3)
    kept(time.monotonic() - began_s, 0.5)  # no fork is waited for
    kit.run_until_exits(3)
    assert kit.return_values == {0: 2, 1: 2, 2: 2}


def test_what_was_forked_ahead_and_killed_is_replaced(group):
    kit, ready = group(samples.add, 1, method="fork"), []
    kit.calls.prepare(2, lambda: ready.append(1))
    kit.run_until(lambda: ready)
    (first,) = kit.functions.pids()
    for pid in children(first):
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda pid=pid: not is_alive(pid))
    assert run(kit, 2) == {0: 2, 1: 2}


def test_what_was_forked_ahead_and_not_needed_ends(group):
    kit, ready = group(samples.add, 1, method="fork"), []
    kit.calls.prepare(2, lambda: ready.append(1))
    kit.run_until(lambda: ready)
    (first,) = kit.functions.pids()
    ahead = children(first)
    assert len(ahead) == 2
    kit.functions.close()
    assert not any(is_alive(pid) for pid in ahead)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_server_that_is_stopped_holds_nothing_up(group, monkeypatch, method):
    kit, ready = group(samples.add, 1, method=method), []
    kit.start_calls()
    monkeypatch.setattr("elastic_torchrun.functions.server_client._ANSWER_S", 2.0)  # of a server that has begun
    (pid,) = kit.functions.pids()
    os.kill(pid, signal.SIGSTOP)
    try:
        kept(longest_turn(kit, lambda: kit.exits), 1.0)
        assert kit.exits[0].code == 0
        kit.stop()
        kit.calls.prepare(1, lambda: ready.append(1))
        kept(longest_turn(kit, lambda: ready), 1.0)
        with pytest.raises(WorkerError, match="the process that workers are forked from does not answer"):
            kit.start_calls()
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is needed")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_that_has_become_another_user_has_its_code(group, method):
    kit = group(samples.leave_as_another_user, 9, method=method)
    kit.start_calls()
    kit.run_until_exits(1)
    assert kit.exits[0].code == 9


def test_a_server_ends_though_this_process_has_many_files(group):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kit = group(samples.add, 1, method="fork")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    many = []
    try:
        while not many or many[-1] < 1024:
            many.append(os.dup(0))
        kit.functions.close()
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_sweep_spares_the_server(group, method):
    set_subreaper(True)
    try:
        kit = group(samples.add, 1, method=method, subreaper=True)
        for _ in range(2):
            kit.exits.clear()
            assert run(kit) == {0: 2}
            kit.stop()
    finally:
        set_subreaper(False)


def test_a_signal_for_the_whole_job_does_not_end_the_server(group):
    kit = group(samples.add, 1, method="fork")
    (server,) = kit.functions.pids()
    os.kill(server, signal.SIGTERM)
    os.kill(server, signal.SIGINT)
    assert run(kit) == {0: 2}


def test_fork_beside_other_threads_is_one_warning(monkeypatch):
    held = threading.Event()
    other = threading.Thread(target=held.wait, name="loader")
    other.start()
    # Threads of tests before this one may not have ended yet.
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), other])
    try:
        starter = FunctionStarter(FunctionCall(samples.add, (1,), "fork"))
        starter.close()
    finally:
        held.set()
        other.join()
    (line,) = starter.warnings
    assert "'add' is started with fork while 1 other thread(s) run (loader): " in line


def test_the_caller_keeps_its_own(group):
    before = (multiprocessing.get_start_method(allow_none=True), dict(os.environ), Path.cwd(), list(sys.path))
    children = multiprocessing.active_children()
    for method in START_METHODS:
        assert run(group(samples.add, 1, method=method)) == {0: 2}
    assert (multiprocessing.get_start_method(allow_none=True), dict(os.environ), Path.cwd(), list(sys.path)) == before
    assert multiprocessing.active_children() == children


# --- `--run-path`


@pytest.mark.parametrize("method", START_METHODS)
def test_run_path_runs_a_script_as_if_by_itself(start, tmp_path, method):
    (tmp_path / "beside.py").write_text("WORD = 'found'\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import json, os, sys, beside\n"
        "print(json.dumps([__name__, sys.argv[1:], beside.WORD, os.environ['RANK'], 'torch' in sys.modules]))\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    raise ValueError('boom')\n"
    )
    options = ["--run-path", "--start-method", method, "--nproc-per-node", "2", "--max-restarts", "1", "-r", "1:1"]
    agent = start(*options, script, "--lr", "${local_rank}")
    assert agent.wait() == 0
    said = [json.loads(line) for line in agent.out.splitlines()]
    assert said[-1] == ["__main__", ["--lr", "0"], "found", "0", False]
    assert "ValueError: boom (" in agent.err
    assert "runpy" not in agent.err
    assert agent.survivors() == []


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_nothing_survives_an_agent_that_is_killed(start, tmp_path, method):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, sys, threading\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        "if child: print(os.getpid(), child, os.getppid(), flush=True)\n"
        "threading.Event().wait(60)\n"
    )
    agent = start("--run-path", "--start-method", method, script)
    wait_for(lambda: agent.out.endswith("\n"))
    pids = [int(word) for word in agent.out.split()]
    assert all(is_alive(pid) for pid in pids)
    agent.signal(signal.SIGKILL)
    wait_for(lambda: not any(is_alive(pid) for pid in pids))


def test_a_run_that_is_told_to_stop_is_not_held_by_a_worker_that_has_returned(start, tmp_path):
    path = tmp_path / "hanging"
    script = tmp_path / "train.py"
    script.write_text(
        "import atexit, pathlib, threading\n"
        f"atexit.register(lambda: (pathlib.Path({str(path)!r}).touch(), threading.Event().wait(60)))\n"
    )
    agent = start("--run-path", "--start-method", "fork", script)
    wait_for(path.exists)
    agent.signal(signal.SIGTERM)
    assert agent.wait(20) == 128 + signal.SIGTERM


# --- torch
