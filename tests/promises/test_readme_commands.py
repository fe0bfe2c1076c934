"""The commands of the README, run as they are shown.

Endpoints are replaced by those of servers on this host.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from page_kit import play
from patience import patience
from ports import free_port
from support import places_of_runs, wait_for
from tiers import TEST, TIERS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()

MEETS = """
import json, os, pathlib, time
names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID")
os.write(1, (json.dumps({name: os.environ[name] for name in names}) + os.linesep).encode())
while not (pathlib.Path(__file__).parent / "finish").exists():
    time.sleep(0.02)
"""


def test_commands_print_what_the_readme_shows(tmp_path):
    play(ROOT / "README.md", tmp_path)


def test_the_first_command_starts_its_workers(elastic, script):
    old, new = re.search(r"^- torchrun (.+)\n\+ elastic run (.+)$", README, re.MULTILINE).groups()
    assert old == new
    path = script("import os\nos.write(1, (os.environ['LOCAL_RANK'] + os.linesep).encode())\n")
    agent = elastic(*new.removesuffix("train.py").split(), "--omp-threads", "1", path)
    assert agent.wait() == 0, agent.err
    assert sorted(agent.out.split()) == [str(rank) for rank in range(8)]


# --- several nodes


def test_two_nodes_meet_in_a_store_on_the_first(start_line, script, tmp_path):
    nodes_meet(start_line, script, tmp_path, "node0:29400", f"localhost:{free_port()}")


def test_two_nodes_meet_in_redis_as_the_readme_has_it(start_line, script, tmp_path, redis_server):
    nodes_meet(start_line, script, tmp_path, "redis0:6379", redis_server.endpoint)


def test_two_nodes_meet_in_etcd_as_the_readme_has_it(start_line, script, tmp_path, etcd_private):
    nodes_meet(start_line, script, tmp_path, "etcd0:2379", etcd_private.endpoint)


def test_two_nodes_meet_by_their_ranks(start_line, script, tmp_path):
    nodes_meet(start_line, script, tmp_path, "node0:29500", f"127.0.0.1:{free_port()}", ranks=True)


def nodes_meet(start_line, script, folder, shown, endpoint, *, ranks=False):
    """Run the README's line with this endpoint on two nodes; check that they form one world."""
    (words,) = re.findall(rf"^elastic run (.*{re.escape(shown)}.*) train\.py\b", README, re.MULTILINE)
    words = words.replace(shown, endpoint)
    path = script(MEETS)
    started = []
    for rank, name in enumerate("ab"):
        line = words.replace("--node-rank 0", f"--node-rank {rank}")
        beside = [] if ranks else ["--rdzv-conf", "last_call_timeout=1"]
        started.append(start_line(*line.split(), "--node-id", name, *beside, path))

    def outputs():
        return [output.read_text() for _, output in started]

    wait_for(
        lambda: all('"WORLD_SIZE": "2"' in text for text in outputs()), within_s=40, what="both nodes in one world"
    )
    said = [json.loads([line for line in text.splitlines() if line.startswith("{")][-1]) for text in outputs()]
    assert sorted(line["RANK"] for line in said) == ["0", "1"]
    assert {line["TORCHELASTIC_RUN_ID"] for line in said} == {"none" if ranks else "bert-7"}
    (folder / "finish").touch()
    assert [process.wait(patience(20)) for process, _ in started] == [0, 0], outputs()


def test_a_job_of_four_pods_is_rendered(run_elastic):
    (words,) = re.findall(r"^elastic (k8s render .*) \| elastic k8s apply -f -$", README, re.MULTILINE)
    rendered = run_elastic(*words.split())
    assert rendered.returncode == 0, rendered.stderr
    (job,) = (each for each in yaml.safe_load_all(rendered.stdout) if each["kind"] == "Job")
    assert (job["metadata"]["name"], job["spec"]["parallelism"]) == ("bert-7", 4)


# --- operators

FAILS_ONCE = """
import os, sys, time
rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
if rank == "3" and restarts == "0" and os.environ["WORLD_SIZE"] == "4":
    raise ValueError("label 11 is not a digit")
print("round", os.environ["ELASTIC_ROUND"], "rank", rank, "of", os.environ["WORLD_SIZE"], flush=True)
time.sleep(600)
"""


@pytest.fixture
def commands(tmp_path):
    """Return a function that starts a command of the README, with the variables that the README exports.

    It takes the endpoint, the command, and the folder whose runs the command sees; it returns process and output file.
    """
    (exported,) = re.findall(r"`export (PET_[^`]+)`", README)
    started = []

    def start(endpoint, command, *, sees=None):
        variables = dict(pair.split("=") for pair in exported.replace("redis0:6379", endpoint).split())
        folder = tmp_path / f"command{len(started)}"
        (folder / "runtime").mkdir(mode=0o700, parents=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTIC_", "TORCHELASTIC_"))}
        env = kept | places_of_runs(sees or folder / "runtime") | variables
        words = [sys.executable, "-m", "elastic_core", *shown(command).split()[1:]]
        with (folder / "output").open("wb") as output:
            started.append(
                subprocess.Popen(words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            )
        return started[-1], folder / "output"

    yield start
    for process in started:
        process.kill()
        process.wait()


def shown(command):
    """Return a command, which the README must show."""
    assert f"`{command}`" in README, command
    return command


def start_two_nodes(start_line, path, endpoint):
    """Start two nodes of run bert-7 with two workers each; the line is the README's, and so is --tee 3."""
    assert "`elastic run --tee 3`" in README
    words = [
        "--rdzv-backend",
        "redis",
        "--rdzv-endpoint",
        endpoint,
        "--rdzv-id",
        "bert-7",
        "--nnodes",
        "1:2",
        "--tee",
        "3",
    ]
    words += ["--nproc-per-node", "2", "--omp-threads", "1", "--max-restarts", "1", "--restart-backoff", "0"]
    words += ["--rdzv-conf", "last_call_timeout=5"]
    return [start_line(*words, "--node-id", name, path) for name in ("gpu-1", "gpu-2")]


def test_commands_for_operators_reach_a_run_by_its_store(start_line, script, commands, redis_server):
    nodes = start_two_nodes(start_line, script(FAILS_ONCE), redis_server.endpoint)
    outputs = [output for _, output in nodes]
    wait_for(lambda: "rank 0 of 4" in outputs[0].read_text() + outputs[1].read_text(), within_s=40, what="four workers")

    def ended(command):
        process, output = commands(redis_server.endpoint, command)
        assert process.wait(patience(60)) == 0, output.read_text()
        return output.read_text()

    watching, status = commands(redis_server.endpoint, "elastic status --watch 2 bert-7")
    following, logs = commands(redis_server.endpoint, "elastic logs -f --rank 3 bert-7")
    wait_for(lambda: "gpu-1" in status.read_text() and "gpu-2" in status.read_text(), within_s=40, what="both nodes")
    wait_for(lambda: re.search(r"round \d+ rank 3 of 4", logs.read_text()), within_s=40, what="a line of rank 3")
    assert "ValueError: label 11 is not a digit" in ended("elastic incidents --last bert-7")
    assert "lost" in ended("elastic report bert-7")
    assert "gpu-2" in ended("elastic drain bert-7 gpu-2")
    wait_for(lambda: "rank 0 of 2" in outputs[0].read_text(), within_s=40, what="a round of gpu-1 alone")
    assert nodes[1][0].wait(patience(20)) == 143
    assert "bert-7" in ended("elastic stop bert-7")
    assert nodes[0][0].wait(patience(20)) == 143
    wait_for(lambda: watching.poll() is not None and following.poll() is not None, what="the end of both with the run")


def test_stacks_of_the_workers_of_this_host(elastic, script, commands):
    agent = elastic("--rdzv-id", "bert-7", "--nproc-per-node", "2", "--omp-threads", "1", script(MEETS))
    wait_for(lambda: len(agent.lines()) == 2, what="both workers")
    statuses = agent.runtime.glob
    wait_for(
        lambda: any(json.loads(path.read_text()).get("control") for path in statuses("elastic-*/*/status.json")),
        what="an agent that listens",
    )
    process, output = commands("localhost:1", "elastic ctl bert-7 stacks", sees=agent.runtime)
    assert process.wait(patience(30)) == 0, output.read_text()
    assert "train.py" in output.read_text()


@pytest.mark.parametrize(
    ("command", "words"),
    [("elastic doctor", "python"), ("elastic runs", "train.py"), ("elastic --version", "elastic-core ")],
    ids=["doctor", "runs", "version"],
)
def test_commands_about_this_host(elastic, script, run_elastic, command, words):
    agent = elastic(script("raise ValueError('label 11 is not a digit')\n"))
    assert agent.wait() == 1
    done = run_elastic(*shown(command).split()[1:], agent=agent)
    assert done.returncode == 0 or (command == "elastic doctor" and "fail" in done.stdout), done.stderr
    assert words in done.stdout


# --- make


def make(*words):
    return subprocess.run(
        ["make", "--no-print-directory", *words], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=patience(30), check=True,
    ).stdout  # fmt: skip


def test_make_help_lists_each_target_of_the_readme():
    targets = set(re.findall(r"(?:^|`)make ([\w-]+)", README, re.MULTILINE))
    assert {"demo", "test", "help"} <= targets
    listed = set(re.findall(r"^  make (\S+)", make("help"), re.MULTILINE))
    assert targets - {"help"} <= listed


def test_make_test_runs_the_everyday_tier_and_make_test_all_runs_it_too():
    for target, tiers in (("test", [TEST]), ("test-all", list(TIERS))):
        (line,) = (line for line in make("--dry-run", target).splitlines() if "scripts/run_tests.py" in line)
        assert re.search(rf"{' '.join(tiers)} --", line), line
