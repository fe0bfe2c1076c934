"""`elastic logs`: what workers of this host have written to their files, and write."""
