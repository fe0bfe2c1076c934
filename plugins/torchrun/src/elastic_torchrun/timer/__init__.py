"""Countdown timers as a library: a worker that is too long in a block of code is ended. Torch's interface."""
