"""Which rank keeps the others waiting in a collective, according to torch's flight recorder and the stacks."""
