"""`elastic status`: a run as one model, whether a run directory or a store has it, and its page."""
