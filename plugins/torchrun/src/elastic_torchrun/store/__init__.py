"""The workers' store beside the agent: for `--agent-store`, and for a rank 0 that connects to one."""
