"""One node's rendezvous: a round at once, a new token each, nothing to watch."""

import threading

import pytest

from elastic_core import messages as m
from elastic_core.errors import ConfigError, RendezvousError, WaitCancelledError
from elastic_core.launcher.agent_side import open_rendezvous
from elastic_core.rendezvous.local import LocalRendezvous
from elastic_core.system.clock import WaitBudget
from elastic_core.types import RendezvousSettings


def settings(**changes):
    base = {"backend": "local", "run_id": "r", "endpoint": "", "min_nodes": 1, "max_nodes": 1, "local_world_size": 4}
    return RendezvousSettings(**(base | changes))


def test_round_is_this_node_alone():
    info = LocalRendezvous(settings(node_id="n0", role="trainer", local_addr="10.0.0.1")).next_rendezvous()
    assert (info.rank, info.world_size, info.store) == (0, 1, None)
    [member] = info.members
    assert (member.node_id, member.local_world_size, member.role, member.address) == ("n0", 4, "trainer", "10.0.0.1")
    assert info.master_addr is None
    assert info.master_port is None


def test_tokens_rise_and_nonces_differ():
    handler = LocalRendezvous(settings())
    rounds = [handler.next_rendezvous() for _ in range(3)]
    assert [info.round_token for info in rounds] == [1, 2, 3]
    assert len({info.nonce for info in rounds}) == 3
    assert all(info.nonce for info in rounds)


def test_master_of_the_user_is_kept():
    info = LocalRendezvous(settings(master_addr="127.0.0.5", master_port=1234)).next_rendezvous()
    assert (info.master_addr, info.master_port) == ("127.0.0.5", 1234)


@pytest.mark.parametrize(("low", "high"), [(2, 2), (1, 4), (2, 4)])
def test_several_nodes_need_another_backend(low, high):
    with pytest.raises(ConfigError, match=rf"--nnodes: {low}:{high}; expected 1 with rendezvous") as caught:
        LocalRendezvous(settings(min_nodes=low, max_nodes=high))
    for backend in ("redis", "etcd", "c10d", "static"):
        assert backend in caught.value.hint


def test_watch_sleeps_once_however_long():
    class Counting(WaitBudget):
        sleeps = ()

        def sleep(self, seconds):
            self.sleeps += (seconds,)

    handler = LocalRendezvous(settings())
    handler.wait = Counting()
    assert handler.watch(1e6) is None
    assert handler.wait.sleeps == (1e6,)


def test_cancelled_wait_ends_watch_and_join():
    handler = LocalRendezvous(settings())
    handler.wait.cancel()
    with pytest.raises(WaitCancelledError):
        handler.watch(3600.0)
    with pytest.raises(WaitCancelledError):
        handler.next_rendezvous()


def test_an_agent_gets_a_round_at_once_and_without_a_thread():
    class Agent:
        events = ()

        def take(self, event):
            self.events += (event,)

        def form(self, info, done):
            assert (info.rank, info.world_size) == (0, 1)
            done(RendezvousError("no port"))

    agent, threads = Agent(), {*threading.enumerate()}  # one of a test before may not have ended yet
    rounds = open_rendezvous(LocalRendezvous(settings()), agent)
    for request in (m.JoinRendezvous(), m.WatchRound(), m.LeaveRendezvous(close=True), m.LeaveRendezvous(close=True)):
        rounds.post(request)
    assert agent.events == (m.RendezvousFailed(summary="no port"), m.RendezvousLeft())
    assert threads.issuperset(threading.enumerate())
