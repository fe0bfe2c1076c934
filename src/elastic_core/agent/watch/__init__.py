"""What running workers say of themselves, and where they stand: heartbeats and stacks."""
