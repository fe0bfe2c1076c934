"""What users do to a launcher without meaning any harm: odd streams, odd names, full disks, threads of their own."""

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

from elastic_core.launcher.logs import KEPT_ROUNDS
from patience import patience
from proc_kit import children, command_line
from support import ELASTIC, lacks, places_of_runs, wait_for

LINE = "import os\nos.write(1, b'{\"rank\": %s}\\n' % os.environ['RANK'].encode())\n"
STREAMS = """
import os, sys
with open(sys.argv[1], "w") as out:
    for fd in (0, 1, 2):
        out.write(os.readlink(f"/proc/self/fd/{fd}") + chr(10))
sys.exit(7)
"""


# --- streams


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("tee", ["0", "3"])
def test_closed_standard_streams_are_nobodys_log_file(elastic, script, tmp_path, closed, tee):
    seen = tmp_path / "seen"
    agent = elastic(
        "--tee", tee, script(STREAMS), seen, preexec_fn=lambda: [os.close(fd) for fd in closed]
    )  # fmt: skip
    assert agent.wait(20) == 7
    targets = seen.read_text().splitlines()
    if tee == "0":
        assert {targets[fd] for fd in closed} == {"/dev/null"}
    assert not [target for target in targets if "fault" in target or "anon_inode" in target]
    assert agent.err == "" if 2 in closed else "exit code 7" in agent.err


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["run", "--dry-run", __file__], ["plugins"]])
def test_commands_that_print_do_so_into_nothing(args):
    command = [sys.executable, "-m", "elastic_core", *args]
    assert subprocess.run(["sh", "-c", f"{shlex.join(command)} >&-"], check=False, timeout=patience(20)).returncode == 0


def test_reader_that_goes_away_ends_neither_workers_nor_the_run(elastic, script, tmp_path):
    reading, writing = os.pipe()
    path = script("import os\nfor n in range(20_000):\n    print('line', n)\nopen(os.environ['DONE'], 'w').close()\n")
    agent = elastic(
        "--tee", "3", "--log-dir", tmp_path / "logs", path, env={"DONE": str(tmp_path / "done")}, stdout=writing
    )
    os.close(writing)
    assert os.read(reading, 100).startswith(b"[default0]:line 0\n")
    os.close(reading)
    assert agent.wait(20) == 0, agent.err
    assert (tmp_path / "done").exists()
    (log,) = (tmp_path / "logs").glob("*/attempt_0/0/stdout.log")
    assert len(log.read_bytes().splitlines()) == 20_000


# --- names


def test_run_id_that_is_no_text_is_refused(elastic, script):
    agent = elastic("--rdzv-id", b"caf\xe9/\xff".decode("utf-8", "surrogateescape"), script("raise SystemExit(7)\n"))
    assert agent.wait(20) == 2
    (line,) = agent.err.splitlines()
    assert "--rdzv-id: 'caf\\udce9/\\udcff'; expected a name of printable characters. Try:" in line


def test_exception_and_script_name_that_are_no_text_are_reported(elastic, script):
    path = script("raise ValueError('no such file: \\udcff\\ud800')\n", name="tr\udcffin.py")
    agent = elastic(str(path))
    assert agent.wait(20) == 1
    assert "ValueError: no such file: \\udcff\\ud800" in agent.err
    assert agent.incident()["first"]["error"]["type"] == "ValueError"


def test_role_with_a_line_end_is_refused(elastic, script):
    agent = elastic("--role", "a\nb", "--tee", "3", script(LINE))
    assert agent.wait(20) == 2
    (line,) = agent.err.splitlines()
    assert "--role: 'a\\nb'; expected a name of printable characters. Try:" in line


# --- limits


def test_sixty_four_workers_on_few_cores(elastic, script):
    agent = elastic("--nproc-per-node", "64", "--tee", "3", "--log-dir", os.devnull, script(LINE))
    assert agent.wait(60) == 0, agent.err
    ranks = [json.loads(line.partition(":")[2])["rank"] for line in agent.out.splitlines()]
    assert sorted(ranks) == list(range(64))


def test_too_few_descriptors_are_named_with_what_to_raise(elastic, script):
    agent = elastic(
        "--nproc-per-node", "16", "--tee", "3", script(LINE),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32)),
    )  # fmt: skip
    assert agent.wait(20) == 1
    words = " ".join(agent.err.split())
    assert "EMFILE: Too many open files. Try: raise the limit on open files (ulimit -n)" in words
    assert agent.survivors() == []


def _on_a_tiny_disk(folder, size="64k"):
    """Return what to put before a command to have a full-able file system at `folder`, gone when the command ends."""
    folder.mkdir()
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    mount = f'mount -t tmpfs -o size={size} tmpfs {shlex.quote(str(folder))} && exec "$@"'
    prefix = [*unshare, "sh", "-c", mount, "sh"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode:
        lacks("leave to mount a file system")
    return prefix


# The last words in one write: workers are started with `-u`, and between two a line of the agent's may come.
CHATTY = "import os\nfor n in range(3000):\n    print('x' * 100)\nos.write(2, b'last words\\n')\n"


def run_on_a_tiny_disk(tmp_path, script_path, *args, runtime=None):
    (tmp_path / "runtime").mkdir(mode=0o700)
    return subprocess.run(
        [*_on_a_tiny_disk(tmp_path / "disk"), *ELASTIC, *map(str, args), str(script_path)],
        capture_output=True, text=True, check=False, timeout=patience(60), cwd=tmp_path,
        env=os.environ | places_of_runs(runtime or tmp_path / "runtime"),
    )  # fmt: skip


def test_log_disk_that_fills_up_costs_a_teed_run_its_log_and_one_line(tmp_path, script):
    done = run_on_a_tiny_disk(tmp_path, script(CHATTY), "--log-dir", tmp_path / "disk", "--tee", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("x" * 100) == 3000
    told = [line for line in done.stderr.splitlines() if line.startswith("elastic: ")]
    assert len(told) == 1, done.stderr
    assert "stdout.log" in told[0]
    assert "No space left on device" in told[0]
    assert list((tmp_path / "runtime").glob("elastic-*/*-*")) == []


def test_log_disk_that_fills_up_is_named_when_it_kills_a_worker_that_writes_its_own_log(tmp_path, script):
    done = run_on_a_tiny_disk(tmp_path, script(CHATTY), "--log-dir", tmp_path / "disk", "-r", "3")
    assert done.returncode == 1
    assert "the disk of its log and error files is full" in done.stderr


def test_full_disk_for_the_run_directory_hides_neither_the_report_nor_the_exit_code(tmp_path, script):
    path = script(
        "import os, contextlib\n"
        "fd = os.open(os.environ['XDG_RUNTIME_DIR'] + '/fill', os.O_WRONLY | os.O_CREAT)\n"
        "with contextlib.suppress(OSError):\n    while os.write(fd, bytes(4096)):\n        pass\n"
        "os._exit(9)\n"
    )
    done = run_on_a_tiny_disk(tmp_path, path, runtime=tmp_path / "disk")
    assert done.returncode == 9
    assert "rank 0 (local rank 0)" in done.stderr
    assert "exit code 9; the disk of its log and error files is full" in done.stderr
    assert "the incident could not be written" in done.stderr
    assert "status and journal could not be written" in done.stderr


# --- processes


def test_daemon_with_an_environment_of_its_own_does_not_survive(elastic, script, tmp_path):
    path = script(
        "import os, sys, subprocess\n"
        "daemon = 'import os, sys, time; os.setsid(); '\n"
        "daemon += 'open(sys.argv[1], \"w\").write(str(os.getpid())); time.sleep(600)'\n"
        "subprocess.Popen([sys.executable, '-c', daemon, sys.argv[1]], env={})\n"
        "import time\nwhile not os.path.exists(sys.argv[1]) or not os.path.getsize(sys.argv[1]): time.sleep(0.01)\n"
    )
    pid_file = tmp_path / "pid"
    agent = elastic(path, pid_file)
    assert agent.wait(20) == 0
    pid = int(pid_file.read_text())
    assert not os.path.exists(f"/proc/{pid}")


def test_killed_guard_is_replaced_and_the_new_one_guards(elastic, script):
    agent = elastic("--nproc-per-node", "2", script(LINE + "import time; time.sleep(600)\n"))
    wait_for(lambda: len(agent.lines()) == 2)
    first = wait_for(lambda: _guard_of(agent.pid))
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: _guard_of(agent.pid) not in (None, first))
    agent.signal(signal.SIGKILL)
    agent.wait()
    wait_for(lambda: agent.survivors() == [], within_s=5)


def _guard_of(pid):
    return next((child for child in children(pid) if command_line(child).endswith(b"\0elastic-guard\0")), None)


# --- as a library

LIBRARY = """
import contextlib, os, signal, subprocess, sys, threading
from elastic_core.launcher.job import run_job
from elastic_core.options.resolve import resolve

def settings(script, *, role="x"):
    return resolve({"role": role}, script, [], environ=os.environ).settings

def state():
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    handlers = {signum: signal.getsignal(signum) for signum in signal.valid_signals() if signum not in (9, 19)}
    fds = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # what listed them; a sweep, which may still read, closes its own
            if not os.readlink("/proc/self/fd/" + fd).startswith("/proc/"):
                fds.append(fd)
    return wakeup, handlers, sorted(fds), os.environ.copy(), os.getcwd()

good, bad = sys.argv[1:]
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
before = state()
mine = [subprocess.Popen(["sh", "-c", "exit 9"]), subprocess.Popen(["sleep", "600"])]
assert run_job(settings(good), own_process=False) == 0
assert run_job(settings(bad), own_process=False) == 7
codes = []
threads = [threading.Thread(target=lambda: codes.append(run_job(settings(bad), own_process=False))) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert codes == [7, 7, 7], codes
assert mine[0].wait() == 9
assert mine[1].poll() is None
mine[1].kill()
mine[1].wait()
assert state() == before, (state(), before)
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(5)
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("nothing is left")
"""


def test_library_calls_give_their_caller_everything_back(script, tmp_path):
    (tmp_path / "runtime").mkdir(mode=0o700)
    caller = script(LIBRARY, name="caller.py")
    good, bad = script(LINE, name="good.py"), script("raise SystemExit(7)\n", name="bad.py")
    done = subprocess.run(
        [sys.executable, str(caller), str(good), str(bad)],
        capture_output=True, text=True, check=False, timeout=patience(60),
        env=os.environ | places_of_runs(tmp_path / "runtime"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "nothing is left"


@pytest.mark.parametrize("logs", [False, True])
def test_a_run_that_fails_for_long_does_not_fill_the_disk_with_rounds(elastic, tmp_path, logs):
    rounds = KEPT_ROUNDS + 6
    told = ("--tee", "3") if logs else ()
    agent = elastic("--no-python", "--restart-backoff", "0", "--max-restarts", rounds - 1, *told, "/bin/false")
    assert agent.wait(120) == 1
    (run_dir,) = agent.runtime.glob("elastic-*/*-*")
    folders = {int(path.name.removeprefix("attempt_")) for path in run_dir.glob("attempt_*")}
    incidents = {int(path.stem.removeprefix("incident-")) for path in run_dir.glob("incident-*.json")}
    links = {int(path.parent.name.removeprefix("attempt_")) for path in run_dir.glob("attempt_*/incident.json")}
    kept = {0, *range(rounds - KEPT_ROUNDS + 1, rounds)}
    assert folders == (set(range(rounds)) if logs else kept), "logs that were asked for are kept"
    assert links == incidents == kept
    if logs:
        assert len(list(run_dir.glob("attempt_*/0/stdout.log"))) == rounds
