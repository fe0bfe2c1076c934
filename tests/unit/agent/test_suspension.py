"""A node that the terminal stops: its workers before itself, and the time in the stop counts for no timer."""

import math

import pytest

from elastic_core.agent.suspension import suspend_node
from support import Lines


class Node:
    """A node's workers, reactor and clock, in the order in which they are used."""

    def __init__(self, *alive):
        self.alive, self.now_s, self.did = frozenset(alive), 100.0, Lines()

    def __call__(self, left_s):
        self.fence_left_s = left_s
        suspend_node(self, self, self, log=self.did, stop_agent=self.stop_agent, clock=self)
        return self.did

    def monotonic_s(self):
        return self.now_s

    def suspend(self):
        self.did.append("suspend")

    def resume(self):
        self.did.append("resume")

    def stop_agent(self):
        self.did.append("stop")
        self.now_s += 60.0

    def leave_out(self, seconds):
        self.did.append(seconds)


@pytest.mark.parametrize(("alive", "left_s"), [((0, 1), math.inf), ((), math.inf), ((), 4.2)])
def test_workers_stop_before_the_agent_and_go_on_after_it_without_a_line(alive, left_s):
    assert Node(*alive)(left_s) == ["suspend", "stop", 60.0, "resume"]


@pytest.mark.parametrize(("alive", "left_s", "words"), [((0,), 4.25, "1 worker stop"), ((0, 1), -1, "2 workers stop")])
def test_where_a_lease_ends_meanwhile_one_line_reports_it_before_the_stop(alive, left_s, words):
    line, *rest = Node(*alive)(left_s)
    assert rest == ["suspend", "stop", 60.0, "resume"]
    assert line.startswith(f"SIGTSTP: the agent and {words} here; unless they are continued within ")
    assert f"within {max(0.0, left_s):.1f} s, the lease ends" in line
