"""Rendezvous between two worlds: torch's handlers under our agent, ours under stock torchrun."""
