"""Watches over running workers: hangs, uninterruptible sleep, timers; and the stacks that they take."""
