"""The classification of failures, restart policies, and failure reports (incidents)."""
