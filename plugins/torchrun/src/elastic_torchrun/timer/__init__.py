"""Countdown timers as a library: a block of code that takes too long costs its worker. torch's interface."""
