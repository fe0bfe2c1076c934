"""Torch's agents: `SimpleElasticAgent` for subclasses, and `LocalElasticAgent`, which runs elastic-core's agent."""
