"""Adapters of rendezvous handlers: torch's handlers for elastic-core's agent, and elastic-core's for stock torchrun."""
