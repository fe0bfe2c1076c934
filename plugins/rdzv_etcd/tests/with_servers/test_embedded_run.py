"""`elastic run --rdzv-conf embedded=true`: whole runs on one machine without a server, and what is left of them."""

import os
import signal
from pathlib import Path

import pytest

from elastic_rdzv_etcd.hosting.program import PATH_VARIABLE
from etcd_servers import binary
from ports import free_port
from proc_kit import children, command_line, is_alive
from support import launcher, wait_for

ONE = ("--nnodes", 1, "--nproc-per-node", 2, "--rdzv-conf", "embedded=true")
WORKER = """
import json, os, sys, time
print(json.dumps({name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "ELASTIC_ROUND")} | {"pid": os.getpid()}),
      flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
raise SystemExit(int(sys.argv[2]))
"""


@pytest.fixture
def temporary(tmp_path):
    path = tmp_path / "temporary"
    path.mkdir()
    return path


@pytest.fixture
def word(tmp_path):
    """What workers wait for to end."""
    return tmp_path / "word"


@pytest.fixture
def start(tmp_path, temporary, word):
    binary()
    script = tmp_path / "worker.py"
    script.write_text(WORKER)

    def run(*args, backend="etcd", code=0, env=None, **options):
        env = {"TMPDIR": str(temporary)} | (env or {})
        return begin("--rdzv-backend", backend, *args, script, word, code, env=env, **options)

    runs = launcher(tmp_path)
    begin = next(runs)
    yield run
    for _ in runs:
        pass


def servers(temporary):
    """Give the processes that an embedded etcd consists of."""
    return [int(pid) for pid, command in commands() if str(temporary / "elastic-etcd-") in command]


def etcd_of(temporary):
    pid, *more = (int(pid) for pid, command in commands() if f"--data-dir={temporary}/" in command)
    assert not more
    return pid


def commands():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.parent.name, path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue


def assert_nothing_is_left(temporary, *agents):
    wait_for(lambda: not servers(temporary), what="the servers' end")
    ours = f"elastic-{os.geteuid()}"  # the run directories, which are kept after a failure
    wait_for(lambda: not [path for path in temporary.iterdir() if path.name != ours], what="the folders' end")
    for agent in agents:
        wait_for(lambda agent=agent: not agent.survivors(), what="the workers' end")


def up(agent, count=2):
    return wait_for(lambda: (lines := agent.lines()) and len(lines) >= count and lines, what=agent.err)


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_one_node_needs_no_server(start, temporary, word, backend):
    word.touch()
    if backend == "etcd-v2":
        pytest.importorskip("etcd", reason="python-etcd is an extra")
    agent = start(*ONE, backend=backend)
    assert agent.wait() == 0, agent.err
    assert sorted(line["RANK"] for line in agent.lines()) == ["0", "1"]
    assert {line["WORLD_SIZE"] for line in agent.lines()} == {"2"}
    assert_nothing_is_left(temporary, agent)


def test_a_failure_leaves_nothing(start, temporary, word):
    word.touch()
    agent = start(*ONE, code=7)
    assert agent.wait() == 7
    assert_nothing_is_left(temporary, agent)


def test_a_killed_agent_leaves_nothing(start, temporary):
    agent = start(*ONE)
    up(agent)
    assert len(servers(temporary)) == 2
    agent.signal(signal.SIGKILL)
    agent.wait()
    assert_nothing_is_left(temporary, agent)


def test_who_gives_a_killed_agents_seat_back_begins_no_etcd(start, temporary, tmp_path):
    begun, counting = tmp_path / "begun", tmp_path / "etcd"
    counting.write_text(f'#!/bin/sh\n[ "$1" = --version ] || echo x >> {begun}\nexec {binary()} "$@"\n')
    counting.chmod(0o755)
    agent = start(*ONE, env={PATH_VARIABLE: str(counting)})
    up(agent)
    (guard,) = (pid for pid in children(agent.pid) if b"elastic-guard" in command_line(pid))
    agent.signal(signal.SIGKILL)
    agent.wait()
    assert_nothing_is_left(temporary, agent)
    wait_for(lambda: not is_alive(guard), what="the end of the guard, which waits for the last act")
    assert begun.read_text() == "x\n"


def test_ctrl_c_leaves_nothing_and_reaches_the_etcd_last(start, temporary):
    agent = start(*ONE, start_new_session=True)
    up(agent)
    etcd = etcd_of(temporary)
    os.killpg(agent.pid, signal.SIGINT)
    assert agent.wait() == 128 + signal.SIGINT, agent.err
    assert "embedded" not in agent.err
    assert "was killed" not in agent.err
    assert not Path(f"/proc/{etcd}").exists()
    assert_nothing_is_left(temporary, agent)


def test_a_dead_etcd_is_followed_by_another_and_workers_train_on(start, temporary, word):
    agent = start(*ONE)
    pids = {line["pid"] for line in up(agent)}
    first = etcd_of(temporary)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: "was killed by SIGKILL; it was started again with its data" in agent.err, what="the notice")
    assert etcd_of(temporary) != first
    word.touch()
    assert agent.wait() == 0, agent.err
    assert {line["pid"] for line in agent.lines()} == pids
    assert_nothing_is_left(temporary, agent)


def test_the_guard_spares_the_etcd_of_an_agent_that_stood_still(start, temporary, word):
    agent = start(*ONE[:-1], "embedded=true,lease_ttl=2")
    pids = {line["pid"] for line in up(agent)}
    etcd = etcd_of(temporary)
    agent.signal(signal.SIGSTOP)
    wait_for(lambda: not any(is_alive(pid) for pid in pids), what="the fence")
    assert is_alive(etcd)
    agent.signal(signal.SIGCONT)
    up(agent, 4)
    assert etcd_of(temporary) == etcd
    word.touch()
    assert agent.wait() == 0, agent.err
    assert_nothing_is_left(temporary, agent)


@pytest.fixture
def pair(start, temporary):
    """Two agents on this machine, and the etcd that the first one runs."""
    port = free_port()
    several = ("--nnodes", 2, "--rdzv-endpoint", f"localhost:{port}", "--rdzv-conf", "embedded=true")
    run_id = ("--rdzv-id", f"pair-{os.getpid()}-{port}")
    first = start(*several, *run_id)
    wait_for(lambda: servers(temporary), what="the etcd")
    second = start(*several, *run_id)
    up(first, 1)
    up(second, 1)
    return first, second


def test_two_agents_share_one(pair, temporary, word):
    assert len(servers(temporary)) == 2
    word.touch()
    assert [agent.wait() for agent in pair] == [0, 0]
    assert_nothing_is_left(temporary, *pair)


def test_the_loss_of_the_agent_that_runs_it_ends_the_run(pair, temporary):
    first, second = pair
    first.signal(signal.SIGKILL)
    assert second.wait() == 4, second.err
    assert "hosts the rendezvous store" in second.err
    assert_nothing_is_left(temporary, *pair)


# --- what can't be


def test_an_endpoint_elsewhere(start, temporary):
    agent = start("--nnodes", 2, "--rdzv-endpoint", "node7.example", "--rdzv-conf", "embedded=true")
    assert agent.wait() == 2
    assert "is reached from its machine alone, and 'node7.example' is not this one. Try: --rdzv-endpoint" in agent.err
    assert_nothing_is_left(temporary)


def test_no_etcd(start, temporary):
    agent = start(*ONE, env={PATH_VARIABLE: str(temporary / "missing")})
    assert agent.wait() == 2
    assert "is not a program that can be run" in agent.err
    assert_nothing_is_left(temporary)
