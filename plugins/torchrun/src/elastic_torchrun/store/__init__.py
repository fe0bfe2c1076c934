"""The workers' store beside the agent: `--agent-store`, and for a rank 0 that looks for one."""
