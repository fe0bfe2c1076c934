"""Runs from Python: torch's `elastic_launch`, its parser, and `launch`, which needs no config object."""
