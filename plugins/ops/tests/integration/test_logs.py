"""`elastic logs` beside real agents: over a restart to the run's end, and where ranks are that are not here."""

from elastic_core.cli.main import main
from redis_servers import redis_server
from support import places_of_runs, wait_for

__all__ = ["redis_server"]

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


def test_followed_over_a_restart_until_the_run_ends(elastic, script, tmp_path, capsys):
    folder, logs = tmp_path / "run", tmp_path / "logs"
    agent = elastic(
        "--nproc-per-node", 2, "--max-restarts", 1, "--run-dir", folder, "--log-dir", logs, "-r", 3,
        script(FAILS_ONCE), cwd=tmp_path,
    )  # fmt: skip
    wait_for(lambda: (folder / "logs.json").exists() and (folder / "status.json").exists(), what="index and status")
    (tmp_path / "go-0").touch()
    (tmp_path / "go-1").touch()
    assert main(["logs", "-f", "--rank", "1", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert agent.wait() == 0, agent.err
    assert [line for line in lines if "err" not in line.split(":")[0]] == [
        "[1]: rank 1 attempt 0",
        "[1]: rank 1 attempt 1",
        "[1]: half a line at the end",
    ]
    assert "[1 err]: ValueError: boom" in lines
    assert main(["logs", "--round", "0", "--stream", "stdout", "--rank", "1", str(folder)]) == 0
    assert capsys.readouterr().out == "rank 1 attempt 0\n"


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
    assert main(["logs", "--rank", "0-2", *store]) == 0
    said = capsys.readouterr()
    own = sorted(said.out.splitlines())
    assert len(own) == 2
    assert all(line.endswith("attempt 0") for line in own)
    (line,) = said.err.splitlines()
    assert " is on node c@x (127.0.0.1). Try: there, elastic logs spread --rank " in line
    for agent in agents:
        agent.signal(15)
    assert [agent.wait() for agent in agents] == [143] * 3
