"""The guard, a small process that outlives its agent, and the agent's side of it. The guard imports this file, too."""
