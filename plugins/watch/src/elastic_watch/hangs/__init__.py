"""Detection of hangs, and their reports."""
