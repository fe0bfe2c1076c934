"""Heartbeats of workers, their stacks, and the hooks that find those that hang."""
