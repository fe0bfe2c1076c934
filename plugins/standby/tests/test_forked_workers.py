"""Forked workers: a fork is the worker that a fresh start would have been, or a line says why there is none."""

import json
import os
import resource
import signal
import textwrap

import pytest
from msgspec.structs import replace

from elastic_standby.forks import is_read_late
from group_kit import all_closed_since, open_fds, set_subreaper
from proc_kit import state_of
from standby_kit import ENDS, MARK, ForkBench, lay_out, recorded
from support import processes_with, wait_for

WHOLE = """\
import atexit, faulthandler, gc, json, locale, logging, multiprocessing, os, resource, signal, sys, threading, warnings
def depth(frame):
    return 0 if frame is None else 1 + depth(frame.f_back)
def read(name):
    with open(f"/proc/self/{name}") as file:
        return file.read()
of_kernel = {"Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "SigBlk", "SigIgn", "SigCgt", "ShdPnd", "CapInh",
    "CapPrm", "CapEff", "CapBnd", "CapAmb", "Cpus_allowed", "Mems_allowed", "Umask", "Threads", "Name"}
pairs = (line.partition(":")[::2] for line in read("status").splitlines())
me, main = multiprocessing.current_process(), threading.main_thread()
print(json.dumps({
    "kernel": {name: value for name, value in pairs if name in of_kernel},
    "limits": [resource.getrlimit(each) for each in range(16)],
    "oom": read("oom_score_adj"), "cgroup": read("cgroup"), "program": os.readlink("/proc/self/exe"),
    "title": [word for word in read("cmdline").split("\\0") if word],
    "locale": [locale.setlocale(locale.LC_ALL), locale.getlocale(), locale.getpreferredencoding()],
    "encoding": [sys.getfilesystemencoding(), sys.getdefaultencoding()],
    "faults": faulthandler.is_enabled(),
    "warnings": [str(each) for each in warnings.filters], "options": [sys.warnoptions, sys._xoptions],
    "threads": [(each.name, each.daemon) for each in threading.enumerate()], "exits": atexit._ncallbacks(),
    "main": [main.native_id == os.getpid(), main.ident == threading.get_ident(), main is threading.current_thread()],
    "parent": os.getppid(), "process": [me.name, me.daemon, me.ident == os.getpid(), len(me.authkey)],
    "relations": [str(multiprocessing.active_children()), str(multiprocessing.parent_process())],
    "gc": [gc.isenabled(), gc.get_threshold()], "timer": signal.getitimer(signal.ITIMER_REAL),
    "wake-up": signal.set_wakeup_fd(-1), "limits of Python": [sys.getrecursionlimit(), sys.getswitchinterval()],
    "stdin": [sys.stdin.name, sys.stdin.mode, sys.stdin.encoding, sys.stdin.isatty(), os.fstat(0).st_ino],
    "level": [logging.getLogger().level, len(logging.getLogger().handlers)],
    "young": logging.LogRecord("", 0, "", 0, "", None, None).relativeCreated < 600_000,
    "preload": os.environ.get("LD_PRELOAD"), "bytecode": sys.dont_write_bytecode,
    "different": {
        "frozen": gc.get_freeze_count(), "modules": "marker" in sys.modules, "depth": depth(sys._getframe()),
        "started with": "\\0RANK=" in read("environ"), "padded": read("cmdline").endswith("\\0\\0"),
    },
}, indent=1))
"""
DIFFERENT = {
    "frozen": "objects of the imports are left out of garbage collections",
    "modules": "modules are imported before the script runs",
    "depth": "a live stack has one more frame at its bottom",
    "started with": "/proc/PID/environ shows the variables of the interpreter with the imports",
    "padded": "the command line in /proc ends with empty words",
}
"""What may differ, as docs/explanation/standby.md says."""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "marker.py").write_text("")
    before = open_fds()
    set_subreaper(True)
    bench = ForkBench(tmp_path, imports=("json", "marker", "threading"))
    yield bench
    bench.close()
    all_closed_since(before)
    assert wait_for(lambda: not processes_with(f"MARK={MARK}"), what="the end of every fork")
    set_subreaper(False)


# --- the worker


@pytest.mark.parametrize("kind", ["script", "relative", "link", "folder", "archive", "module", "package"])
def test_a_program_sees_no_difference(bench, kind, tmp_path):
    (code, out, err), warm = bench.both(*lay_out(kind, tmp_path), "--lr", "1e-3", "a b", "")
    assert code == 0
    assert json.loads(warm[1]) == json.loads(out)
    assert (warm[0], warm[2]) == (code, err)


@pytest.mark.parametrize(
    "variables",
    [{}, {"PYTHONSAFEPATH": "1", "PYTHONFAULTHANDLER": "1", "LANG": "C", "X": "a=b\nc", "PYTHONWARNINGS": "error"}],
    ids=["plain", "set"],
)
@pytest.mark.parametrize("hooks", [True, False])
def test_all_that_a_script_can_notice_is_as_cold(bench, tmp_path, variables, hooks):
    (tmp_path / "train.py").write_text(WHOLE)
    (code, out, err), warm = bench.both("train.py", hooks=hooks, **variables)
    assert (code, err) == (0, "")
    assert (warm[0], warm[2]) == (0, "")
    cold, forked = json.loads(out), json.loads(warm[1])
    own, others = forked.pop("different"), cold.pop("different")
    assert forked == cold
    safe = "PYTHONSAFEPATH" in variables  # the test's own module is not found then
    different = {name for name in DIFFERENT if own[name] != others[name]}
    assert different == set(DIFFERENT) - ({"modules"} if safe else set())


@pytest.mark.parametrize("as_module", [False, True], ids=["script", "module"])
@pytest.mark.parametrize("how", ENDS)
def test_it_ends_with_the_same_words_code_and_record(bench, how, as_module, tmp_path):
    source = textwrap.dedent(ENDS[how])
    (tmp_path / "train.py").write_bytes(source.encode("utf-8", "surrogateescape"))
    words = ["-m", "train"] if as_module else ["train.py"]
    bench.stand_by(bench.launch(*words, round_=7))
    _, end = bench.take(bench.launch(*words))
    warm, warm_record = end(), recorded(tmp_path)
    cold = bench.cold(bench.launch(*words))
    assert warm == cold
    assert warm_record == recorded(tmp_path)


def test_children_by_forkserver_and_pools_work(bench, tmp_path):
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
            import multiprocessing, sys
            from concurrent.futures import ThreadPoolExecutor
            def work(x):
                return x * x
            if __name__ == "__main__":
                for method in ("fork", "spawn", "forkserver"):
                    with multiprocessing.get_context(method).Pool(2) as pool:
                        print(method, pool.map(work, [1, 2, 3]))
                with ThreadPoolExecutor(4) as pool:
                    print(sum(pool.map(work, range(100))))
            """)
    )
    bench.imports = ("multiprocessing", "multiprocessing.forkserver", "concurrent.futures")
    cold, warm = bench.both("train.py")
    assert cold[0] == 0
    assert warm == cold


def test_random_numbers_and_keys_are_each_workers_own(bench, tmp_path):
    (tmp_path / "train.py").write_text(
        "import json, multiprocessing, random, tempfile, uuid\n"
        "print(json.dumps([random.random(), multiprocessing.current_process().authkey.hex(), uuid.uuid4().hex,\n"
        "    next(tempfile._get_candidate_names())]))"
    )
    bench.imports = ("random", "multiprocessing", "uuid", "tempfile")
    launch = bench.launch("train.py")
    bench.stand_by(launch, launch)
    first, second = (json.loads(bench.take(launch)[1]()[1]) for _ in range(2))
    assert [a == b for a, b in zip(first, second, strict=True)] == [False] * 4


def test_numpy_is_seeded_again(bench, tmp_path):
    pytest.importorskip("numpy")
    (tmp_path / "train.py").write_text("import numpy; print(numpy.random.random())")
    bench.imports = ("numpy",)
    launch = bench.launch("train.py")
    bench.stand_by(launch, launch)
    (code, first, _), (_, second, _) = (bench.take(launch)[1]() for _ in range(2))
    assert code == 0
    assert first != second


def test_what_imports_print_is_printed_by_each_worker(bench, tmp_path):
    (tmp_path / "loud.py").write_text(
        "import os, sys, warnings\nprint('out')\nos.write(2, b'raw\\n')\nwarnings.warn('old', FutureWarning)"
    )
    (tmp_path / "train.py").write_text("import loud; print('script')")
    bench.imports = ("loud",)
    launch = bench.launch("train.py")
    bench.stand_by(launch, launch)
    cold = bench.cold(launch)
    assert "FutureWarning: old" in cold[2]
    assert [bench.take(launch)[1]() for _ in range(2)] == [cold] * 2


def test_limits_and_processors_are_those_of_the_start(bench, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, resource; print(resource.getrlimit(resource.RLIMIT_CORE), sorted(os.sched_getaffinity(0)))"
    )
    launch = bench.launch("train.py")
    bench.stand_by(launch)
    before = resource.getrlimit(resource.RLIMIT_CORE)
    one = max(os.sched_getaffinity(0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
    try:
        _, end = bench.take(replace(launch, processors=frozenset({one})))
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
    assert end()[1] == f"({0}, {before[1]}) [{one}]\n"


def test_each_worker_has_its_own_arguments_and_variables(bench, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, sys; print(sys.argv[1:], os.environ['LOCAL_RANK'], os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    bench.serve(bench.launch("train.py", "--rank", "${local_rank}"))
    bench.prepare(2)
    for rank in range(2):
        variables = {"LOCAL_RANK": str(rank), "CUDA_VISIBLE_DEVICES": str(7 - rank)}
        _, end = bench.take(bench.launch("train.py", "--rank", rank, rank=rank, **variables))
        assert end() == (0, f"['--rank', '{rank}'] {rank} {7 - rank}\n", "")


# --- where it is not forked


@pytest.mark.parametrize(
    ("words", "different", "named"),
    [
        (["train.py"], {"OMP_NUM_THREADS": "3"}, "its environment (OMP_NUM_THREADS)"),
        (["train.py"], {"LD_PRELOAD": "libc.so.6", "PYTHONHASHSEED": "1"}, "(LD_PRELOAD, PYTHONHASHSEED)"),
        (["other.py"], {}, "its command"),
        (["-m", "train"], {}, "its command"),
    ],
)
def test_a_worker_that_would_differ_is_started_by_exec(bench, lines, words, different, named):
    bench.stand_by(bench.launch(lines))
    assert bench.pool.start(bench.launch(*words, **different)) is None
    (line,) = bench.notices
    assert "local rank 0 is not forked, but started by exec: " in line
    assert named in line
    assert bench.pool.start(bench.launch(*words, rank=1, **different)) is None
    assert len(bench.notices) == 1
    bench.pool.round_started()  # nothing was forked: the interpreter is of no use
    assert not bench.pool.pids()


def test_so_is_one_in_another_folder_and_the_one_with_the_terminal(bench, lines, tmp_path, monkeypatch):
    launch = bench.launch(lines)
    bench.stand_by(launch)
    assert bench.pool.start(replace(launch, terminal=True)) is None
    assert not bench.notices
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert bench.pool.start(launch) is None
    assert "the working directory" in bench.notices[0]


def test_variables_that_are_read_late_are_few():
    assert is_read_late("RANK")
    assert is_read_late("ELASTIC_ROUND")
    assert is_read_late("NCCL_DEBUG")
    for name in ("OMP_NUM_THREADS", "LD_PRELOAD", "PYTHONPATH", "PYTORCH_CUDA_ALLOC_CONF", "HF_HUB_OFFLINE", "LANG"):
        assert not is_read_late(name)


HINDRANCES = {
    "thread": ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "1 thread(s)"),
    "process": ("import subprocess\nsubprocess.Popen(['sleep', '600'])", "have started a process"),
    "socket": ("import socket\nkept = socket.socketpair()", "a descriptor that workers can't share (socket:"),
    "device": ("kept = open('/dev/loop-control')", "have opened the device /dev/loop-control"),
    "failure": ("raise OSError('no such lib')", "import hinders: OSError: no such lib"),
    "exit": ("import os\nos._exit(7)", "3 interpreters that fork them have ended, the last one with exit code 7"),
    "signal": ("import os\nos.kill(os.getpid(), 9)", "have ended, the last one with signal 9"),
}


@pytest.mark.parametrize("how", HINDRANCES)
def test_imports_that_hinder_forks_are_named(bench, lines, tmp_path, how):
    source, named = HINDRANCES[how]
    if how == "device" and not os.access("/dev/loop-control", os.R_OK):
        pytest.skip("no harmless device here")
    (tmp_path / "hinders.py").write_text(source)
    bench.imports = ("hinders",)
    launch = bench.launch(lines)
    bench.serve(launch)
    bench.prepare(1)
    (line,) = bench.notices
    assert line.startswith("workers are not forked (--standby): ")
    assert line.endswith("; they are started by exec")
    assert named in line
    assert bench.pool.start(launch) is None
    assert not bench.pool.pids()


def test_threads_that_end_at_a_fork_are_no_hindrance(bench, tmp_path):
    (tmp_path / "train.py").write_text("import os; print(len(os.listdir('/proc/self/task')))")
    (tmp_path / "pool.py").write_text(
        "import os, threading\nover = threading.Event()\nworker = threading.Thread(target=over.wait)\nworker.start()\n"
        "os.register_at_fork(before=lambda: (over.set(), worker.join()))"
    )
    bench.imports = ("pool",)
    launch = bench.launch("train.py")
    bench.stand_by(launch)
    assert bench.take(launch)[1]() == (0, "1\n", "")


def test_where_this_process_adopts_nothing_nothing_is_forked(bench, lines):
    set_subreaper(False)
    launch = bench.launch(lines)
    bench.serve(launch)
    bench.prepare(1)
    assert "can't be the parent of orphans" in bench.notices[0]
    assert bench.pool.start(launch) is None


# --- the server


def test_workers_wait_for_the_imports(bench, lines, tmp_path):
    (tmp_path / "slow.py").write_text("import time, os\nwhile not os.path.exists('go'): time.sleep(0.01)")
    bench.imports = ("slow",)
    launch = bench.launch(lines)
    bench.serve(launch)
    done = []
    bench.pool.prepare(1, lambda: done.append(True))
    bench.reactor.turn(0.05)
    assert not done
    assert bench.pool.start(launch) is None  # started by exec: it can't wait any longer
    (tmp_path / "go").write_text("")
    bench.turn_until(lambda: done)
    assert bench.take(launch)[1]() == (0, "0\n", "")


def test_forks_that_were_not_used_are_used_next(bench, lines):
    launch = bench.launch(lines)
    bench.stand_by(launch, launch)
    before = bench.pool.pids()
    first, end = bench.take(launch)
    end()
    bench.prepare(3)
    assert bench.pool.waiting_count == 3
    assert before - {first.pid} <= bench.pool.pids()


def test_forks_of_the_next_round_are_made_as_soon_as_workers_have_started(bench, lines):
    launch = bench.launch(lines)
    bench.stand_by(launch, launch)
    ends = [bench.take(launch)[1] for _ in range(2)]
    assert bench.pool.waiting_count == 0
    bench.pool.round_started()
    bench.turn_until(lambda: bench.pool.waiting_count == 2 and not bench.pool._forking)
    before = bench.pool.pids()
    done = []
    bench.pool.prepare(2, lambda: done.append(True))
    assert done  # at once: the next round waits for nothing
    assert bench.pool.pids() == before
    assert [end() for end in ends] == [(0, "0\n", "")] * 2


def test_a_round_that_starts_meanwhile_waits_for_them(bench, lines):
    launch = bench.launch(lines)
    bench.stand_by(launch)
    bench.take(launch)[1]()
    bench.pool.round_started()
    bench.prepare(1)
    assert bench.pool.waiting_count == 1
    assert bench.take(launch)[1]() == (0, "0\n", "")


def test_none_are_made_for_workers_that_differ_nor_without_a_next_round(bench, lines):
    launch = bench.launch(lines)
    bench.stand_by(launch, launch, launch)
    bench.take(launch)[1]()
    assert bench.pool.start(bench.launch("other.py", rank=1)) is None
    assert bench.pool.start(bench.launch("other.py", rank=2)) is None
    bench.pool.round_started()
    bench.turn_until(lambda: not bench.pool._forking)
    assert bench.pool.waiting_count == 2  # of the first three, and enough for the one that can be forked
    bench.ahead = False
    bench.stand_by(launch)
    bench.take(launch)[1]()
    bench.pool.round_started()
    assert not bench.pool._forking
    assert bench.pool.waiting_count == 0


def test_a_fork_that_has_ended_while_it_waited_is_replaced(bench, lines):
    launch = bench.launch(lines)
    bench.stand_by(launch, launch)
    victim = next(iter(bench.pool._waiting))
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: state_of(victim) == "Z")
    bench.prepare(2)
    assert bench.pool.waiting_count == 2
    assert victim not in bench.pool.pids()
    assert state_of(victim) is None
    assert [bench.take(launch)[1]() for _ in range(2)] == [(0, "0\n", "")] * 2


def test_a_fork_that_died_unseen_is_replaced_by_another(bench, lines):
    launch = bench.launch(lines)
    bench.stand_by(launch, launch)
    victim = next(iter(bench.pool._waiting))
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: state_of(victim) == "Z")
    process, end = bench.take(launch)
    assert process.pid != victim
    assert end() == (0, "0\n", "")


def test_a_server_that_is_killed_is_replaced_and_its_workers_live_on(bench, tmp_path):
    (tmp_path / "train.py").write_text("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint(1)")
    launch = bench.launch("train.py")
    bench.stand_by(launch)
    _, end = bench.take(launch)
    (server,) = bench.pool.pids()
    os.kill(server, signal.SIGKILL)
    bench.turn_until(lambda: bench.pool.pids() - {server})
    bench.prepare(1)
    (tmp_path / "go").write_text("")
    assert end() == (0, "1\n", "")
    assert bench.take(launch)[1]() == (0, "1\n", "")
    assert not bench.notices


def test_more_workers_than_a_message_holds(bench, lines):
    launch = bench.launch(lines)
    bench.stand_by(*[launch] * 103)
    ends = [bench.take(launch)[1] for _ in range(3)]
    assert ends[0]() == (0, "0\n", "")


# --- the whole launcher

WORKER = """
import json, os, sys, time
sys.stdout.write(json.dumps({"marked": "marker" in sys.modules, "rank": os.environ["RANK"], "pid": os.getpid(),
    "round": os.environ["ELASTIC_ROUND"], "parent": os.getppid()}) + os.linesep)
sys.stdout.flush()
exec(sys.argv[1])
"""


@pytest.fixture
def forked(elastic, script, tmp_path):
    (tmp_path / "marker.py").write_text("")

    def start(then, *options, imports="marker", workers=2):
        return elastic(
            *("--standby", "--standby-imports", imports, "--nproc-per-node", str(workers), *options),
            *(script(WORKER), then),
            env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        )

    return start


def test_the_first_start_and_each_restart_fork(forked):
    then = "time.sleep(600) if os.environ['ELASTIC_ROUND'] in '01' else None"
    agent = forked(then, "--max-restarts", "2", "--restart-backoff", "0", "--timings")
    for round_ in range(2):
        wait_for(lambda round_=round_: len(agent.lines()) == 2 * round_ + 2, what=f"the workers\n{agent.err}")
        os.kill(agent.lines()[-1]["pid"], signal.SIGKILL)
    assert agent.wait() == 0
    assert wait_for(lambda: not agent.survivors())
    assert len(agent.lines()) == 6
    assert all(line["marked"] and line["parent"] == agent.pid for line in agent.lines())
    assert agent.err.count("spawn (2 forked) ") == 3
    assert "not forked" not in agent.err


def test_a_hindrance_is_one_line_and_spares_take_over(forked, tmp_path):
    (tmp_path / "busy.py").write_text("import marker, subprocess, os\nsubprocess.Popen(['sleep', '600'])")
    agent = forked("time.sleep(600)", "--max-restarts", "1", "--timings", imports="busy")
    wait_for(lambda: len(agent.lines()) == 2, what=f"the workers\n{agent.err}")
    assert [line["marked"] for line in agent.lines()] == [False, False]
    assert agent.err.count("workers are not forked (--standby): the imports have started a process") == 1
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 128 + signal.SIGTERM
    assert "spawn (2 by exec) " in agent.err
    assert wait_for(lambda: not agent.survivors())


def test_output_and_failure_go_where_a_workers_go(forked, tmp_path):
    agent = forked("1 / 0 if os.environ['RANK'] == '1' else time.sleep(600)", "--tee", "3", "--log-dir", tmp_path / "l")
    assert agent.wait() == 1
    incident = json.dumps(agent.incident())
    assert "ZeroDivisionError" in incident
    assert "spare.py" not in incident
    assert "spare.py" not in agent.err
    (log,) = (tmp_path / "l").glob("*/attempt_0/1/stderr.log")
    assert log.read_text().startswith('Traceback (most recent call last):\n  File "')
    assert "[default1]:ZeroDivisionError" in agent.err
    assert wait_for(lambda: not agent.survivors())


def test_the_agents_death_ends_workers_and_server(forked):
    agent = forked("os.fork(); time.sleep(600)")
    wait_for(lambda: len(agent.lines()) == 2, what=f"the workers\n{agent.err}")
    assert len(agent.survivors()) >= 3
    agent.signal(signal.SIGKILL)
    assert agent.wait() == -signal.SIGKILL
    wait_for(lambda: not agent.survivors(), within_s=2.0, what="the end of workers and server")


def test_a_stop_while_the_imports_run_ends_all(forked, tmp_path):
    (tmp_path / "endless.py").write_text(
        "import time, pathlib\npathlib.Path(__file__ + '.on').touch()\ntime.sleep(600)"
    )
    agent = forked("pass", imports="endless")
    wait_for((tmp_path / "endless.py.on").exists, what=f"the imports\n{agent.err}")
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 128 + signal.SIGTERM
    assert not agent.lines()
    assert wait_for(lambda: not agent.survivors())


def test_workers_get_stop_signals_as_fresh_ones_do(forked):
    code = "print(sorted(__import__('signal').pthread_sigmask(0, ())), flush=True)"
    agent = forked(code, workers=1)
    assert agent.wait() == 0, agent.err
    assert "[]" in agent.out.splitlines()


# --- functions of hooks


def test_what_hooks_need_in_workers_is_imported_once_before_the_next_round(bench, tmp_path):
    late = tmp_path / "more" / "late"
    prompt = tmp_path / "more" / "prompt"
    for package in (late, prompt):
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("import os\nimported_by = os.getpid()\n")
        (package / "start.py").write_text("def begin():\n    pass\n")
    (prompt / "ahead.py").write_text("from prompt import start\n")
    (tmp_path / "prompt.py").write_text("1 / 0  # the script's directory hides nothing from hooks\n")
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "for name in ('prompt', 'late'):\n"
        "    print(f'{name}.start' in sys.modules, sys.modules[name].imported_by == os.getpid())\n"
    )
    variables = {"PYTHONPATH": str(tmp_path / "more"), "ELASTIC_STARTUP": "prompt.start:begin,late.start:begin"}
    launch = bench.launch("train.py", **variables)
    bench.stand_by(launch)
    assert bench.take(launch)[1]() == (0, "True True\n" * 2, "")  # only a worker's start names the functions
    bench.pool.round_started()
    bench.prepare(1)
    assert bench.take(launch)[1]() == (0, "True False\nTrue True\n", "")
    assert not (tmp_path / "error.0.json.note").exists()


def hooks_package(folder, ahead):
    """Write a script, and the package of a hook with this module `ahead`. Return a worker's variables."""
    (folder / "train.py").touch()
    package = folder / "more" / "odd"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "start.py").write_text("def begin():\n    pass\n")
    (package / "ahead.py").write_text(ahead)
    return {"PYTHONPATH": str(folder / "more"), "ELASTIC_STARTUP": "odd.start:begin"}


def test_a_hook_s_module_that_exits_leaves_the_interpreter_alone(bench, tmp_path):
    variables = hooks_package(tmp_path, "raise SystemExit('no device')\n")
    launch = bench.launch("train.py", **variables)
    bench.stand_by(launch)
    server = bench.pool.pids()
    assert bench.take(launch)[1]()[0] == 0
    bench.pool.round_started()
    bench.prepare(1)
    assert bench.take(launch)[1]()[0] == 0
    assert server & bench.pool.pids()


def test_a_hook_s_module_that_starts_a_thread_ends_the_forks(bench, tmp_path):
    variables = hooks_package(
        tmp_path, "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    launch = bench.launch("train.py", **variables)
    bench.stand_by(launch)
    assert bench.take(launch)[1]()[0] == 0
    bench.pool.round_started()
    bench.prepare(1)
    assert any("the imports have started 1 thread(s)" in line for line in bench.notices), bench.notices
    assert bench.pool.waiting_count == 0
