"""The search for ranks and nodes that are lastingly slow."""
