"""Questions to all nodes on etcd, with the longest answers and the longest conclusion."""

from elastic_core.api.feed import AnswersGathered, Concluded
from elastic_plugin_kit import run_agents
from etcd_servers import etcd_private
from integration.hooks.test_questions import install
from patience import patience

__all__ = ["etcd_private"]

HOOK = """
from elastic_core.api import AgentHook, Power

class Ask(AgentHook):
    api_version = 1
    powers = frozenset({Power.RUN})

    def on_workers_started(self, event):
        self.run.ask_nodes("ask: state", within_s=20.0)

    def on_nodes_asked(self, event):
        self.run.answer_nodes(event.serial, bytes(range(256)) * 64)

    def on_answers_gathered(self, event):
        self.run.conclude_nodes(event.serial, next(iter(event.answers.values()))[::-1])
"""


NODES = 3


def test_the_longest_answers_and_conclusion_reach_their_nodes(etcd_private, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, HOOK)
    options = ("--rdzv-conf", f"last_call_timeout=0.5,lease_ttl={patience(2):g}")
    with run_agents(NODES, *options, backend="etcd", endpoint=etcd_private.endpoint) as agents:
        agents.wait_for_workers(NODES)
        agents.wait_for(lambda: all(agent.moments_of(Concluded) for agent in agents))
        agents.finish()
        assert agents.wait() == [0] * NODES
        data = bytes(range(256)) * 64
        gathered = [moment for agent in agents for moment in agent.moments_of(AnswersGathered)]
        assert all(set(moment.answers.values()) == {data} for moment in gathered)
        assert dict(gathered[0].answers).keys() == {"a", "b", "c"}
        first = [agent.moments_of(Concluded)[0] for agent in agents]
        assert [concluded.data for concluded in first] == [data[::-1]] * NODES
