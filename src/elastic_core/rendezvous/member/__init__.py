"""The rendezvous algorithm: one member of a run on a `CoordinationStore`, as a pure machine and its rules."""
