"""Torch's module names, by re-export."""
