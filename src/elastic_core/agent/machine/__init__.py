"""The agent as a pure state machine: its table, states and transitions, its journal and its diagram."""
