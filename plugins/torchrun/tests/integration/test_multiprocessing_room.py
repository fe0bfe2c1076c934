"""Workers in the hands of a program that is no agent: `start_processes` and what belongs to it."""

import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import function_samples as samples
from elastic_core.compat.elastic.multiprocessing import (
    DefaultLogsSpecs,
    MultiprocessContext,
    PContext,
    SignalException,
    Std,
    SubprocessContext,
    start_processes,
)
from elastic_core.errors import ConfigError, WorkerError
from elastic_core.processes.output.sink import Console
from elastic_core.processes.spec import WorkerLaunch
from elastic_torchrun.processes.redirects import get_std_cm, redirect, redirect_stderr, redirect_stdout
from elastic_torchrun.processes.subprocess_handler import SubprocessHandler, get_subprocess_handler
from elastic_torchrun.processes.supervised import SupervisedWorkers
from elastic_torchrun.processes.tail_log import TailLog
from group_kit import open_fds
from patience import kept, patience
from proc_kit import is_alive
from support import wait_for

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture
def start(tmp_path):
    """Return a function that starts workers; the caller must be as it was afterwards."""
    gc.collect()  # what other tests left
    before, had, made = _of_caller(), _held(), []

    def begin(entrypoint, args, *, name="trainer", envs=None, logs_specs=None, **more):
        specs = logs_specs or DefaultLogsSpecs(log_dir=str(tmp_path / "logs"))
        made.append(start_processes(name, entrypoint, args, envs or {rank: {} for rank in args}, specs, **more))
        return made[-1]

    yield begin
    for context in made:
        context.close(timeout=1)
    assert _of_caller() == before
    wait_for(lambda: _held() <= had, what="their ends")  # what an earlier test has left may end meanwhile


def _of_caller():
    handlers = [signal.getsignal(signum) for signum in SIGNALS]
    # Limits of the tests themselves note how slow the machine is, when one of them has been exceeded.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TESTS_"))}
    return handlers, environ, Path.cwd()


def _held():
    """Return the threads and descriptors of this process."""
    return {*threading.enumerate(), *open_fds()}


def shell(text):
    """A program of one worker that is a line of shell."""
    return {0: ("-c", text)}


# --- results


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_functions_return_by_local_rank(start, method):
    context = start(samples.add, {0: (1,), 1: (2, 3)}, start_method=method)
    assert isinstance(context, PContext)
    assert isinstance(context, MultiprocessContext)
    assert sorted(context.pids()) == [0, 1]
    result = context.wait()
    assert not result.is_failed()
    assert result.return_values == {0: 2, 1: 5}
    assert context.wait(0) is result


def test_programs_return_nothing_and_get_their_arguments_as_text(start):
    envs = {0: {"WHO": "zero"}, 1: {"WHO": "one"}}
    context = start(
        "/bin/sh",
        {rank: ("-c", 'echo "$WHO $0 $1"', 1, [2]) for rank in range(2)},
        envs=envs,
        logs_specs=None,
    )
    assert isinstance(context, SubprocessContext)
    assert context.wait().return_values == {0: None, 1: None}
    assert envs == {0: {"WHO": "zero"}, 1: {"WHO": "one"}}


def test_streams_go_to_files_and_to_the_console(start, tmp_path, capfd):
    specs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), redirects=Std.ERR, tee=Std.OUT)
    context = start(
        samples.describe,
        {0: (), 1: ()},
        logs_specs=specs,
        log_line_prefixes={1: "one> "},
        duplicate_stdout_filters=["std"],
    )
    result = context.wait()
    for rank in range(2):
        assert Path(result.stdouts[rank]).read_text() == "to stdout\n"
        assert Path(result.stderrs[rank]).read_text() == "to stderr\n"
    assert sorted(capfd.readouterr().out.splitlines()) == ["[trainer0]:to stdout", "one> to stdout"]
    filtered = Path(context.logs_dest.filtered_stdout).read_text().splitlines()
    assert sorted(filtered) == ["[trainer0]:to stdout", "one> to stdout"]


def test_nothing_is_left_where_nothing_was_written(start, tmp_path):
    specs = DefaultLogsSpecs()
    context = start("/bin/true", {0: ()}, logs_specs=specs)
    context.wait()
    assert not Path(specs.root_log_dir).exists()


def test_nothing_is_left_where_nothing_could_be_started(start):
    specs = DefaultLogsSpecs()
    with pytest.raises(ConfigError, match="nope"):
        start(samples.add, {0: (1,)}, logs_specs=specs, start_method="nope")
    assert not Path(specs.root_log_dir).exists()


def test_null_logs_are_no_files(start):
    specs = DefaultLogsSpecs(log_dir=os.devnull, redirects=Std.ALL)
    assert start(samples.add, {0: (1,)}, logs_specs=specs).wait().return_values == {0: 2}
    result = start(samples.fail, {0: ("x",)}, logs_specs=specs).wait()
    assert result.failures[0].exitcode == 1


# --- waiting


def test_wait_gives_none_in_time_and_is_told_at_once_of_the_end(start, tmp_path):
    path = tmp_path / "go"
    context = start("/bin/sh", shell(f"while [ ! -e {path} ]; do sleep 0.05; done"))
    assert context.wait(0) is None
    began_s = time.monotonic()
    assert context.wait(timeout=0.3, period=60) is None
    kept(time.monotonic() - began_s, 5)
    path.touch()
    assert context.wait(timeout=patience(20), period=60) is not None


def test_wait_works_from_any_thread(start):
    context, found = start(samples.add, {0: (1,)}), []
    thread = threading.Thread(target=lambda: found.append(context.wait()))
    thread.start()
    thread.join()
    assert found[0].return_values == {0: 2}
    context.close()


def test_a_worker_that_hangs_after_its_result_does_not_hold_the_caller(start, tmp_path):
    path = tmp_path / "hanging"
    context = start(samples.return_then_hang, {0: (str(path),)})
    wait_for(path.exists)
    assert context.wait(timeout=0.2) is None
    context.close(timeout=20)
    assert context.wait(0).failures[0].exitcode == -signal.SIGTERM


def test_output_flows_while_nobody_waits(start, tmp_path):
    specs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), tee=Std.OUT)
    context = start("/bin/sh", shell("head -c 3000000 /dev/zero | tr '\\0' x; echo"), logs_specs=specs)
    wait_for(lambda: Path(context.stdouts[0]).stat().st_size == 3_000_001)


class Cell(io.StringIO):
    """As the stream of Jupyter's kernel, which watches descriptor 1 and has the terminal's for itself."""

    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def fileno(self):
        return self.terminal.fileno()


def test_in_a_notebook_teed_lines_go_where_its_kernel_looks(start, tmp_path, monkeypatch, capfd):
    with (tmp_path / "terminal").open("wb") as terminal:
        monkeypatch.setattr(sys, "stdout", Cell(terminal))
        specs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), tee=Std.OUT)
        start("/bin/sh", shell("echo hello"), logs_specs=specs).wait()
    assert (tmp_path / "terminal").read_text() == ""
    assert capfd.readouterr().out == "[trainer0]:hello\n"


# --- failures


def test_all_failing_ranks_are_told_each_with_its_time_and_record(start):
    context = start(samples.fail, {0: ("zero",), 1: ("one",), 2: ("two",)})
    result = context.wait()
    assert result.is_failed()
    assert result.return_values == {}
    own = {rank: failure for rank, failure in result.failures.items() if failure.exitcode == 1}
    assert own
    for rank, failure in own.items():
        assert failure.pid == context.pids()[rank]
        assert f"ValueError: {['zero', 'one', 'two'][rank]}" in failure.message["message"]
        assert failure.timestamp_ns > 0


@pytest.mark.parametrize("rest", ["sleep 60", "trap 'exit 9' TERM; sleep 60 & wait"])
def test_the_others_are_stopped_when_one_fails_and_have_not_failed(start, rest):
    context = start("/bin/sh", {0: ("-c", rest), 1: ("-c", "exit 138")})
    result = context.wait()
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {1: 138}
    first = min(result.failures.values(), key=lambda failure: failure.timestamp)  # as torch's callers look for it
    assert first.local_rank == 1
    assert not is_alive(context.pids()[0])


def test_a_rank_that_raised_before_it_was_stopped_has_failed_too(start, tmp_path):
    raised = tmp_path / "raised"
    context = start(samples.raise_and_linger, {0: (str(raised),), 1: ("",)}, envs={0: {}, 1: {"WAIT_FOR": str(raised)}})
    assert set(context.wait().failures) == {0, 1}


def test_close_stops_them_and_what_they_started(start, tmp_path):
    path = tmp_path / "child"
    context = start("/bin/sh", shell(f"sleep 60 & echo $! > {path}.part; mv {path}.part {path}; wait"))
    wait_for(path.exists)
    child = int(path.read_text())
    context.close()
    assert not is_alive(child)
    assert context.wait().failures[0].exitcode == -signal.SIGTERM
    context.close()


def test_close_kills_what_ignores_it(start, tmp_path):
    path = tmp_path / "ready"
    context = start("/bin/sh", shell(f"trap '' INT; touch {path}; while true; do sleep 0.1; done"))
    wait_for(path.exists)
    context.close(signal.SIGINT, timeout=0.2)
    assert context.wait(0).failures[0].exitcode == -signal.SIGKILL


def test_what_cannot_start_is_one_line_and_leaves_nothing(start):
    with pytest.raises(FileNotFoundError, match=r"can't start '/no/such/program'.*Try: check the program's name"):
        start("/no/such/program", {0: ()})
    with pytest.raises(WorkerError, match=r"<lambda>' can't be sent to its workers \(spawn\)"):
        start(lambda: 1, {0: ()})
    with pytest.raises(ConfigError, match="start method 'threads' is none"):
        start(samples.add, {0: (1,)}, start_method="threads")


def test_no_workers_at_all_have_ended_well(start):
    result = start("/bin/true", {}).wait(timeout=patience(20))
    assert (result.return_values, result.failures) == ({}, {})


def test_what_breaks_the_supervision_off_is_no_success(start, monkeypatch):
    def broken(console, timeout_s=0.0):
        raise OSError("the console is gone")

    monkeypatch.setattr(Console, "flush", broken)
    before = signal.getsignal(signal.SIGTERM)
    context = start("/bin/true", {0: ()})
    assert signal.getsignal(signal.SIGTERM) != before
    with pytest.raises(OSError, match="the console is gone"):
        context.wait()
    assert signal.getsignal(signal.SIGTERM) == before


def test_ranks_must_be_full(tmp_path):
    specs = DefaultLogsSpecs(log_dir=str(tmp_path))
    with pytest.raises(RuntimeError, match=r"envs: local rank mapping mismatch: has \[0\]; expected 0 to 1"):
        start_processes("x", "/bin/true", {0: (), 1: ()}, {0: {}}, specs)
    with pytest.raises(RuntimeError, match=r"args: local rank mapping mismatch: has \[1\]; expected 0 to 0"):
        start_processes("x", "/bin/true", {1: ()}, {1: {}}, specs)


def test_numa_options_bind_workers(start):
    cpu = max(os.sched_getaffinity(0))

    class Options:
        def cpus_for(self, local_rank, nproc):
            assert (local_rank, nproc) == (0, 1)
            return {cpu}

    assert start(samples.describe, {0: ()}, numa_options=Options()).wait().return_values[0]["cpus"] == {cpu}
    with pytest.raises(ConfigError, match="can't bind workers"):
        start(samples.describe, {0: ()}, numa_options="node")


# --- signals


def test_a_signal_ends_the_wait_and_the_workers_run_on(start):
    context = start("/bin/sleep", {0: (60,)})
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    with pytest.raises(SignalException) as caught:
        context.wait()
    timer.join()
    assert caught.value.sigval is signal.SIGTERM
    assert is_alive(context.pids()[0])
    context.close(caught.value.sigval, timeout=5)


def test_a_signal_between_waits_is_told_by_the_next(start):
    context = start("/bin/sleep", {0: (60,)})
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(SignalException, match="got SIGINT"):
        context.wait(0)
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)  # the second in a row has its usual effect
    context.close()


def test_ctrl_c_while_they_start_leaves_none(tmp_path):
    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            raise KeyboardInterrupt

    workers = SupervisedWorkers("x")
    workers._began = Interrupted()
    env = dict(os.environ, **workers.mark)
    with pytest.raises(KeyboardInterrupt):
        workers.start([WorkerLaunch(local_rank=0, global_rank=0, argv=("/bin/sleep", "60"), env=env)])
    assert workers.finished.is_set()
    assert workers.exits[0].code == -signal.SIGKILL


def test_a_forked_child_that_ends_leaves_them_to_its_parent(tmp_path):
    script = tmp_path / "forks.py"
    script.write_text(
        "import os, sys\n"
        "from elastic_core.compat.elastic.multiprocessing import DefaultLogsSpecs, start_processes\n"
        f"specs = DefaultLogsSpecs({str(tmp_path / 'logs')!r})\n"
        f"wait = 'while [ ! -e {tmp_path / 'go'} ]; do sleep 0.05; done'\n"
        "context = start_processes('x', '/bin/sh', {0: ('-c', wait)}, {0: {}}, specs)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert context.wait(0) is None\n"
        f"open({str(tmp_path / 'go')!r}, 'w').close()\n"
        "print(context.wait().return_values)\n"
    )
    command = [sys.executable, "-W", "ignore", str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=patience(30), check=True)
    assert ran.stdout == "{0: None}\n"


def test_workers_do_not_outlive_a_caller_that_forgets_them(tmp_path):
    script = tmp_path / "forgetful.py"
    script.write_text(
        "from elastic_core.compat.elastic.multiprocessing import DefaultLogsSpecs, start_processes\n"
        f"specs = DefaultLogsSpecs({str(tmp_path / 'logs')!r})\n"
        "context = start_processes('x', '/bin/sleep', {0: (60,)}, {0: {}}, specs)\n"
        "print(context.pids()[0])\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr == ""
    assert not is_alive(int(ran.stdout))


def test_the_readme_form_of_a_script_works_and_imports_no_torch(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(
        "import sys\n"
        "from elastic_core.compat.elastic.multiprocessing import DefaultLogsSpecs, start_processes\n"
        "def work(n):\n"
        "    return n, 'torch' in sys.modules\n"
        "if __name__ == '__main__':\n"
        f"    specs = DefaultLogsSpecs({str(tmp_path / 'logs')!r})\n"
        "    for method in ('spawn', 'fork', 'forkserver'):\n"
        "        context = start_processes('x', work, {0: (1,), 1: (2,)}, {0: {}, 1: {}}, specs, start_method=method)\n"
        "        print(method, context.wait().return_values, 'torch' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr == ""
    values = "{0: (1, False), 1: (2, False)} False"
    assert ran.stdout.splitlines() == [f"{method} {values}" for method in ("spawn", "fork", "forkserver")]


# --- what belongs to it


def test_redirect_takes_python_c_and_programs(tmp_path, capfd):
    out, err = tmp_path / "out", tmp_path / "err"
    with redirect_stdout(str(out)), redirect_stderr(str(err)):
        print("python")
        os.write(1, b"descriptor\n")
        subprocess.run(["/bin/sh", "-c", "echo program; echo error >&2"], check=True)
    print("after")
    assert sorted(out.read_text().splitlines()) == ["descriptor", "program", "python"]
    assert err.read_text() == "error\n"
    assert capfd.readouterr().out == "after\n"
    with get_std_cm("", redirect_stdout):
        print("not redirected")
    assert capfd.readouterr().out == "not redirected\n"
    with pytest.raises(ValueError, match="unknown stream 'stdin'"), redirect("stdin", str(out)):
        pass


def test_tail_log_copies_whole_lines_with_headers(tmp_path):
    files = {0: str(tmp_path / "0"), 1: str(tmp_path / "1")}
    copied = io.StringIO()
    tail = TailLog("trainer", files, copied, {1: "one> "}, 0.01, lambda line: "skip" not in line).start()
    with Path(files[0]).open("w") as first:
        first.write("half a ")
        first.flush()
        Path(files[1]).write_text("whole\nskip this\n")
        wait_for(lambda: "one> whole\n" in copied.getvalue())
        assert "half" not in copied.getvalue()
        first.write("line\nwithout an end")
    tail.stop()
    assert tail.stopped()
    assert sorted(copied.getvalue().splitlines()) == [
        "[trainer0]:half a line",
        "[trainer0]:without an end",
        "one> whole",
    ]


def test_tail_log_ends_though_a_file_never_came(tmp_path):
    TailLog("trainer", {0: str(tmp_path / "none")}, io.StringIO(), interval_sec=60).start().stop()


def test_subprocess_handler(tmp_path):
    out = str(tmp_path / "out")
    handler = get_subprocess_handler("/bin/sh", ("-c", "echo $WHO; sleep 60"), {"WHO": "me"}, out, "", 3)
    assert isinstance(handler, SubprocessHandler)
    assert handler.local_rank_id == 3
    wait_for(lambda: Path(out).read_text() == "me\n")
    assert os.getpgid(handler.proc.pid) == handler.proc.pid
    handler.close()
    assert handler.proc.wait(10) == -signal.SIGTERM
    handler.close()
