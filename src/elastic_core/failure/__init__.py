"""What a failure was, and what to do about it."""
