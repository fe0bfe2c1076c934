"""Run directories: where they are, and the documents that agents leave in them."""
