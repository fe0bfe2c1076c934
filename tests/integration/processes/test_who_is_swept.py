"""Whom a sweep ends, and whom not: what a worker started, never what was there before or was attached."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from group_kit import GroupKit
from patience import patience
from proc_kit import is_alive, state_of
from support import ELASTIC, processes_with, wait_for

WORKER = """
import json, os, subprocess, sys, time
def read(name):
    while not os.path.exists(name):
        time.sleep(0.01)
    return int(open(name).read())
def is_alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
def zombies():
    children = open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split()
    return sum(not is_alive(pid) for pid in children)
others = [read(name) for name in sys.argv[1:]]
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    # Without a trace in its environment, its session or its parent; the shell in between has ended before we do.
    hidden = "env -i setsid sh -c 'setsid sleep 600 & echo $! > hidden.new; mv hidden.new hidden'"
    subprocess.run(["sh", "-c", hidden + " &"], check=True)
    read("hidden")
    open("go", "w").close()
    read("late")
    sys.exit(7)
end_s = time.monotonic() + 10
while zombies() and time.monotonic() < end_s:
    time.sleep(0.01)
alive = {name: is_alive(pid) for name, pid in zip(sys.argv[1:], others)}
line = json.dumps({"hidden": is_alive(read("hidden")), "late": is_alive(read("late")), "zombies": zombies(), **alive})
os.write(1, line.encode() + b"\\n")
"""

# A daemon that itself starts another one later, and ends; and a job of the shell's own session that ends.
DAEMON = """
setsid sleep 600 >/dev/null 2>&1 & echo $! > daemon.new; mv daemon.new daemon
setsid sh -c 'while [ ! -e go ]; do sleep 0.02; done; setsid sleep 600 & echo $! > late.new; mv late.new late' \
    >/dev/null 2>&1 &
"""
JOB = "sh -c 'while [ ! -e go ]; do sleep 0.02; done' &"


def pids_in(folder):
    return [int((folder / name).read_text()) for name in ("daemon", "late", "hidden") if (folder / name).exists()]


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    for pid in pids_in(tmp_path):
        with suppress(OSError):  # gone; or a number of another namespace, which here is a kernel thread's
            if os.readlink(f"/proc/{pid}/cwd") == str(tmp_path):
                os.kill(pid, signal.SIGKILL)


def environment(folder):
    (folder / "runtime").mkdir(mode=0o700, exist_ok=True)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "TORCHELASTIC_"))}
    return inherited | {"XDG_RUNTIME_DIR": str(folder / "runtime")}


def run(folder, *command, **options):
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
        **options,
    )


def test_what_the_shell_had_started_before_it_became_the_agent_lives_on(folder, script):
    line = [*ELASTIC, "--max-restarts", "1", str(script(WORKER)), "daemon"]
    result = run(folder, "bash", "-c", f'{DAEMON}{JOB}\nexec "$@"', "bash", *line)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"daemon": True, "late": True, "hidden": False, "zombies": 0}
    daemon, late, hidden = pids_in(folder)
    assert is_alive(daemon), "ended with the run"
    assert is_alive(late), "ended with the run"
    assert not is_alive(hidden)


@pytest.fixture
def namespaces():
    """The words before a command that make it process 1 of a namespace of its own."""
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    words = ["unshare", *root, "--mount", "--pid", "--fork", "--kill-child"]
    try:
        subprocess.run([*words, "--mount-proc", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no namespaces here")
    return words


def test_what_others_attach_to_process_1_lives_on(folder, script, namespaces):
    (folder / "job.sh").write_text(f'{JOB}\nexec "$@"')
    line = [*ELASTIC, "--max-restarts", "1", str(script(WORKER)), "daemon"]
    with subprocess.Popen(
        [*namespaces, "--mount-proc", "bash", folder / "job.sh", *line],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as outer:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        (process_1,) = wait_for(lambda: children.read_text().split(), what="process 1")
        program = f"{sys.executable}\0".encode()  # which the shell, too, has among its arguments
        wait_for(lambda: Path(f"/proc/{process_1}/cmdline").read_bytes().startswith(program), what="its exec")
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        attach = ["nsenter", *user, "-t", process_1, "-p", "-m", f"--wd={folder}", "bash", "-c", DAEMON]
        subprocess.run(attach, check=True, timeout=patience(20), stdout=subprocess.DEVNULL)
        out, err = outer.communicate(timeout=patience(60))
    assert outer.returncode == 0, err
    assert json.loads(out) == {"daemon": True, "late": True, "hidden": False, "zombies": 0}


# --- what is left on purpose

KEEPER = """
import json, os, subprocess, sys
started = {}
for kind, session in (("kept", True), ("near", False), ("gone", True), ("gone near", False)):
    env = dict(os.environ, ELASTIC_KEEP="1" if kind in ("kept", "near") else "0")
    started[kind] = subprocess.Popen(["sleep", "600"], env=env, start_new_session=session).pid
line = {"env": os.environ.get("ELASTIC_KEEP"), **started}
os.write(1, json.dumps(line).encode() + b"\\n")
if sys.argv[1:]:
    sys.stdin.read()
sys.exit(7 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
"""


def states(line):
    return {kind: is_alive(line[kind]) for kind in ("kept", "near", "gone", "gone near")}


SPARED = {"kept": True, "near": True, "gone": False, "gone near": False}


def test_what_is_left_on_purpose_outlives_restart_and_run_and_is_listed(elastic, script):
    agent = elastic("--max-restarts", "1", script(KEEPER), env={"ELASTIC_KEEP": "1"})
    assert agent.wait() == 0
    first, second = agent.lines()
    assert [states(first), states(second)] == [SPARED, SPARED]
    assert first["env"] is None, "the agent's own would make everything stay"
    listed = sorted((line[kind], "sleep") for line in (first, second) for kind in ("kept", "near"))
    text = ", ".join(f"{pid} {name}" for pid, name in listed)
    assert f"elastic: left running on purpose (ELASTIC_KEEP=1): {text}\n" in agent.err


def test_what_is_left_on_purpose_outlives_a_stop(elastic, script):
    agent = elastic(script(KEEPER), "wait", stdin=subprocess.PIPE)
    (line,) = wait_for(agent.lines)
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 143
    agent.process.stdin.close()
    assert states(line) == SPARED
    assert "left running on purpose" in agent.err


def test_the_guard_spares_what_is_left_on_purpose(elastic, script):
    agent = elastic(script(KEEPER), "wait", stdin=subprocess.PIPE)
    (line,) = wait_for(agent.lines)
    agent.signal(signal.SIGKILL)
    agent.wait()
    agent.process.stdin.close()
    wait_for(lambda: states(line) == SPARED, within_s=5, what="all to be gone but those two")
    wait_for(lambda: not guards_of(agent), what="the guard's end")
    assert states(line) == SPARED


HIDER = """
import os, subprocess, sys
hidden = "env -i setsid sh -c 'setsid sleep 600 >/dev/null 2>&1 & echo $! > hidden.new; mv hidden.new hidden'"
subprocess.run(["sh", "-c", hidden + " &"], check=True)
sys.stdin.read()
"""


def test_the_guard_finds_what_has_cleared_its_environment_and_left_everything(elastic, script, folder):
    agent = elastic(script(HIDER), stdin=subprocess.PIPE, cwd=folder)
    wait_for((folder / "hidden").exists)
    (hidden,) = pids_in(folder)
    wait_for(lambda: _parent(hidden) == agent.pid, what="its adoption")
    assert is_alive(hidden)
    agent.signal(signal.SIGKILL)
    agent.wait()
    agent.process.stdin.close()
    wait_for(lambda: not is_alive(hidden), within_s=5, what="its end")


def guards_of(agent):
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == agent.pid]


def _parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


# --- the library

LIBRARY = """
import sys
from elastic_core.launcher import LaunchConfig, elastic_launch
elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="x"), sys.executable)(sys.argv[1])
"""
TWO = """
import os, time
if os.environ["LOCAL_RANK"] == "0":
    open("pid0.new", "w").write(str(os.getpid()))
    os.rename("pid0.new", "pid0")
else:
    while not os.path.exists("go"):
        time.sleep(0.02)
"""
STRANGER = """
import os, subprocess, sys, time
library = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
while not os.path.exists("pid0"):
    time.sleep(0.02)
pid0 = int(open("pid0").read())
while os.path.exists(f"/proc/{pid0}"):
    time.sleep(0.02)
for _ in range(100):
    open("/proc/sys/kernel/ns_last_pid", "w").write(str(pid0 - 1))
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    if stranger.pid == pid0:
        break
    stranger.kill()
    stranger.wait()
assert stranger.pid == pid0
open("go", "w").close()
print(library.wait(), stranger.poll())
"""


def test_a_stranger_with_the_number_of_an_ended_worker_outlives_the_library_run(folder, script, namespaces):
    if not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK):
        pytest.skip("no say in which number comes next")
    (folder / "lib.py").write_text(STRANGER)
    line = [sys.executable, folder / "lib.py", LIBRARY, script(TWO)]
    result = run(folder, *namespaces, "--mount-proc", *line)
    assert result.stdout == "0 None\n", result.stderr


@pytest.fixture
def kit(tmp_path):
    kit = GroupKit(tmp_path)
    yield kit
    kit.close()
    for pid in processes_with(f"ELASTIC_INCARNATION={kit.incarnation}"):
        os.kill(pid, signal.SIGKILL)


DETACHED = """
import os, sys
sys.stdin.read(1)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(os.environ["FOLDER"] + "/daemon.new", "w").write(str(os.getpid()) + chr(10))
        os.rename(os.environ["FOLDER"] + "/daemon.new", os.environ["FOLDER"] + "/daemon")
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
import time
while not os.path.exists(os.environ["FOLDER"] + "/daemon"):
    time.sleep(0.01)
"""


def test_the_library_finds_a_daemon_that_has_cleared_its_environment(kit):
    reading, writing = os.pipe()
    stdin = os.dup(0)
    os.dup2(reading, 0)  # a worker has our stdin
    try:
        kit.start(DETACHED)
    finally:
        os.dup2(stdin, 0)
        for fd in (stdin, reading, writing):
            os.close(fd)  # the worker goes on
    daemon = kit.pid_in("daemon")
    kit.run_until_exits(1)
    assert is_alive(daemon)
    kit.stop()
    assert not is_alive(daemon)


REMAINING = """
import os, time
if os.fork() == 0:
    os.setpgid(0, 0)
    open(os.environ["FOLDER"] + "/daemon.new", "w").write(str(os.getpid()) + chr(10))
    os.rename(os.environ["FOLDER"] + "/daemon.new", os.environ["FOLDER"] + "/daemon")
    os.execve("/bin/sleep", ["sleep", "600"], {})
while not os.path.exists(os.environ["FOLDER"] + "/daemon"):
    time.sleep(0.01)
"""


def test_where_limits_can_not_be_set_whoever_remains_in_a_workers_session_is_found(kit, monkeypatch):
    monkeypatch.setattr("elastic_core.processes.sweep.set_limit", lambda pid, soft: None)
    kit.start(REMAINING)
    daemon = kit.pid_in("daemon")
    kit.run_until_exits(1)
    assert state_of(kit.exits[0].pid) is None, "reaped, its session lives on"
    kit.stop()
    assert not is_alive(daemon)


# --- without /proc

NO_PROC = "elastic: no /proc of this process namespace is mounted: what workers leave behind can't be found"


@pytest.mark.parametrize("shows", ["nothing", "another namespace"])
def test_without_a_proc_of_ours_one_line_says_what_that_means(folder, script, namespaces, shows):
    path = str(script("import os, sys\nsys.exit(7 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)"))
    before = "umount -l /proc; " if shows == "nothing" else ""
    line = [*ELASTIC, "--max-restarts", "1", path]
    result = run(folder, *namespaces, "sh", "-c", f'{before}exec "$@"', "sh", *line)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count(NO_PROC) == 1
