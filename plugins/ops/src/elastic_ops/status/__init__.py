"""`elastic status`: one model of a run, from a run directory or a store, and its page."""
