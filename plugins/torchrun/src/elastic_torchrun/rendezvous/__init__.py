"""Torch's rendezvous as a library: its registry, handlers and backends by name, and the stores beside them."""
