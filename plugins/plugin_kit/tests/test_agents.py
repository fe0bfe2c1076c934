"""`run_agents`: what a test of a plugin sees of real agents, and that nothing of them is left."""

import os
import signal
import subprocess
import sys

import pytest

from elastic_core.api import DecisionTaken, FailureClass, WorkerEnded
from elastic_plugin_kit import run_agents
from proc_kit import descendants, is_alive

pytest_plugins = ["elastic_plugin_kit.agents.fixtures"]

FAILS_ONCE = """
import os, sys
os.write(1, f"round {os.environ['ELASTIC_ROUND']} rank {os.environ['RANK']}\\n".encode())
sys.exit(7 if os.environ["ELASTIC_ROUND"] == "0" else 0)
"""


def alive(pids):
    return [pid for pid in pids if is_alive(pid)]


def test_one_node_with_a_script_of_the_tests_own():
    with run_agents(1, "--max-restarts", "1", script=FAILS_ONCE, nproc_per_node=2) as agents:
        assert agents.wait() == [0]
        agent = agents["a"]
        assert agent.ranks == [(0, 1), (0, 1)]
        assert [round_.index for round_ in agent.rounds] == [0, 1]
        assert sorted(agent.stdout.splitlines())[0] == "round 0 rank 0"
        (incident,) = agent.incidents
        assert incident.failure_class is FailureClass.EXIT
        assert [moment.policy for moment in agent.moments_of(DecisionTaken)] == ["intensity"]
        assert 7 in [moment.exit.code for moment in agent.moments_of(WorkerEnded)]
        folder = agents.folder
    assert not folder.exists()


def test_nodes_come_are_killed_and_end_as_the_test_says(agents, tmp_path):
    run = agents(2, nnodes="2:3", environment={"COLOUR": "red"})
    run.wait_for_workers(2)
    assert sorted(run["a"].ranks[-1] + run["b"].ranks[-1]) == [0, 1]
    (worker,) = run["a"].workers
    assert (worker.world_size, worker.environment["COLOUR"]) == (2, "red")
    assert worker.environment["RANK"] == str(worker.rank)
    run.join("late")
    run.wait_for_workers(3)
    run["a"].kill()
    assert run["a"].exit_code == -signal.SIGKILL
    run.wait_for_workers(2)
    run.wait_for(lambda: run["late"].rounds[-1].membership_changes == 2)
    assert "script argument" not in run["late"].stderr  # all nodes were started alike
    run.finish()
    assert run.wait() == [-signal.SIGKILL, 0, 0]
    assert run.folder.parent == tmp_path


def test_workers_are_killed_or_end_with_a_code_of_their_own(agents):
    run = agents(1, "--max-restarts", "2", "--restart-backoff", "0", nproc_per_node=2)
    run.wait_for_workers(2)
    run[0].kill_worker(1)
    run.wait_for(lambda: len(run[0].rounds) == 2)
    run.wait_for_workers(2)
    run[0].end_worker(0, exit_code=77)
    run.wait_for(lambda: len(run[0].rounds) == 3 and len(run[0].incidents) == 2)
    first, second = run[0].incidents
    assert (first.first.exit.global_rank, first.first.exit.code) == (1, -signal.SIGKILL)
    assert (second.first.exit.global_rank, second.first.exit.code) == (0, 77)
    run.wait_for_workers(2)
    run.finish(3)
    assert run.wait() == [3]


def test_a_test_that_fails_shows_what_agents_printed_and_leaves_nothing():
    def fails():
        with run_agents(2) as agents:
            agents.wait_for_workers(2)
            seen.append(agents.folder)
            pids.extend(pid for agent in agents for pid in (agent.pid, *descendants(agent.pid)))
            assert alive(pids) == pids
            agents.wait_for(lambda: False, what="what never comes", within_s=0.1)

    seen, pids = [], []
    with pytest.raises(AssertionError, match=r"not within 0\.1 s: what never comes") as caught:
        fails()
    assert "--- agent b, runs:" in str(caught.value)
    assert alive(pids) == []
    assert not seen[0].exists()


def test_who_got_the_number_of_an_agent_that_has_ended_keeps_its_children():
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as strangers,
        run_agents(script="", within_s=20) as agents,
    ):
        assert agents.wait() == [0]
        agents["a"].pid = os.getpid()
        agents["a"].kill()
        agents.close()
        strangers.communicate(b"\n")
        assert strangers.returncode == 0


def test_another_error_has_it_as_a_note():
    def fails():
        with run_agents(script="import sys; sys.exit('no data')") as agents:
            assert agents.wait() == [1]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fails()
    (note,) = caught.value.__notes__
    assert note.startswith("--- agent a, exit code 1:\n")
    assert "no data" in note


def test_other_names_do_not_pay_for_it():
    code = "import sys, elastic_plugin_kit; print('elastic_plugin_kit.agents' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
