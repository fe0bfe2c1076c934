"""Which accelerators this node has, and which of them a process sees: without torch."""
