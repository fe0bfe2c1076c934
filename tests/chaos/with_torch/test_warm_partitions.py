"""A node whose agent stands still beyond its lease, before, in and after the moment at which its workers leave a round.

The guard ends the workers, also those that have left and wait for a place. No process begins a round while another one
is in the round before. The workers of the other node run on, and so does the run when the agent goes on.
"""

import os
import signal

import pytest

from chaos.multi_node import Run
from chaos.with_torch.warm_nodes import LONG_S, STEP_OF_ACTIVITY, WarmRun, pids
from proc_kit import is_alive
from support import wait_for

BUDGET = ("--max-restarts", "2")


def continued(run, a, b, before, index):
    """Continue the agent after the guard has ended its workers, and the other node is in a round of its own."""
    alone = run.began(a, index)
    assert {line["world"] for line in alone.values()} == {2}
    assert not any(map(is_alive, before["b"].values()))
    b.agent.signal(signal.SIGCONT)
    together = [run.began(node, index + 1) for node in (a, b)]
    assert {line["world"] for lines in together for line in lines.values()} == {4}
    assert pids(together[0]) == pids(alone), "its workers were kept for the node that returns"
    assert not set(pids(together[1]).values()) & set(before["b"].values())
    return pids(alone)


@pytest.mark.timeout(300)
@pytest.mark.chaos_full
@pytest.mark.parametrize("first", ["ab", "ba"], ids=["with the last ranks", "with rank 0"])
def test_a_node_that_stands_still_while_its_workers_train(served_run: Run, states, first):
    run = WarmRun(served_run, states, "collective", holder="b:1")
    (served_run.shared / "hold-1").touch()  # so that the training does not end while the node is away
    nodes = run.both(first)
    a, b = nodes["a"], nodes["b"]
    run.until("at-0", 4, a, b)
    before = {name: pids(run.began(node, 0)) for name, node in nodes.items()}
    b.agent.signal(signal.SIGSTOP)
    wait_for(lambda: not any(map(is_alive, before["b"].values())), within_s=LONG_S, what="the guard to end them")
    assert continued(run, a, b, before, 1) == before["a"]
    run.ends(a, b, index=2)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", [pytest.param("leave", marks=pytest.mark.chaos_full), "are kept"])
def test_a_node_that_stands_still_while_its_workers(served_run: Run, states, when):
    run = WarmRun(served_run, states, "save", holder="")
    shared = served_run.shared
    (shared / "hold-1").touch()
    # These stay in their save although they are asked to leave: so no round begins before the test goes on.
    lingering = [shared / f"linger-{rank}" for rank in ((2, 3) if when == "leave" else (0,))]
    for path in lingering:
        path.touch()
    nodes = run.both("ab", *BUDGET)
    a, b = nodes["a"], nodes["b"]
    run.until("at-0", 4, a, b)
    before = {name: pids(run.began(node, 0)) for name, node in nodes.items()}
    os.kill(before["a"][1], signal.SIGKILL)
    marks = [shared / f"asked-0-{rank}" for rank in (0, 2, 3)]
    if when == "are kept":
        marks += [shared / f"left-{pid}-0" for pid in before["b"].values()]
    for mark in marks:
        wait_for(mark.exists, within_s=LONG_S, what=f"{mark.name}\n{a.agent.err}\n{b.agent.err}")
    b.agent.signal(signal.SIGSTOP)
    if when == "leave":
        let_go(lingering)
    wait_for(lambda: not any(map(is_alive, before["b"].values())), within_s=LONG_S, what="the guard to end them")
    if when == "are kept":
        let_go(lingering)
    assert continued(run, a, b, before, 1)[0] == before["a"][0]
    assert run.saved(0) == dict.fromkeys((0, 2, 3), run.state_at(STEP_OF_ACTIVITY))
    run.ends(a, b, index=2)


def let_go(paths):
    for path in paths:
        path.unlink()
