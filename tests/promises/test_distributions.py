"""The distributions: one smoke test for each, through `elastic run`."""

import json
import os
import random
import re
import signal
import socket
from contextlib import suppress

import yaml

from chaos.multi_node import Run, StaticRun
from elastic_numa import AffinityMode
from elastic_numa.binding import bound_cpus
from patience import patience
from pods import container_of, environment_of
from ports import free_port
from support import wait_for

FAILS = """
import os
print("round", os.environ["ELASTIC_ROUND"], flush=True)
if os.environ["RANK"] == "1":
    raise ValueError("label 11 is not a digit")
while True:
    import time; time.sleep(0.01)
"""
WAITS = """
import json, os, pathlib, sys, time
names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "ELASTIC_NODE_ID", "TORCHELASTIC_RUN_ID")
os.write(1, (json.dumps({name: os.environ[name] for name in names}) + os.linesep).encode())
while not (pathlib.Path(__file__).parent / "finish").exists():
    time.sleep(0.02)
"""


def two_nodes_meet(run):
    """Start two nodes, and check that both are in one round, with one master address, until both end well."""
    nodes = [run.node(name, "2") for name in "ab"]
    said = [node.said(world=2) for node in nodes]
    assert sorted(line["rank"] for line in said) == [0, 1]
    assert len({line["master"] for line in said}) == 1
    run.all_end(*nodes)


def test_core_restarts_a_script_writes_its_logs_and_names_its_first_error(elastic, script, run_elastic):
    agent = elastic("--nproc-per-node", "2", "--max-restarts", "1", "--redirects", "3", script(FAILS))
    assert agent.wait() == 1
    assert "rank 1 failed: ValueError: label 11 is not a digit (train.py:5); restart 1 of 1 now" in agent.err
    logs = [path.read_text() for path in sorted(agent.runtime.glob("elastic-*/*/attempt_*/1/stdout.log"))]
    assert logs == ["round 0\n", "round 1\n"]
    assert agent.survivors() == []
    shown = run_elastic("runs", agent.run_id, agent=agent)
    assert shown.returncode == 0, shown.stderr
    assert "ValueError: label 11 is not a digit" in shown.stdout


def test_doctor_judges_this_node_and_names_what_fails(run_elastic, tmp_path):
    shown = run_elastic("doctor", "--json", "--log-dir", tmp_path)
    document = json.loads(shown.stdout)
    levels = {finding["level"] for finding in document["nodes"][0]["findings"]}
    assert "ok" in levels
    assert (shown.returncode, document["failed"]) == ((1, True) if "fail" in levels else (0, False))


def test_two_nodes_meet_in_redis(redis_run):
    two_nodes_meet(redis_run)


def test_two_nodes_meet_in_etcd(elastic, tmp_path, etcd_private):
    two_nodes_meet(Run(elastic, tmp_path, server=etcd_private))


def test_two_nodes_meet_without_any_server_where_each_is_given_its_rank(elastic, tmp_path):
    two_nodes_meet(StaticRun(elastic, tmp_path))


def test_two_tasks_of_a_slurm_step_are_one_run_without_any_option(start_line, script, tmp_path):
    step = {
        "SLURM_JOB_ID": str(job_with_a_free_port()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "localhost,n1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_LOCALID": "0",
    }  # fmt: skip
    path = script(WAITS)
    tasks = [
        start_line(path, **step, SLURM_NODEID=str(index), SLURMD_NODENAME=name)
        for index, name in enumerate(("localhost", "n1"))
    ]
    said = one_run_of_two(tasks, tmp_path)
    assert [line["ELASTIC_NODE_ID"] for line in said] == ["localhost", "n1"]
    assert {line["TORCHELASTIC_RUN_ID"] for line in said} == {f"{step['SLURM_JOB_ID']}.0"}


def test_two_pods_of_a_rendered_job_are_one_run_without_any_option(start_line, script, tmp_path, run_elastic):
    path = script(WAITS)
    rendered = run_elastic(
        "k8s", "render", "bert-7", "--image", "a:1", "--nnodes", "2", "--health-port", "0", "--", path
    )
    (job,) = (each for each in yaml.safe_load_all(rendered.stdout) if each["kind"] == "Job")
    assert container_of(job)["command"] == ["elastic", "run"]
    first_pod = f"127.0.0.1:{free_port()}"  # in place of its DNS name, which no server here resolves
    pods = [
        start_line(
            *container_of(job)["args"],
            **environment_of(job, index, uid="4cf1-77", pod_name=f"bert-7-{index}-x", pod_ip="127.0.0.1")
            | {"ELASTIC_K8S_FIRST_POD": first_pod},
        )
        for index in (0, 1)
    ]
    said = one_run_of_two(pods, tmp_path)
    assert [line["ELASTIC_NODE_ID"] for line in said] == ["bert-7-0-x", "bert-7-1-x"]
    assert {line["TORCHELASTIC_RUN_ID"] for line in said} == {"bert-7-4cf1-77"}


def job_with_a_free_port():
    """Return the number of a job whose port, as elastic-env-slurm derives it from the number, is free on this host."""
    while True:
        job = random.SystemRandom().randrange(1, 1_000_000)
        with suppress(OSError), socket.create_server(("", 21_000 + job * 31 % 7919)):
            return job


def one_run_of_two(lines, folder):
    """Wait until the workers of two command lines are one run, let them end well, and return what each has printed."""

    def outputs():
        return [output.read_text() for _, output in lines]

    wait_for(lambda: all("{" in text for text in outputs()), what="a worker of each node")
    said = [json.loads(next(line for line in text.splitlines() if line.startswith("{"))) for text in outputs()]
    assert [(line["GROUP_RANK"], line["WORLD_SIZE"]) for line in said] == [("0", "2"), ("1", "2")]
    (folder / "finish").touch()
    assert [process.wait(patience(20)) for process, _ in lines] == [0, 0], outputs()
    return said


BY_RUN_PATH = """
import json, os, sys
os.write(1, (json.dumps([__name__, sys.argv[1:], os.environ["RANK"], "torch" in sys.modules]) + os.linesep).encode())
"""


def test_torchrun_runs_a_script_as_a_function(elastic, script):
    agent = elastic("--nproc-per-node", "2", "--run-path", "--omp-threads", "1", script(BY_RUN_PATH), "--lr", "0.1")
    assert agent.wait() == 0, agent.err
    said = sorted(json.loads(line) for line in agent.out.splitlines())
    assert said == [["__main__", ["--lr", "0.1"], rank, False] for rank in ("0", "1")]


def test_ops_shows_a_run_records_its_events_and_stops_it(elastic, script, tmp_path, run_elastic):
    events = tmp_path / "events.jsonl"
    agent = elastic("--event-log-handler", f"jsonl:{events}", script(WAITS))
    wait_for(lambda: agent.lines() and [*agent.runtime.glob("elastic-*/*/status.json")], what="the worker")

    def shown():  # its status is written beside the run
        (run,) = json.loads(run_elastic("status", "--json", agent.run_id, agent=agent).stdout)["runs"]
        return run if run["state"] == "running" else None

    assert wait_for(shown, what="a run that is under way")["run_id"] == agent.run_id
    stopped = run_elastic("stop", agent.run_id, agent=agent)
    assert stopped.returncode == 0, stopped.stderr
    assert agent.wait() == 128 + signal.SIGTERM
    names = [json.loads(line)["name"] for line in events.read_text().splitlines()]
    assert "torchelastic.worker.status.START" in names
    assert "torchelastic.worker.status.TERMINATED" in names


REDOES = """
import os, time
from elastic_train import should_stop
for step in range(1, 11):
    should_stop(step=step)
    time.sleep(0.1)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("label 11 is not a digit")
"""


def test_report_shows_where_the_time_of_a_run_went(elastic, script, run_elastic, tmp_path):
    agent = elastic("--max-restarts", "1", "--restart-backoff", "0", script(REDOES))
    assert agent.wait() == 0, agent.err
    page = tmp_path / "page.html"
    shown = run_elastic("report", agent.run_id, "-o", page, agent=agent)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r" lost: .*redone after the failure at ", shown.stdout), shown.stdout
    assert "label 11 is not a digit" in page.read_text()
    states = json.loads(run_elastic("report", "--json", agent.run_id, agent=agent).stdout)["account"]["states"]
    assert states["redone"] >= 0.8
    assert states["productive"] >= 0.8


BOUND = """
import json, os
os.write(1, (json.dumps([int(os.environ["RANK"]), *os.sched_getaffinity(0)]) + os.linesep).encode())
"""


def test_numa_binds_each_worker_to_its_own_processors(elastic, script):
    mode = "exclusive" if len(os.sched_getaffinity(0)) > 1 else "node"
    agent = elastic("--nproc-per-node", "2", "--omp-threads", "1", "--numa-binding", mode, script(BOUND))
    assert agent.wait() == 0, agent.err
    bound = {rank: {*cpus} for rank, *cpus in map(json.loads, agent.out.splitlines())}
    assert bound == dict(enumerate(bound_cpus(AffinityMode(mode), 2, environ=os.environ)))


TRAINS = """
import os, time
from elastic_train import attempt, should_stop
rank, step = attempt().rank, 0
stops = should_stop(step=step)  # a rank that has not asked yet is not waited for
os.write(1, b'{"begun": %d}\\n' % rank)
while not stops:
    time.sleep(0.005 * (1 + rank))
    step += 1
    stops = should_stop(step=step)
os.write(1, b'{"rank": %d, "saved": %d}\\n' % (rank, step))
"""


def test_train_has_all_ranks_save_before_the_same_step_when_the_run_is_told_to_stop(elastic, script):
    agent = elastic("--nproc-per-node", "2", "--omp-threads", "1", script(TRAINS))
    wait_for(lambda: len(agent.lines()) == 2, what="both workers")
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 128 + signal.SIGTERM
    saved = [line for line in agent.lines() if "saved" in line]
    assert sorted(line["rank"] for line in saved) == [0, 1]
    assert len({line["saved"] for line in saved}) == 1
