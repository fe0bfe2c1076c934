"""The block that ends a failed run."""

import re


def blocks(err):
    """The lines of the last block."""
    lines = err.rstrip().splitlines()
    starts = [n for n, line in enumerate(lines) if re.search(r"run '.*' failed", line)]
    return lines[starts[-1] :]
