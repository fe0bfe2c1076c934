"""Measures `elastic run` beside torchrun and beside the least that a supervisor must do: `make bench`."""
