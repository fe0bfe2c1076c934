"""What workers leave about their own failures, and how it is read."""
