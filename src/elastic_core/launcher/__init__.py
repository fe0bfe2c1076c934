"""The composition root: options in, wired objects out."""
