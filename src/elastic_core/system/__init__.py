"""The operating system for all other packages: time, an event loop, private files, and colours of a terminal."""
