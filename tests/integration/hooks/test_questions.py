"""Hooks of a real run ask all nodes a question: the answers reach one of them, and its conclusion reaches all."""

import pytest

from elastic_core.api.feed import AnswersGathered, Concluded, NodesAsked
from elastic_plugin_kit import run_agents
from patience import patience
from redis_servers import redis_server

__all__ = ["redis_server"]

HOOK = """
from elastic_core.api import AgentHook, Power

class Ask(AgentHook):
    api_version = 1
    powers = frozenset({Power.RUN})

    def on_agent_started(self, event):
        self.node = event.node_id

    def on_workers_started(self, event):
        if event.round.node_rank == 0:
            self.run.ask_nodes("ask: state", within_s=20.0)

    def on_nodes_asked(self, event):
        self.run.answer_nodes(event.serial, b"well on " + self.node.encode())

    def on_answers_gathered(self, event):
        texts = [event.answers[node].decode() for node in sorted(event.answers)]
        self.run.conclude_nodes(event.serial, "; ".join(texts).encode() + b"\\xff\\x00")
"""


def install(folder, monkeypatch, hook):
    """Make a hook that all agents of this test have."""
    info = folder / "acme_ask-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-ask\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[elastic_core.hooks]\nask = acme_ask:Ask\n")
    (folder / "acme_ask.py").write_text(hook)
    monkeypatch.syspath_prepend(folder)  # the agents can import what this test can


@pytest.fixture
def _installed(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, HOOK)


@pytest.mark.usefixtures("_installed")
def test_all_nodes_get_the_conclusion_that_the_leaders_hook_draws_from_all_answers(redis_server):
    options = ("--rdzv-conf", f"last_call_timeout=0.5,lease_ttl={patience(2):g}")
    with run_agents(3, *options, nnodes="3", backend="redis", endpoint=redis_server.endpoint) as agents:
        agents.wait_for_workers(3)
        nodes = [agents[name] for name in "abc"]
        agents.wait_for(lambda: all(node.moments_of(Concluded) for node in nodes))
        agents.finish()
        assert agents.wait() == [0, 0, 0]
        gathered = [moment for node in nodes for moment in node.moments_of(AnswersGathered)]
        assert [(one.topic, dict(one.answers), one.missing) for one in gathered] == [
            ("ask: state", {name: f"well on {name}".encode() for name in "abc"}, ())
        ]
        for node in nodes:
            assert [moment.topic for moment in node.moments_of(NodesAsked)] == ["ask: state"]
            (concluded,) = node.moments_of(Concluded)
            assert concluded.data == b"well on a; well on b; well on c\xff\x00"


@pytest.mark.usefixtures("_installed")
def test_a_node_alone_answers_and_concludes_itself():
    with run_agents(1) as agents:
        agents.wait_for_workers(1)
        agents.wait_for(lambda: agents["a"].moments_of(Concluded))
        agents.finish()
        assert agents.wait() == [0]
        (concluded,) = agents["a"].moments_of(Concluded)
        assert (concluded.serial, concluded.topic, concluded.data) == (1, "ask: state", b"well on a\xff\x00")
