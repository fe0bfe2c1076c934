"""What a worker is doing when its round ends, times how the round ends: it leaves, and the next round's group works.

With a torch that has it, once more with groups that the function has reconfigured.
"""

import importlib.metadata
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fake_agent import WAIT_S, marked
from support import wait_for

SCRIPT = (Path(__file__).parents[2] / "warm_activities.py").read_text()
ACTIVITIES = (
    "compute",
    "backward",
    "all_reduce",
    "waited",
    "receive",
    "send",
    "barrier",
    "gather_objects",
    "new_group",
    "subgroup",
    "sharded",
    "functional",
    "transfer",
    "initialise",
    "join",
    "connect",
    "stopped",
    "data",
    "persistent",
    "save",
)
NOTICED = (*ACTIVITIES[1:8], "subgroup", "sharded", "functional")
"""Activities that end by themselves with an error if the peer is killed."""


RECONFIGURES_SINCE = (2, 15)


@pytest.fixture(params=["made", "reconfigured"])
def group_variables(request):
    """The variables of workers whose groups are made in this way."""
    if request.param == "made":
        return {}
    release = importlib.metadata.version("torch")
    if tuple(map(int, release.split(".")[:2])) < RECONFIGURES_SINCE:
        pytest.skip(f"torch {release} can't reconfigure process groups; 2.15 can")
    return {"RECONFIGURES": "1"}


@pytest.fixture
def peers(agent, group_variables):
    """A function that forks a peer, which is no kept worker, from a process that has imported torch."""
    script = agent.folder / "peers.py"
    script.write_text(SCRIPT)
    with (agent.folder / "peers.err").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-u", str(script)],
            env={**os.environ, **group_variables, "PEERS": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )

    def fork(number, rank, activity):
        variables = {**agent.variables(number, rank, 2), "ACTIVITY": activity, "PEER": "1"}
        process.stdin.write(" ".join(f"{name}={value}" for name, value in variables.items()) + "\n")
        process.stdin.flush()
        return int(next(line for line in process.stdout if line.strip().isdigit()))

    yield fork
    os.killpg(process.pid, signal.SIGKILL)
    process.stdin.close()
    process.stdout.close()
    process.wait()


def waits(worker):
    """Return whether the main thread of a worker is in a system call that waits."""
    return Path(f"/proc/{worker.pid}/task/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def reached(worker, number, activity):
    """Wait until the worker is in the middle of its activity. It must leave from any other place as well."""
    marked(worker, number, "here")
    if activity != "compute":
        wait_for(lambda: waits(worker), within_s=WAIT_S, what=f"{activity} to block")


def left(agent, worker, number, activity):
    """End the round, and check that the worker leaves it."""
    (agent.folder / "go_on").unlink(missing_ok=True)
    (agent.folder / "saved").unlink(missing_ok=True)
    agent.leave(worker, number)
    if activity == "save":
        (agent.folder / "go_on").touch()
    message = worker.expect("left", round=number)
    print(f"{activity:15} {message['ms']} {message['held']}")
    if activity == "save":
        assert (agent.folder / "saved").read_text() == "whole"
    return message


def ranks_of(activity):
    """Return the ranks of the worker that is kept, and of its peer."""
    return (1, 0) if activity in ("join", "connect", "stopped") else (0, 1)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_worker_leaves_when_its_peer_is(agent, peers, group_variables, how):
    worker = None
    for number, activity in enumerate((*ACTIVITIES, "end")):
        own, other = ranks_of(activity)
        if worker is None:
            (worker,) = agent.begin(SCRIPT, 2, local_ranks=[own], ACTIVITY=activity, **group_variables)
        else:
            agent.new_port()
            agent.place(worker, number, own, 2, ACTIVITY=activity)
            worker.expect("entered", round=number)
        peer = peers(number, other, activity)
        if activity == "end":
            break
        reached(worker, number, activity)
        os.kill(peer, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        if how == "killed" and activity in NOTICED:
            worker.expect("held", round=number)
        message = left(agent, worker, number, activity)
        if how == "stopped" or activity in NOTICED:
            assert bool(message["held"]) == (how == "killed")
        os.kill(peer, signal.SIGKILL)
    worker.expect("returned", round=number)
    assert worker.process.wait(WAIT_S) == 0


def test_healthy_workers_leave(agent, group_variables):
    worker, peer = agent.begin(SCRIPT, 2, ACTIVITY="idle", **group_variables)
    for each in (worker, peer):
        left(agent, each, 0, "idle")
    for number, activity in enumerate((*ACTIVITIES, "end"), start=1):
        own, other = ranks_of(activity)
        agent.new_port()
        agent.place(worker, number, own, 2, ACTIVITY=activity)
        agent.place(peer, number, other, 2, ACTIVITY=activity, PEER="1")
        for each in (worker, peer):
            each.expect("entered", round=number)
        if activity == "end":
            break
        reached(worker, number, activity)
        marked(peer, number, "idle")
        assert not left(agent, worker, number, activity)["held"]
        left(agent, peer, number, "idle")
    for each in (worker, peer):
        each.expect("returned", round=number)
        assert each.process.wait(WAIT_S) == 0
