"""The options that torchrun lacks: a black-box test for each that no other file's test shows."""

import fcntl
import json
import os
import re
import select
import signal
import socket
import termios
import urllib.request
from contextlib import suppress

import pytest

from patience import Deadline, patience
from ports import free_port
from support import wait_for

SAYS = """
import json, os, sys
names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "ELASTIC_NODE_ID", "TORCHELASTIC_RESTART_COUNT")
os.write(1, (json.dumps({name: os.environ.get(name) for name in names}) + os.linesep).encode())
"""
FAILS = SAYS + "sys.exit(int(sys.argv[1]))\n"
RAISES = "raise ValueError('label 11 is not a digit')\n"
WAITS = """
import os, pathlib, time
os.write(1, b'{"up": 1}\\n')
while not (pathlib.Path(__file__).parent / "finish").exists():
    time.sleep(0.02)
"""


# --- workers


def test_dry_run_shows_values_origins_and_workers_and_starts_nothing(elastic, script):
    agent = elastic("--dry-run", "--nproc-per-node", "2", script(SAYS), "--lr", "0.1", env={"PET_MAX_RESTARTS": "3"})
    assert agent.wait() == 0, agent.err
    assert re.search(r"\n  nproc_per_node +2 +flag --nproc-per-node\n", agent.out)
    assert re.search(r"\n  max_restarts +3 +env PET_MAX_RESTARTS\n", agent.out)
    assert len(re.findall(r"\n  command .* -u .*/train\.py --lr 0\.1\n", agent.out)) == 2
    assert "    WORLD_SIZE=2\n" in agent.out
    assert agent.lines() == []
    assert list(agent.runtime.glob("elastic-*/*-*")) == []


def test_verbose_shows_each_option_of_a_dry_run(elastic, script):
    short, whole = (elastic("--dry-run", *words, script(SAYS)) for words in ((), ("-v",)))
    assert (short.wait(), whole.wait()) == (0, 0)
    assert "  max_restarts " not in short.out
    assert re.search(r"\n  max_restarts +0 +default\n", whole.out)


DRIVER_OF_EIGHT_GPUS = """
import ctypes
_load = ctypes.CDLL
class Driver:
    def nvmlInit_v2(self):
        return 0
    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 8
        return 0
    def nvmlShutdown(self):
        return 0
ctypes.CDLL = lambda name, *args, **more: Driver() if name == "libnvidia-ml.so.1" else _load(name, *args, **more)
"""


def test_devices_are_those_that_workers_see(elastic, script, tmp_path):
    site = script(DRIVER_OF_EIGHT_GPUS, "sitecustomize.py").parent
    agent = elastic("--devices", "1,3,5", script(SAYS), env={"PYTHONPATH": str(site)})
    assert agent.wait() == 0, agent.err
    assert [line["CUDA_VISIBLE_DEVICES"] for line in agent.lines()] == ["1,3,5"] * 3
    refused = elastic("--devices", "1,9", script(SAYS), env={"PYTHONPATH": str(site)})
    assert refused.wait() == 2, "the driver knows of no tenth GPU"


@pytest.mark.parametrize(("given", "threads"), [("auto", max(1, len(os.sched_getaffinity(0)) // 2)), ("3", 3)])
def test_omp_threads_are_shared_between_workers_or_as_given(elastic, script, given, threads):
    agent = elastic("--nproc-per-node", "2", "--omp-threads", given, script(SAYS), env={"OMP_NUM_THREADS": "64"})
    assert agent.wait() == 0, agent.err
    assert [line["OMP_NUM_THREADS"] for line in agent.lines()] == [str(threads)] * 2


def test_debug_rank_has_the_terminal_and_no_time_limit(elastic, script):
    leader, follower = os.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
    agent = elastic(
        *("--nproc-per-node", "2", "--debug-rank", "0", "--startup-timeout", "0.3"),
        script("import os\nx = 41\nif os.environ['RANK'] == '0':\n    breakpoint()\n    print('x is', x)\n"),
        **streams,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(follower)
    try:
        read_until(leader, b"(Pdb)")
        os.write(leader, b"import time; time.sleep(0.5); x += 1\n")
        read_until(leader, b"(Pdb)")
        os.write(leader, b"c\n")
        read_until(leader, b"x is 42")
        assert agent.wait() == 0
    finally:
        os.close(leader)


def read_until(terminal, mark):
    """Read from a terminal until it has shown the mark."""
    seen, end = b"", Deadline(20)
    while mark not in seen:
        ready, _, _ = select.select([terminal], [], [], 0.1)
        assert ready or not end.passed(), seen
        seen += os.read(terminal, 4096) if ready else b""


def test_no_worker_hooks_leaves_exceptions_unrecorded(elastic, script):
    agents = [elastic(*options, script(RAISES)) for options in ((), ("--no-worker-hooks",))]
    assert [agent.wait() for agent in agents] == [1, 1]
    recorded = [agent.incident()["first"]["error"] for agent in agents]
    assert recorded[0]["frames"][-1][1] == 1
    assert recorded[1] is None


# --- files


def test_run_dir_keeps_the_files_of_a_run_that_ended_well(elastic, script, tmp_path):
    agent = elastic("--run-dir", tmp_path / "kept", "--redirects", "1", script("print('trained')"))
    assert agent.wait() == 0, agent.err
    assert (tmp_path / "kept/attempt_0/0/stdout.log").read_text() == "trained\n"


def test_log_files_change_at_a_size_and_so_many_old_ones_are_kept(elastic, script, tmp_path):
    options = ("--redirects", "1", "--log-max-size", "1K", "--log-backups", "2", "--run-dir", tmp_path / "kept")
    agent = elastic(*options, script("for n in range(100):\n    print(n, 'x' * 90)"))
    assert agent.wait() == 0, agent.err
    folder = tmp_path / "kept/attempt_0/0"
    assert sorted(path.name for path in folder.glob("stdout*")) == ["stdout.log", "stdout.log.1", "stdout.log.2"]
    texts = [(folder / f"stdout.log{suffix}").read_text() for suffix in (".2", ".1", "")]
    assert all(len(text) <= 1024 for text in texts)
    assert "".join(f"{n} {'x' * 90}\n" for n in range(100)).endswith("".join(texts))


def test_node_id_is_the_nodes_name_for_workers_and_in_the_report(elastic, script):
    agent = elastic("--node-id", "gpu-node-7", script(FAILS), "3")
    assert agent.wait() == 3
    assert [line["ELASTIC_NODE_ID"] for line in agent.lines()] == ["gpu-node-7"]
    assert re.search(r"\nrank 0 \(local rank 0\) on gpu-node-7\b", agent.err)


# --- restarts


def restarts(agent):
    """Return the restart count of each start of the only worker."""
    return [int(line["TORCHELASTIC_RESTART_COUNT"]) for line in agent.lines()]


def test_restart_window_counts_the_restarts_of_the_last_seconds_only(elastic, script):
    ends_well = "import time\ntime.sleep(0.5)\nsys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] != '2')\n"
    options = ("--max-restarts", "1", "--restart-backoff", "0", "--restart-window")
    slow = elastic(*options, "0.3", script(SAYS + ends_well, "slow.py"))
    quick = elastic(*options, "60", script(FAILS), "3")
    assert slow.wait() == 0, slow.err
    assert restarts(slow) == [0, 1, 2]
    assert quick.wait() == 3
    assert restarts(quick) == [0, 1]
    assert "restart budget of 1 within 60 s used up" in quick.err


def test_same_failure_limit_ends_a_run_that_fails_in_the_same_way(elastic, script):
    agent = elastic("--max-restarts", "9", "--restart-backoff", "0", "--same-failure-limit", "2", script(SAYS + RAISES))
    assert agent.wait() == 1
    assert restarts(agent) == [0, 1]
    assert agent.incident()["decision"]["rule"] == "same-failure-limit"


def test_restart_backoff_of_zero_restarts_without_pauses(elastic, script):
    agent = elastic("--max-restarts", "3", "--restart-backoff", "0", script(FAILS), "3")
    assert agent.wait() == 3
    assert restarts(agent) == [0, 1, 2, 3]
    assert re.findall(r"restart \d of 3 (.*)", agent.err) == ["now"] * 3


def test_fatal_exit_codes_are_not_worth_another_try(elastic, script):
    options = ("--max-restarts", "1", "--fatal-exit-codes", "3,64-78")
    fatal, other = (elastic(*options, script(FAILS), code) for code in (70, 79))
    assert [fatal.wait(), other.wait()] == [70, 79]
    assert restarts(fatal) == [0]
    assert restarts(other) == [0, 1]


STANDS_STILL = """
import sys, time
from elastic_core.worker import heartbeat
if sys.argv[1] == "begins":
    heartbeat(step=1)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("option", "how", "told"),
    [("--hang-timeout", "begins", "rank 0"), ("--startup-timeout", "never begins", "no first heartbeat")],
)
def test_worker_without_a_sign_of_life_is_a_failure_with_its_stack_kept(elastic, script, option, how, told):
    limit = f"{patience(1.5):g}"  # in which the script begins, on a busy machine too
    agent = elastic(option, limit, script(STANDS_STILL), how)
    assert agent.wait() == 1
    incident = agent.incident()
    assert incident["failure_class"] == "hang"
    assert told in incident["summary"]
    stacks = agent.incident_path().parent / incident["hang"]["stacks"] / incident["hang"]["ranks"][0]["stacks"]
    assert "train.py" in stacks.read_text()


# --- metrics


def test_metrics_are_served_and_handed_on(elastic, script, tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    agent = elastic("--metrics-port", "0", "--metrics-handler", f"jsonl:{metrics}", script(WAITS))
    url = wait_for(lambda: re.search(r"metrics are served at (http://127\.0\.0\.1:\d+/metrics)", agent.err))[1]

    def scrape():
        with urllib.request.urlopen(url, timeout=patience(10)) as answer:
            return answer.read().decode()

    wait_for(lambda: "elastic_workers_alive 1.0" in scrape(), what="the worker in the metrics")
    (tmp_path / "finish").touch()
    assert agent.wait() == 0, agent.err
    assert "elastic_exit_code" in {json.loads(line)["name"] for line in metrics.read_text().splitlines()}


# --- several nodes


def test_agent_port_answers_other_agents_by_udp_and_elastic_logs_by_tcp(redis_run, run_elastic):
    port = free_port()
    a = redis_run.node("a", "1:2", "--agent-port", port, "--tee", "1")
    a.said(world=1)
    with socket.socket(type=socket.SOCK_DGRAM) as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port))
    wait_for(lambda: listens(port) and [*a.agent.runtime.glob("elastic-*/*/logs.json")], what="the logs to be served")
    store = ("--rdzv-backend", "redis", "--rdzv-endpoint", redis_run.endpoint, "--rdzv-id", redis_run.id)
    wait_for(lambda: '"world": 1' in run_elastic("logs", "--rank", "0", *store).stdout, what="the worker's line")
    redis_run.all_end(a)


def listens(port):
    """Return whether a TCP server listens at a port of this host."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_spares_beyond_the_most_wait_and_more_are_sent_home(redis_run):
    a = redis_run.node("a", "1", "--spares", "1")
    a.said(world=1)
    b = redis_run.node("b", "1", "--spares", "1")
    b.told("waiting as a spare")
    c = redis_run.node("c", "1", "--spares", "1")
    c.ends(0)
    assert "not needed" in c.agent.err
    a.kill_agent()
    b.said(world=1)
    redis_run.all_end(b)


def test_allow_mismatch_lets_a_node_join_that_differs(redis_run):
    a = redis_run.node("a", "1:2", "--nproc-per-node", "1")
    a.said(world=1)
    refused = redis_run.node("b", "1:2", "--nproc-per-node", "2")
    refused.ends(4)
    assert "--allow-mismatch" in refused.agent.err
    allowed = redis_run.node("c", "1:2", "--nproc-per-node", "2", "--allow-mismatch", "nproc")
    allowed.said(world=3)
    redis_run.all_end(a, allowed)


def test_rdzv_attempt_begins_a_run_anew_that_has_ended(redis_run):
    a = redis_run.node("a", "1")
    a.said()
    redis_run.exit_rank(0, 0, 6)
    a.ends(6)
    (redis_run.shared / "exit-0-0").unlink()
    same = redis_run.node("b", "1")
    same.ends(6)
    assert same.says() == []
    another = redis_run.node("c", "1", "--rdzv-attempt", "1")
    another.said()
    redis_run.all_end(another)


def test_max_membership_changes_fails_a_run_whose_nodes_come_or_go_more_often(redis_run):
    a = redis_run.node("a", "1:2", "--max-membership-changes", "1")
    a.said(world=1)
    b = redis_run.node("b", "1:2", "--max-membership-changes", "1")
    a.said(world=2)
    b.agent.signal(signal.SIGTERM)
    a.ends(4)
    assert "--max-membership-changes is 1" in a.agent.err


@pytest.mark.parametrize(
    ("option", "told"),
    [("--join-timeout", "of at least 2 nodes joined"), ("--connect-timeout", "could not be reached")],
)
def test_waits_for_nodes_and_for_the_server_end_in_time(elastic, script, redis_server, option, told):
    endpoint = redis_server.endpoint if option == "--join-timeout" else f"127.0.0.1:{free_port()}"
    limit = f"{patience(0.5):g}"
    agent = elastic(
        *("--rdzv-backend", "redis", "--rdzv-endpoint", endpoint, "--nnodes", "2"), option, limit, script(SAYS)
    )
    assert agent.wait() == 4
    assert told in agent.err
    assert f" within {limit} s" in agent.err
    assert agent.lines() == []


def test_on_store_loss_fail_ends_the_run_when_the_server_stays_away(redis_run):
    a = redis_run.node("a", "1:2", "--on-store-loss", "fail", "--store-outage-grace", "0.5")
    a.said(world=1)
    redis_run.server.stop()
    a.ends(4)
    assert "stayed away for 0.5 s" in a.agent.err
