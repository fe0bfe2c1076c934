"""Nodes of a real run join, are killed and drain: its rounds, and the incident of the lost node on each other node."""

import json
import os
import signal

from elastic_ops.status.document import read_status
from ending_kit import WAITS
from patience import patience
from redis_servers import redis_server
from support import places_of_runs, wait_for

__all__ = ["redis_server"]

FAILS_ONCE = """
import os, pathlib, sys, time
over, failed = map(pathlib.Path, sys.argv[1:])
if int(os.environ["WORLD_SIZE"]) == 1 and not failed.exists():
    failed.touch()
    raise ValueError("boom")
while not over.exists():
    time.sleep(0.05)
"""


def test_who_joined_was_lost_and_left_is_there_and_only_the_lost_node_is_an_incident(
    elastic, script, ask, tmp_path, redis_server
):
    store = ["--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", "bert"]
    text, folders = script(FAILS_ONCE), {name: tmp_path / f"run-{name}" for name in "abc"}

    def start(name):
        conf = f"last_call_timeout=0.5,lease_ttl={patience(3):g}"
        return elastic(
            *store, "--nnodes", "1:3", "--max-restarts", "1", "--rdzv-conf", conf, "--node-id", name,
            "--run-dir", folders[name], text, tmp_path / "over", tmp_path / "failed",
        )  # fmt: skip

    def runs(name, *, world, rounds):
        def there():
            if not (folders[name] / "status.json").exists():
                return False
            status = read_status(folders[name] / "status.json")
            return (
                status.state == "running"
                and (status.round.world_size, len(status.rounds)) == (world, rounds)
                and all(past.ended_ns for past in status.rounds[:-1])
            )

        wait_for(there, what=f"{name}'s round of {world}")

    (tmp_path / "failed").touch()  # until a is alone for the second time
    agents = {"a": start("a")}
    runs("a", world=1, rounds=1)
    agents["b"] = start("b")
    runs("a", world=2, rounds=2)
    agents["c"] = start("c")
    runs("a", world=3, rounds=3)
    runs("c", world=3, rounds=1)
    os.kill(agents["b"].pid, signal.SIGKILL)
    runs("a", world=2, rounds=4)
    runs("c", world=2, rounds=2)

    def incidents(*words):
        code, said = ask("incidents", "--json", *words)
        assert code == 0, said
        return [one["incident"] for one in json.loads(said)["incidents"]]

    for name in "ac":  # on each node that goes on
        (lost,) = wait_for(lambda name=name: [one for one in incidents(folders[name]) if one["phases"]["start_s"]])
        assert (lost["failure_class"], lost["node_id"], lost["round_index"]) == ("node lost", "b", 2)
        assert lost["summary"].startswith("b was lost (rank ")
        assert lost["fields"] == {
            "end of the round": "b lost; 2 nodes with 2 workers go on",
            "next round": "3, 2 nodes with 2 workers",
        }
        assert (lost["decision"]["type"], lost["decision"]["rule"]) == ("restart", "membership change")
        assert lost["restart_count"] == 0
        code, said = ask("incidents", "--last", folders[name])
        assert said.startswith("── round 2 of run 'bert' failed: node lost; restarted ─")
        assert "Decision: restart (no restart is counted; membership change)" in said
        code, said = ask("status", folders[name])
        assert " (node lost, round 2); restart (membership change)\n" in said
        assert "0 restarts of 1, 3 membership changes" in said

    (tmp_path / "failed").unlink()
    os.kill(agents["c"].pid, signal.SIGTERM)
    assert agents["c"].wait() == 143, agents["c"].err
    runs("a", world=1, rounds=6)  # the fifth round failed, since its one worker did

    first, second = incidents(folders["a"])
    assert (first["failure_class"], second["failure_class"]) == ("node lost", "user exception")
    assert [one["failure_class"] for one in incidents(folders["c"])] == ["node lost"], "a drained node is no incident"
    code, said = ask("incidents", folders["a"], 2)
    assert said.startswith("── round 4 of run 'bert' failed: rank 0; restarted ─")

    code, said = ask("status", "--history", folders["a"])
    assert code == 0
    assert all(len(line) <= 80 for line in said.splitlines())
    head, _, heads, *lines = said.splitlines()
    assert head == "run 'bert', node a: running"
    assert heads.split("  ")[0] == "ROUND"
    told = [line.strip() if line.startswith(" ") else [line.split()[0], *line.split()[-3:]] for line in lines]
    assert told == [
        ["0", "1", "1", "membership"],
        "ended: 1 node joined; 2 nodes go on",
        ["1", "2", "2", "membership"],
        "joined: b",
        "ended: 1 node joined; 3 nodes go on",
        ["2", "3", "3", "membership"],
        "joined: c",
        "ended: b lost; 2 nodes with 2 workers go on",
        ["3", "2", "2", "membership"],
        "lost: b",
        "ended: c left; 1 node with 1 worker goes on",
        ["4", "1", "1", "failure"],
        "left: c",
        "ended: ValueError: boom",
        ["5", "1", "1", "-"],
    ]
    (run,) = json.loads(ask("status", "--history", "--json", folders["a"])[1])["runs"]
    assert [(past["joined"], past["lost"], past["left"]) for past in run["rounds"]] == [
        ([], [], []), (["b"], [], []), (["c"], [], []), ([], ["b"], []), ([], [], ["c"]), ([], [], []),
    ]  # fmt: skip
    assert run["earlier_rounds"] == 0

    code, said = ask("status", "--history", *store)
    assert code == 0
    assert "ended +" in said
    assert "ValueError: boom" in said
    assert "Only the nodes know the other rounds" in said
    assert [one["failure_class"] for one in incidents(*store)] == ["user exception"]
    code, said = ask("status", "--history", "--watch", 1, folders["a"])
    assert (code, "--history: --watch is given too; expected one of both" in said) == (2, True)

    (tmp_path / "over").touch()
    assert agents["a"].wait() == 0, agents["a"].err
    assert "failed: node lost" not in agents["a"].err
    code, said = ask("status", "--history", folders["a"])
    assert said.splitlines()[-1].startswith("verdict: done, exit code 0")


def test_a_run_in_a_store_whose_agents_are_here_has_all_of_its_rounds(
    elastic, script, ask, tmp_path, monkeypatch, redis_server
):
    places = places_of_runs(tmp_path)
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    store = ["--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", "bert"]

    def start(name):
        words = [*store, "--rdzv-conf", "last_call_timeout=0.3", "--nnodes", "1:3", "--node-id", name]
        return elastic(*words, script(WAITS), env=places)

    agents = [start("n0")]

    def rounds():
        code, said = ask("status", "--history", "--json", *store)
        return json.loads(said)["runs"][0]["rounds"] if code == 0 else []

    wait_for(lambda: [past["began"] != "" for past in rounds()] == [True])
    agents.append(start("n1"))
    wait_for(lambda: [(past["began"] != "", past["joined"]) for past in rounds()] == [(True, []), (True, ["n1"])])
    code, said = ask("status", "--history", *store)
    assert (code, "joined: n1" in said, "Only the nodes know" in said) == (0, True, False)
    assert ask("stop", *store)[0] == 0
    assert [agent.wait() for agent in agents] == [143, 143]
