"""Warm rounds: workers that survive a failure or a join run on, and take a place in the next round."""
