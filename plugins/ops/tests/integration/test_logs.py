"""`elastic logs` beside real agents: over a restart to the run's end, and where ranks are that are not here."""

import os
import subprocess
import sys

from elastic_core.cli.main import main
from patience import patience
from redis_servers import redis_server
from support import places_of_runs, wait_for

__all__ = ["redis_server"]

LAST = "half a line at the end"
FAILS_ONCE = """
import os, pathlib, time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"rank {rank} attempt {attempt}", flush=True)
while not pathlib.Path(f"go-{attempt}").exists():
    time.sleep(0.02)
if (rank, attempt) == ("1", "0"):
    raise ValueError("boom")
print("half a line at the end", end="", flush=True)
"""


def followed(folder, *options, ranks, places=None):
    """Follow logs to the run's end: each attempt goes on when its ranks' lines are shown.

    Returns the lines from before the restart was ordered, all others, and the code.
    """
    command = [sys.executable, "-m", "elastic_core", "logs", "-f", *map(str, options)]
    env = os.environ | (places or {})
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as shown:
        first = {shown.stdout.readline().rstrip("\n") for _ in range(ranks)}
        (folder / "go-0").touch()
        second = []
        while sum(line.endswith("attempt 1") for line in second) < ranks and (line := shown.stdout.readline()):
            second.append(line.rstrip("\n"))
        (folder / "go-1").touch()
        rest, _ = shown.communicate(timeout=patience(60))
    return first, [*second, *rest.splitlines()], shown.returncode


def test_followed_over_a_restart_until_the_run_ends(elastic, script, tmp_path, capsys):
    folder, logs = tmp_path / "run", tmp_path / "logs"
    agent = elastic(
        "--nproc-per-node", 2, "--max-restarts", 1, "--run-dir", folder, "--log-dir", logs, "-r", 3,
        script(FAILS_ONCE), cwd=tmp_path,
    )  # fmt: skip
    wait_for(lambda: (folder / "logs.json").exists() and (folder / "status.json").exists(), what="index and status")
    first, lines, code = followed(tmp_path, "--rank", 1, folder, ranks=1)
    assert agent.wait() == 0, agent.err
    assert (first, code) == ({"[1]: rank 1 attempt 0"}, 0)
    assert [line for line in lines if "err" not in line.split(":")[0]] == ["[1]: rank 1 attempt 1", f"[1]: {LAST}"]
    assert "[1 err]: ValueError: boom" in lines
    assert main(["logs", "--round", "0", "--stream", "stdout", "--rank", "1", str(folder)]) == 0
    assert capsys.readouterr().out == "rank 1 attempt 0\n"


WAITS_FOR_THE_END = """
import time
from elastic_core.api import AgentHook, Power

class Waits(AgentHook):
    api_version = 1
    powers = frozenset({Power.RUN})
    def on_workers_started(self, event):  # hooks are called one after another, in the order of their names
        while self.run.workers():
            time.sleep(0.01)
"""


def test_output_of_a_worker_that_has_ended_before_a_hook_is_notified_of_it(elastic, script, tmp_path, capsys):
    site, folder = tmp_path / "site", tmp_path / "run"
    meta = site / "a_waits-1.0.dist-info"
    meta.mkdir(parents=True)
    (site / "a_waits.py").write_text(WAITS_FOR_THE_END)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: a-waits\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[elastic_core.hooks]\na-waits = a_waits:Waits\n")
    agent = elastic(
        "--run-dir", folder, "--log-dir", tmp_path / "logs", "-r", 3, script("print('its last words')"),
        env={"PYTHONPATH": str(site)},
    )  # fmt: skip
    assert agent.wait() == 0, agent.err
    assert main(["logs", str(folder)]) == 0
    assert capsys.readouterr().out == "[0]: its last words\n"


def test_two_nodes_of_one_host_and_a_rank_that_is_elsewhere(
    elastic, script, tmp_path, capsys, monkeypatch, redis_server
):
    here, there = tmp_path / "here", tmp_path / "there"
    for place in (here, there):
        place.mkdir()
    store = ["--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", "spread"]
    text = script(FAILS_ONCE)
    agents = [
        elastic(
            *store, "--nnodes", 3, "--node-id", name, "--node-rank", number, "-r", 3, text,
            env=places_of_runs(place), cwd=tmp_path,
        )
        for number, (name, place) in enumerate((("a@h", here), ("b@h", here), ("c@x", there)))
    ]  # fmt: skip
    found = lambda name: len([*here.glob(f"**/{name}"), *there.glob(f"**/{name}")])  # noqa: E731
    wait_for(lambda: found("logs.json") == found("status.json") == 3, what="index and status of all")
    for name, value in places_of_runs(here).items():
        monkeypatch.setenv(name, value)
    shown = []

    def all_are_shown():
        code = main(["logs", "--rank", "0-2", *store])  # 2 where no line is there yet, and a node does not serve yet
        shown.append(capsys.readouterr())
        return code == 0 and len(shown[-1].out.splitlines()) >= 3

    wait_for(all_are_shown, what="a line of each rank")
    said = shown[-1]
    assert sorted(said.out.splitlines()) == [f"[{rank}]: rank {rank} attempt 0" for rank in range(3)]
    assert said.err == ""
    for agent in agents:
        agent.signal(15)
    assert [agent.wait() for agent in agents] == [143] * 3


def test_ranks_of_other_nodes_are_followed_over_a_restart(elastic, script, tmp_path, redis_server):
    store = ["--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", "far"]
    options = ("--nnodes", 2, "--max-restarts", 1, "--restart-backoff", 0, "-r", 3)
    agents = []
    for number, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        place = ("--node-id", f"{name}@x", "--node-rank", number)
        env = places_of_runs(tmp_path / name)
        agents.append(elastic(*store, *options, *place, script(FAILS_ONCE), env=env, cwd=tmp_path))
    wait_for(lambda: len([*tmp_path.glob("?/**/logs.json")]) == 2, what="both write their logs")
    (tmp_path / "elsewhere").mkdir()
    first, rest, code = followed(
        tmp_path, "--rank", "0,1", *store, ranks=2, places=places_of_runs(tmp_path / "elsewhere")
    )
    assert [agent.wait() for agent in agents] == [0, 0]
    assert (first, code) == ({"[0]: rank 0 attempt 0", "[1]: rank 1 attempt 0"}, 0)
    said = sorted(line for line in rest if " err]" not in line)
    ends = [f"[{rank}]: {text}" for rank in (0, 1) for text in (LAST, f"rank {rank} attempt 1")]
    assert said in (ends, [ends[0], *ends]), rest  # each once, but what rank 0 may have come to say in both rounds
    assert "[1 err]: ValueError: boom" in rest
