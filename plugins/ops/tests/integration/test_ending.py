"""`elastic stop` and `elastic drain` on real agents: by their store, and on their own host."""

import json

from ending_kit import WAITS, Nodes
from redis_servers import PASSWORD, redis_server
from support import places_of_runs, wait_for

__all__ = ["redis_server"]


def in_round(agents, world):
    wait_for(
        lambda: (
            all({"world": world}.items() <= (line.items()) for agent in agents for line in rounds(agent)[-1:])
            and all(rounds(agent) for agent in agents)
        ),
        what=f"a round of {world}",
    )


def rounds(agent):
    return [line for line in agent.lines() if "round" in line]


def saved(agent):
    return agent.lines()[-1] == {"saved": True}


def test_a_node_leaves_by_the_store_and_the_others_go_on_until_the_run_is_stopped(elastic, script, ask, redis_server):
    redis_server.call(f"CONFIG SET requirepass {PASSWORD}")
    store = ["--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", "bert"]
    secret = script(PASSWORD, "password")
    nodes = Nodes(elastic, script, *store, conf=f"password_file={secret}")
    agents = nodes.start("n0@x", "n1@y", "n2@z")
    in_round(agents.values(), 3)
    mine = [*store, "--rdzv-conf", f"password_file={secret}"]

    code, line = ask("drain", "n1", *store)
    assert (code, "password" in line) == (4, True)
    code, line = ask("drain", "n9@y", *mine)
    assert code == 2
    assert "run 'bert' has no node 'n9@y'; it has 3 nodes (" in line
    assert "Try: 'n1@y'" in line
    code, line = ask("stop", "--user", "bob", *mine)
    assert (code, "was started by user" in line, "expected 'bob'" in line) == (2, True, True)

    code, said = ask("drain", "n1", *mine)  # the host's name will do
    assert (code, said) == (0, "run 'bert': to leave: 1 node (n1@y)\nrun 'bert': has left: 1 node (n1@y)\n")
    left = agents.pop("n1@y")
    assert (left.wait(), saved(left)) == (143, True)
    assert "this node is to leave the run: " in left.err
    in_round(agents.values(), 2)
    assert ask("drain", "n1@y", *mine) == (0, "run 'bert': n1@y has left it already\n")

    code, said = ask("stop", *mine)
    assert code == 0
    assert "run 'bert' is to stop: 2 nodes (" in said
    assert "(elastic stop) asked for it (exit code 143)" in said
    assert [(agent.wait(), saved(agent)) for agent in agents.values()] == [(143, True)] * 2
    assert all("incident" not in agent.err and "failed" not in agent.err for agent in agents.values())
    assert ask("stop", *mine)[0] == 0
    code, said = ask("status", "--json", *mine)
    (run,) = json.loads(said)["runs"]
    assert (run["state"], run["verdict"]["exit_code"]) == ("stopped", 143)
    late = nodes.start("n3")["n3"]
    assert late.wait() == 143
    assert "run 'bert' was stopped" in late.err
    assert late.out == ""


def test_on_one_host_no_store_is_needed(elastic, script, ask, tmp_path, monkeypatch):
    for name, value in places_of_runs(tmp_path).items():
        monkeypatch.setenv(name, value)
    assert ask("stop")[0] == 2
    agent = elastic("--node-id", "n0", script(WAITS), env=places_of_runs(tmp_path))
    wait_for(agent.lines)
    wait_for(lambda: ask("ctl", "ping")[0] == 0, what="the agent to listen")
    code, line = ask("drain", "n7")
    assert (code, f"node 'n7': not on this host, which has n0 of run '{agent.run_id}'" in line) == (2, True)
    assert line.endswith(f". Try: elastic drain {agent.run_id} n0\n")
    code, said = ask("stop", agent.run_id)
    assert (code, f"node n0 of run '{agent.run_id}' has ended\n" in said) == (0, True)
    assert (agent.wait(), saved(agent)) == (143, True)
