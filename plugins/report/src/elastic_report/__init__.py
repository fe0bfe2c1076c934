"""Reports of runs: a ledger of the time of each node, and `elastic report`."""
