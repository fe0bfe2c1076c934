"""Detects the accelerators of this node, and those that a process sees, without torch."""
