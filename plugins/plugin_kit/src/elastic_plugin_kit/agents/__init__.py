"""Real agents in a test: started on this host, watched from outside, and all ended with the block."""

from elastic_plugin_kit.agents.agent import Agent, Worker
from elastic_plugin_kit.agents.run import Agents, run_agents

__all__ = ["Agent", "Agents", "Worker", "run_agents"]
