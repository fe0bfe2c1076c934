"""Heartbeats of workers, their stacks, and the hooks that find hangs."""
