"""Workers' output: streams, log files and their layout, and the disk that writes them."""
