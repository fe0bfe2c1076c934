"""Hooks of real runs get the nodes of each round, and which nodes left a round."""

import signal

from elastic_core.api import MembershipChanged, RoundJoined
from elastic_plugin_kit import run_agents
from patience import patience
from redis_servers import redis_server

__all__ = ["redis_server"]


def members_of(agent):
    return [[(member.node_id, member.local_world_size) for member in e.members] for e in agent.moments_of(RoundJoined)]


def test_a_run_of_one_node_has_one_member():
    with run_agents(1, nproc_per_node=2) as agents:
        agents.wait_for_workers(2)
        agents.finish()
        assert agents.wait() == [0]
        assert members_of(agents["a"]) == [[("a", 2)]]


def test_nodes_that_leave_and_nodes_that_are_lost_are_told_apart(redis_server):
    options = ("--rdzv-conf", f"last_call_timeout=0.5,lease_ttl={patience(2):g}")
    with run_agents(3, *options, nnodes="1:3", backend="redis", endpoint=redis_server.endpoint) as agents:
        agents.wait_for_workers(3)
        before = {
            node_id: len(agents[node_id].moments_of(MembershipChanged)) for node_id in "abc"
        }  # slow ones join later
        (first,) = members_of(agents["a"])[-1:]
        assert sorted(first) == [("a", 1), ("b", 1), ("c", 1)]
        assert members_of(agents["b"])[-1] == members_of(agents["c"])[-1] == first  # in rank order on each node
        stayed = agents[first[0][0]]
        drained, killed = (agents[node_id] for node_id, _ in first[1:])
        drained.signal(signal.SIGTERM)
        agents.wait_for_workers(2)
        killed.kill()
        agents.wait_for_workers(1)
        agents.finish()
        agents.wait()
        changes = [moment.change for moment in stayed.moments_of(MembershipChanged)][before[stayed.node_id] :]
        assert [(change.lost, change.left) for change in changes] == [
            ((drained.node_id,), (drained.node_id,)),
            ((killed.node_id,), ()),
        ]
        assert members_of(stayed)[-1] == [(stayed.node_id, 1)]
