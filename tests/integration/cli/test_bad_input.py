"""What can't work is refused: one line of what was seen, what was needed and what to try, and nothing is left."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from patience import patience
from ports import free_port
from support import ELASTIC, lacks, processes_with, wait_for

NOBODY = 65534
MARK = "bad-input-test"
WAITS = "import signal; print('waits', flush=True); signal.pause()"


@pytest.fixture
def here():
    """A directory that every user can reach, with a script that works, and one for the runtime files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "train.py").write_text("print('started')\n")
        (folder / "runtime").mkdir(mode=0o700)
        yield folder


@pytest.fixture
def refused(here):
    """Run a command line that must be refused; return the exit code and its one line."""

    def run(*args, env=None, **options):
        mark = f"{MARK}={here}"
        ours = {"XDG_RUNTIME_DIR": str(here / "runtime"), "TMPDIR": str(here / "runtime"), MARK: str(here)}
        done = subprocess.run(
            [*ELASTIC, *map(str, args)], capture_output=True, text=True, timeout=patience(60), check=False,
            stdin=subprocess.DEVNULL, **({"cwd": here, "env": _plain_environment() | ours | (env or {})} | options),
        )  # fmt: skip
        (line,) = done.stderr.splitlines()
        assert done.stdout == ""
        assert re.fullmatch(r"elastic: error: .+\. Try: .+", line), line
        assert list((here / "runtime").glob("elastic-*/*-*")) == []
        assert processes_with(mark) == []
        return done.returncode, line

    return run


def _plain_environment():
    unwanted = ("PET_", "ELASTIC_", "TORCHELASTIC_", "TORCH_ELASTIC_")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--max-restart-s", "1", "train.py"], ["no such option", "--max-restart-s", "--max-restarts"]),
        (["trian.py"], ["'trian.py'", "not found", "Try: train.py"]),
        (["runtime"], ["'runtime'", "a directory without __main__.py"]),
        ([], ["no script"]),
        (["-m", "no_such_package.train"], ["no_such_package", "not found"]),
        (["--no-python", "no-such-program-at-all"], ["no-such-program-at-all", "PATH"]),
        (["--no-python", "./train.py"], ["'./train.py'", "not executable", "chmod"]),
        (["--nnodes", "two", "train.py"], ["--nnodes: 'two'", "a number of nodes or MIN:MAX", "--nnodes 2"]),
        (["--nnodes", "3:2", "train.py"], ["--nnodes: '3:2'", "MIN <= MAX"]),
        (["--nproc-per-node", "0", "train.py"], ["--nproc-per-node: '0'", "1 or more", "--nproc-per-node 1"]),
        (["--nproc-per-node", "-1", "train.py"], ["--nproc-per-node: '-1'", "1 or more", "--nproc-per-node 1"]),
        (["--max-restarts", "some", "train.py"], ["--max-restarts: 'some'", "a whole number", "--max-restarts 0"]),
        (["--shutdown-timeout", "-1", "train.py"], ["--shutdown-timeout: '-1'", "seconds, 0 or more"]),
        (["--debug-rank", "1", "train.py"], ["--debug-rank: '1'", "from 0 to 0", "leave --debug-rank out"]),
        (["--tee", "7", "train.py"], ["--tee: '7'"]),
        (["--log-dir", "train.py", "-r", "3", "train.py"], ["--log-dir: 'train.py'", "this is a file"]),
        (["--log-dir", "train.py/logs", "-r", "3", "train.py"], ["--log-dir", "above it is a file"]),
        (["--run-dir", "train.py", "train.py"], ["--run-dir: 'train.py'", "this is a file"]),
        (["--policy-conf", "x=1", "train.py"], ["'intensity'", "'x'"]),
        (["--run-path", "-m", "train"], ["--run-path", "not a module"]),
        (["--run-path", "--start-method", "frok", "train.py"], ["--start-method: 'frok'", "fork"]),
        (["--rdzv-backend", "redis", "--nnodes", "2", "train.py"], ["no run id", "'redis'", "--rdzv-id NAME"]),
        (["--rdzv-backend", "c10d", "--nnodes", "1:2", "train.py"], ["no run id", "'c10d'", "--rdzv-id NAME"]),
        (["--rdzv-backend", "redis", "--rdzv-conf", "lease_tll=2", "train.py"], ["'lease_tll'", "lease_ttl="]),
        (["--rdzv-backend", "redis", "--rdzv-conf", "lease_ttl=0.01", "train.py"], ["lease_ttl: 0.01", "at least"]),
        (["--rdzv-backend", "redis", "--rdzv-endpoint", "amqp://h", "train.py"], ["'amqp'", "redis://"]),
        (["--allow-mismatch", "nprocs", "train.py"], ["'nprocs'", "--allow-mismatch nproc"]),
        (["--on-store-loss", "die", "train.py"], ["--on-store-loss: 'die'", "keep, fail"]),
        (["--rdzv-backend", "redis", "--rdzv-id", "", "train.py"], ["--rdzv-id: ''", "a name of printable characters"]),
        (["--rdzv-backend", "redis", "--rdzv-id", "\udcff", "train.py"], [r"--rdzv-id: '\udcff'", "printable"]),
        (["--rdzv-id", "a\nb", "train.py"], [r"--rdzv-id: 'a\nb'", "printable"]),
        (["--node-id", "evil\x1b[2J\nFAKE", "train.py"], [r"--node-id: 'evil\x1b[2J\nFAKE'", "printable"]),
        (["--node-id", "\udcff", "train.py"], [r"--node-id: '\udcff'", "printable"]),
        (["--node-id", "", "train.py"], ["--node-id: ''", "printable"]),
        (["--role", "turned \u202eup", "train.py"], [r"--role: 'turned \u202eup'", "printable"]),
        (["--spares", "many", "train.py"], ["--spares: 'many'", "a whole number", "leave --spares out"]),
    ],
)
def test_usage_errors_end_with_2(refused, args, words):
    code, line = refused(*args)
    assert code == 2
    assert [word for word in words if word not in line] == [], line


def test_a_variable_is_named_as_it_was_given(refused):
    code, line = refused("train.py", env={"PET_MAX_RESTARTS": "many"})
    assert (code, "PET_MAX_RESTARTS: 'many'" in line, "PET_MAX_RESTARTS=0" in line) == (2, True, True), line
    code, line = refused("train.py", env={"PET_DEBUG_RANK": "x"})
    assert (code, "Try: unset PET_DEBUG_RANK" in line) == (2, True), line


def test_gpus_where_none_is_to_be_seen(refused):
    hidden = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "")
    code, line = refused("--nproc-per-node", "gpu", "train.py", env=hidden)
    assert (code, "--nproc-per-node 'gpu'" in line) == (2, True), line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--rdzv-backend", "sqlite"], ["'sqlite'", "not installed", "'local'"]),
        (["--rdzv-backend", "etdc", "--rdzv-endpoint", "h:1"], ["'etdc'", "not installed", "Try: 'etcd'"]),
        (["--policy", "coin-toss"], ["policy 'coin-toss'", "not installed"]),
        (["--rdzv-backend", "broken"], ["'broken'", "broken-dist 1.5", "RuntimeError: half installed"]),
        (["--policy", "quits"], ["'quits'", "broken-dist 1.5", "SystemExit"]),
        (["--policy", "gone"], ["'gone'", "broken-dist 1.5", "ModuleNotFoundError", "broken-dist"]),
    ],
)
def test_missing_and_broken_plugins_end_with_3(refused, here, args, words):
    code, line = refused(*args, "train.py", env={"PYTHONPATH": str(_broken_distribution(here))})
    assert code == 3
    assert [word for word in words if word not in line] == [], line


def _broken_distribution(here):
    site = here / "site"
    info = site / "broken_dist-1.5.dist-info"
    info.mkdir(parents=True)
    (site / "half_installed.py").write_text("raise RuntimeError('half installed')\n")
    (site / "quitter.py").write_text("import sys\nsys.exit(0)\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-dist\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(
        "[elastic_core.rendezvous]\nbroken = half_installed:Handler\n"
        "[elastic_core.failure]\nquits = quitter:Policy\ngone = nowhere_at_all:Policy\n"
    )
    return site


@pytest.fixture
def as_nobody(here):
    """How to start something as a user whom file permissions bind."""
    if os.geteuid() != 0:
        return {}
    probe = [sys.executable, "-c", "import elastic_core.launcher.job"]
    try:
        subprocess.run(probe, user=NOBODY, group=NOBODY, extra_groups=[], check=True, capture_output=True, cwd="/")
    except (OSError, subprocess.CalledProcessError):
        lacks("an interpreter that another user can run")
    (here / "runtime").chmod(0o777)
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def test_an_unreadable_script_is_named(refused, here, as_nobody):
    (here / "train.py").chmod(0o000)
    code, line = refused("train.py", **as_nobody)
    assert (code, "script 'train.py' can't be read" in line, "chmod u+r" in line) == (2, True, True), line


@pytest.mark.parametrize("option", ["--log-dir", "--run-dir"])
def test_a_directory_without_write_permission_is_named(refused, here, as_nobody, option):
    locked = here / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    code, line = refused(option, "locked/logs", "-r", "3", "train.py", **as_nobody)
    assert code == 2
    assert f"{option} 'locked/logs'" in line
    assert "read-only" in line


def test_path_entries_and_temp_directories_that_we_may_not_enter_are_passed_over(refused, here, as_nobody):
    closed = here / "closed"
    (closed / "sub").mkdir(parents=True)
    closed.chmod(0o700 if as_nobody else 0o000)
    away = {"PATH": f"{closed / 'sub'}:/bin", "TMPDIR": str(closed / "sub"), "XDG_RUNTIME_DIR": str(closed / "sub")}
    code, line = refused("--no-python", "no-such-program", env=away, **as_nobody)
    assert (code, "not found on PATH" in line) == (2, True), line
    code, line = refused("--no-python", f"{closed}/sub/program", env=away, **as_nobody)
    assert (code, "Permission denied" in line) == (2, True), line
    code, line = refused("--run-dir", f"{closed}/sub/x", "train.py", env=away, **as_nobody)
    assert (code, "Permission denied" in line) == (2, True), line
    done = subprocess.run(
        [*ELASTIC, str(here / "train.py")], capture_output=True, text=True, timeout=patience(60), check=False, cwd="/",
        env=_plain_environment() | away, **as_nobody,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")
    closed.chmod(0o700)


@pytest.mark.parametrize("args", [["train.py"], ["--no-python", "./train.py"], ["-m", "no_such_module"]])
def test_a_working_directory_that_is_gone_is_named(refused, here, args):
    gone = here / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {' '.join(ELASTIC)} {' '.join(args)}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "gone" in line
    assert "Try: " in line


def test_a_directory_that_is_gone_is_no_reason_to_refuse_what_needs_none(here):
    gone = here / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {' '.join(ELASTIC)} {here}/train.py"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=patience(60), check=False)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr


def test_a_port_in_use_is_named(refused):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, line = refused("--master-port", port, "train.py")
    assert (code, f"--master-port {port} is in use" in line) == (2, True), line


def test_a_second_run_with_the_address_and_port_of_one_that_runs_is_refused_before_its_workers_start(
    refused, elastic, script
):
    first = elastic("--master-addr", "127.0.0.1", "--master-port", port := str(free_port()), script(WAITS))
    wait_for(lambda: "waits" in first.out)  # and listens on nothing, as a rank 0 that still imports
    for place in (
        ["--master_addr=127.0.0.1", f"--master_port={port}"],
        ["--master-addr", "localhost", "--master-port", port],
        ["--master-addr", socket.gethostname(), "--master-port", port],
        ["--master-addr", "127.0.0.2", "--master-port", port],
        ["--rdzv-endpoint", f"127.0.0.1:{port}"],
        ["--rdzv-backend", "static", "--rdzv-endpoint", f"127.0.0.1:{port}", "--nnodes", "2", "--node-rank", "0"],
        ["--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", port],
        ["--master-port", port],
    ):
        code, line = refused(*place, "train.py")
        assert (code, f"--master-port {port} is in use on this host" in line) == (2, True), (place, line)
    first.signal(signal.SIGTERM)
    assert first.wait() == 128 + signal.SIGTERM


def test_unknown_signal_names_are_left_out_with_a_word_as_under_torchrun(here):
    done = subprocess.run(
        [*ELASTIC, "--signals-to-handle", "SIGTERM,SIGTERN", "train.py"],
        capture_output=True, text=True, timeout=patience(60), check=False, cwd=here,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "started\n")
    (line,) = done.stderr.splitlines()
    assert "'SIGTERN'" in line
    assert "Try: SIGTERM" in line
