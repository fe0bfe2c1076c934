"""The rendezvous protocol: one member of a run on a `CoordinationStore`, as a pure state machine and its rules."""
