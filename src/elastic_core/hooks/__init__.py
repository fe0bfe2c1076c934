"""Observers of the agent."""
