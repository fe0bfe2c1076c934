"""NCCL's RAS service (2.24 and later): the state of communicators, read from outside the worker that hangs.

Source: NCCL user guide, "RAS". The service sees only ranks that share a communicator with the process that answers, and
it may report no error during a real timeout.
"""
