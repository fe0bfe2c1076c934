"""SCENARIOS K8 (a, c) and K9 on one node: grace is honoured, exit codes say what happened."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from patience import patience
from support import ELASTIC, wait_for

SAVES_ON_TERM = """
import json, os, pathlib, signal, sys, time
rank = int(os.environ["RANK"])
def save(*_):
    part = pathlib.Path("checkpoint.part")
    with part.open("w") as f:
        for n in range(int(sys.argv[2])):
            f.write(f"{n}\\n"); f.flush(); time.sleep(0.1)
    part.rename("checkpoint")
    sys.exit(0)
if rank == 0:
    signal.signal(signal.SIGTERM, save)
os.write(1, (json.dumps({"rank": rank}) + os.linesep).encode())
if rank == 1 and sys.argv[1] == "fail":
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    sys.exit(5)
time.sleep(600)
"""

COUNTED = """
import json, os, sys, time
names = {"restarts": "TORCHELASTIC_RESTART_COUNT", "round": "ELASTIC_ROUND", "rank": "RANK"}
line = {name: int(os.environ[variable]) for name, variable in names.items()} | {"at": time.monotonic()}
os.write(1, (json.dumps(line) + os.linesep).encode())
"""


@pytest.mark.parametrize("cause", ["fail", "stop"])
def test_worker_that_needs_time_to_save_gets_it(elastic, script, cause):
    agent = elastic("--nproc-per-node", "2", "--shutdown-timeout", "20", script(SAVES_ON_TERM), cause, 20)
    folder = agent.out_path.parent
    wait_for(lambda: len(agent.lines()) == 2)
    if cause == "fail":
        (folder / "go").touch()
    else:
        agent.signal(signal.SIGTERM)
    assert agent.wait(30) == (5 if cause == "fail" else 143)
    assert len((folder / "checkpoint").read_text().splitlines()) == 20
    if cause == "fail":
        (stopped,) = agent.incident()["stopped"]
        assert (stopped["exit"]["global_rank"], stopped["exit"]["code"]) == (0, 0)


def test_second_stop_signal_cuts_the_grace_short(elastic, script):
    agent = elastic("--nproc-per-node", "2", "--shutdown-timeout", "60", script(SAVES_ON_TERM), "stop", 400)
    folder = agent.out_path.parent
    wait_for(lambda: len(agent.lines()) == 2)
    agent.signal(signal.SIGTERM)
    wait_for(lambda: (folder / "checkpoint.part").exists())
    threading.Event().wait(0.6)  # the second signal counts from 0.5 s on: the rule under test
    agent.signal(signal.SIGTERM)
    assert agent.wait(5) == 143
    assert not (folder / "checkpoint").exists()


def test_failing_worker_is_started_once_more_than_the_budget_with_growing_delays(elastic, script):
    agent = elastic("--max-restarts", "3", "--restart-backoff", "0.2", script(COUNTED + "sys.exit(42)\n"))
    assert agent.wait(60) == 42
    lines = agent.lines()
    assert [line["restarts"] for line in lines] == [0, 1, 2, 3]
    assert [line["round"] for line in lines] == [0, 1, 2, 3]
    gaps = [b["at"] - a["at"] for a, b in itertools.pairwise(lines)]
    assert gaps[1] > 0.2
    assert gaps[2] > 0.4
    assert "restart budget" in agent.err


def test_zero_restarts_means_none(elastic, script):
    agent = elastic(script(COUNTED + "sys.exit(42)\n"))
    assert agent.wait(60) == 42
    assert len(agent.lines()) == 1


def test_fatal_exit_code_is_not_retried(elastic, script):
    agent = elastic("--max-restarts", "3", "--fatal-exit-codes", "40-45,7", script(COUNTED + "sys.exit(42)\n"))
    assert agent.wait(60) == 42
    assert len(agent.lines()) == 1
    assert "fatal" in agent.err


def test_missing_script_starts_nothing_and_says_so_at_once(elastic, tmp_path):
    agent = elastic("--max-restarts", "3", tmp_path / "trian.py")
    assert agent.wait(10) == 2
    assert len(agent.err.splitlines()) == 1
    assert "trian.py" in agent.err
    assert list(agent.runtime.glob("elastic-*/*-*")) == []


def test_restart_after_a_crash_gives_every_rank_the_same_counters(elastic, script):
    crash = "if os.environ['RANK'] == '1' and os.environ['ELASTIC_ROUND'] == '0':\n    os.kill(os.getpid(), 9)\n"
    body = COUNTED + crash + "time.sleep(0.3)\n"
    agent = elastic("--nproc-per-node", "3", "--max-restarts", "1", script(body))
    assert agent.wait(60) == 0, agent.err
    second = [line for line in agent.lines() if line["round"] == 1]
    assert sorted(line["rank"] for line in second) == [0, 1, 2]
    assert {line["restarts"] for line in second} == {1}


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_stop_signals_give_128_plus_n_without_a_traceback(elastic, script, signum):
    agent = elastic("--nproc-per-node", "2", script(COUNTED + "time.sleep(600)\n"))
    wait_for(lambda: len(agent.lines()) == 2)
    agent.signal(signum)
    assert agent.wait(20) == 128 + signum
    assert "Traceback" not in agent.err.replace("KeyboardInterrupt", "") or signum == signal.SIGINT


def test_ignored_hangup_stays_ignored_here_and_in_the_workers(elastic, script):
    go = "while not os.path.exists('go'):\n    time.sleep(0.01)\n"
    agent = elastic(script(COUNTED + go), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for(lambda: agent.lines())
    agent.signal(signal.SIGHUP)
    (agent.out_path.parent / "go").touch()
    assert agent.wait(20) == 0, agent.err


def test_user_signals_reach_every_rank_and_stop_nothing(elastic, script):
    body = (
        "import json, os, signal, time\n"
        "got = []\nsignal.signal(signal.SIGUSR1, lambda *_: got.append(1))\n"
        "os.write(1, (json.dumps({'rank': os.environ['RANK']}) + os.linesep).encode())\n"
        "while not got:\n    time.sleep(0.01)\n"
    )
    agent = elastic("--nproc-per-node", "3", script(body))
    wait_for(lambda: len(agent.lines()) == 3)
    agent.signal(signal.SIGUSR1)
    assert agent.wait(20) == 0, agent.err


def test_clean_runs_leave_no_file(elastic, script):
    path = script("print('{}')\n")
    for _ in range(3):
        agent = elastic(path)
        assert agent.wait(20) == 0, agent.err
        assert list(agent.runtime.glob("elastic-*/*-*")) == []
        assert agent.err == ""


def test_twenty_launches_at_once_never_share_a_port(elastic, script):
    path = script(
        "import json, os, socket\n"
        "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "s.bind(('', int(os.environ['MASTER_PORT']))); s.listen()\n"
        "os.write(1, (json.dumps({'port': os.environ['MASTER_PORT']}) + os.linesep).encode())\n"
        "while not os.path.exists(os.environ['GO']):\n    import time; time.sleep(0.02)\n"
    )
    go = path.parent / "go"
    agents = [elastic(path, env={"GO": str(go)}) for _ in range(20)]
    for agent in agents:
        wait_for(agent.lines, within_s=60, what=agent.err)
    assert len({agent.lines()[0]["port"] for agent in agents}) == 20
    go.touch()
    assert [agent.wait(30) for agent in agents] == [0] * 20


def test_debug_rank_has_the_terminal(script, tmp_path):
    """A worker under pdb on a real pseudo terminal: its prompt answers, and the run ends when it is told to."""
    path = script("import os\nx = 41\nif os.environ['RANK'] == '0':\n    breakpoint()\nprint('x is', x)\n")
    leader, follower = os.openpty()
    process = subprocess.Popen(
        [*ELASTIC, "--nproc-per-node", "2", "--debug-rank", "0", str(path)],
        stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}, preexec_fn=_take_terminal,
    )  # fmt: skip
    os.close(follower)
    seen = b""
    try:
        seen = _read_until(leader, b"(Pdb)")
        os.write(leader, b"x += 1\n")
        seen += _read_until(leader, b"(Pdb)")
        os.write(leader, b"c\n")
        seen += _read_until(leader, b"x is 42")
        assert process.wait(patience(20)) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def _take_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(fd, mark, within_s=20.0):
    import select

    data, end_s = b"", time.monotonic() + patience(within_s)
    while mark not in data:
        ready, _, _ = select.select([fd], [], [], max(0.0, end_s - time.monotonic()))
        assert ready, data
        data += os.read(fd, 4096)
    return data


def test_elastic_run_never_imports_torch_or_numpy(script, tmp_path):
    probe = (
        "import sys, json\nfrom elastic_core.cli.main import main\n"
        f"code = main(['run', {str(script('pass'))!r}])\n"
        "heavy = {'torch', 'numpy', 'redis', 'etcd', 'elastic_rdzv_static', 'elastic_rdzv_redis', 'asyncio', 'rich'}\n"
        "print(json.dumps([code, sorted(heavy & set(sys.modules))]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert json.loads(done.stdout) == [0, []]
