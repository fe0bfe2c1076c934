"""The rendezvous algorithm: one member of a run on a `CoordinationStore`, as rules and the thread that drives them."""
