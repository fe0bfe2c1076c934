"""The agent: a pure state machine, the loop that runs it, and the guard that outlives it."""
