"""Torch's agents: the loop of `SimpleElasticAgent` for subclasses, and ours behind `LocalElasticAgent`."""
