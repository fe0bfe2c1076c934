"""The hook behind `--agent-store`, without a run around it."""

from types import SimpleNamespace

import pytest

from elastic_core.api import ElasticError, HookSettings, WorkersStarting
from elastic_plugin_kit import AgentHookConformance, FakeRun, sample_round
from elastic_plugin_kit.real_loop import RealLoop
from elastic_torchrun.store.hook import WATCH, AgentStore, StoreServer


def made(*, given=False, **settings):
    return AgentStore(HookSettings(name="agent-store", options={"agent_store": given}, **settings))


class TestAgentStore(AgentHookConformance):
    @pytest.fixture
    def make_hook(self):
        return lambda run_dir: made(run_dir=run_dir)


@pytest.mark.parametrize(("given", "watched"), [(False, {0, 1}), (True, None)])
def test_the_first_two_ranks_look_unless_a_store_is_there_from_the_start(given, watched):
    answer = made(given=given).on_workers_starting(WorkersStarting(round=sample_round(), restart_count=0))
    assert (answer and set(answer.workers)) == watched
    assert answer is None or answer.workers[0].startup == (WATCH,)


def test_a_store_that_the_rendezvous_has_leaves_the_flag_without_effect():
    for given in (False, True):
        hook, loop = made(given=given), RealLoop()
        hook.master_server(loop).unused("'c10d' has a store of its own")
        assert loop.notices == ["--agent-store without effect: 'c10d' has a store of its own"] * given


class Asked(AgentStore):
    """Rank 0 asks it; its workers run, or don't."""

    def __init__(self, *, workers, node_rank=0):
        super().__init__(HookSettings(name="agent-store", options={"agent_store": False}))
        self.run = FakeRun()
        self.run.workers = lambda: workers
        self.loop = RealLoop()
        self.loop.post = lambda call: call()
        self.opened, self.closed = [], []
        sidecar = SimpleNamespace(
            open_store=lambda port, done: self.opened.append((port, done)), close=lambda: self.closed.append(True)
        )
        self.master_server(self.loop)._sidecar = sidecar
        self._round = SimpleNamespace(node_rank=node_rank, master_port=4711)


def test_rank_0_gets_a_store_once_and_later_rounds_have_one():
    hook = Asked(workers=("worker",))
    assert hook._asked({}).content == hook._asked({}).content == "a store is opened at MASTER_PORT"
    assert [port for port, _ in hook.opened] == [4711]
    assert hook.hosting
    [line] = hook.loop.notices
    assert line.startswith("rank 0 connects to a store at MASTER_PORT 4711, and no process hosts one")


def test_one_that_can_not_be_opened_is_a_line_and_none_in_later_rounds():
    hook = Asked(workers=("worker",))
    hook._asked({})
    hook.opened[0][1]("port 4711: address already in use")
    assert (hook.hosting, hook.closed) == (False, [True])
    assert hook.loop.notices[1] == (
        "the store at MASTER_PORT can't be opened: port 4711: address already in use; rank 0 waits for it"
    )


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        (Asked(workers=()), "no rank 0 runs on this node"),
        (Asked(workers=("worker",), node_rank=1), "no rank 0 runs on this node"),
    ],
)
def test_a_node_without_rank_0_refuses(hook, reason):
    with pytest.raises(ElasticError, match=reason):
        hook._asked({})


def test_a_store_of_the_rendezvous_is_the_refusal():
    hook = Asked(workers=("worker",))
    server = hook._server
    assert isinstance(server, StoreServer)
    server.unused("'c10d' has a store of its own")
    with pytest.raises(ElasticError, match="the rendezvous has a store of its own"):
        hook._asked({})
