"""Worker processes as a library, without an agent: torch's `start_processes` and related functions."""
