"""What nodes are doing when one is lost, joins or leaves: those that stay keep their processes, and no bit differs."""

import signal

import pytest

from chaos.multi_node import Run
from chaos.with_torch.warm_nodes import LEASE_S, LONG_LEASE_S, STEP_OF_ACTIVITY, WarmRun, blocked, pids
from proc_kit import is_alive
from support import wait_for

ACTIVITIES = ("compute", "collective", "point-to-point", "save", "data loading", "first step")
EVENTS = ("lost", "silent", "join", "drain")
EVERY_DAY = {("collective", "lost"), ("point-to-point", "silent"), ("save", "join"), ("data loading", "drain")}
ALONE = "last_call_timeout=0.1"
"""With it as an option of the backend the first round does not wait for another node."""
CELLS = [
    pytest.param(activity, event, marks=[] if (activity, event) in EVERY_DAY else [pytest.mark.chaos_full])
    for event in EVENTS
    for activity in ACTIVITIES
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("activity", "event"), CELLS)
def test_the_workers_that_stay_run_on_to_the_same_bits(served_run: Run, states, activity, event):
    joins = event == "join"
    lease_s = LONG_LEASE_S if event in ("join", "drain") else LEASE_S
    run = WarmRun(served_run, states, activity, holder="a:1" if joins else "b:1", lease_s=lease_s)
    # The node that goes has rank 0, and with it the store of the group, in every second row.
    order = "ba" if ACTIVITIES.index(activity) % 2 else "ab"
    nodes = {"a": run.node("a", conf=ALONE)} if joins else run.both(order)
    a = nodes["a"]
    run.until("at-0", 2 * len(nodes), *nodes.values())
    before = {name: pids(run.began(node, 0)) for name, node in nodes.items()}
    if activity != "compute":
        for pid in [pid for each in before.values() for pid in each.values()]:
            wait_for(lambda pid=pid: blocked(pid), what=f"{activity} to block")

    match event:
        case "lost":
            nodes.pop("b").power_off()
        case "silent":
            nodes["b"].fall_silent()
        case "join":
            nodes["b"] = run.node("b", conf=ALONE)
        case "drain":
            nodes["b"].agent.signal(signal.SIGTERM)

    began = run.began(a, 1)
    assert {line["world"] for line in began.values()} == {4 if joins else 2}
    assert {line["restarts"] for line in began.values()} == {0}
    if activity == "first step":
        assert not set(pids(began).values()) & set(before["a"].values())
        assert {line["step"] for line in began.values()} == {0}
    else:
        assert pids(began) == before["a"], a.agent.err
        assert "can't be kept" not in a.agent.err
        assert {(line["step"], line["source"]) for line in began.values()} == {(STEP_OF_ACTIVITY, "memory")}
    if joins:
        newcomers = run.began(nodes["b"], 1)
        assert {line["received"] for line in newcomers.values()} == {True}
    if activity == "save":
        survivors = {line["rank"] for line in a.says() if line["gen"] == 0}
        saved = run.saved(0)
        assert saved.keys() >= survivors
        assert {saved[rank] for rank in survivors} == {run.state_at(STEP_OF_ACTIVITY)}
    if event == "silent":
        nodes.pop("b").power_off()
    if event == "drain":
        nodes.pop("b").ends(143, 60)
        assert not any(map(is_alive, before["b"].values()))
    run.ends(*nodes.values(), index=1)
