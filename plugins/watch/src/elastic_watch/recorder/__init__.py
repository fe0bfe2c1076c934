"""Torch's flight recorder: switched on in the workers, and read from a worker that hangs."""
