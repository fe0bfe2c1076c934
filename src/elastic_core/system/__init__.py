"""What all rooms share of the operating system: time, one thread's event loop, and files for their owner alone."""
