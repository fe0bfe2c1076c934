"""Watches over running workers: hangs, timers; and the stacks that they take."""
