"""The operating system for all other packages: time, one thread's event loop, and files only for their owner."""
