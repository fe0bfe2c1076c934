"""The shell of a member: the thread that runs its machine's operations, and the events for its agent."""
