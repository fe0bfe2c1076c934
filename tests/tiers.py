"""The tiers of the test suite. The folder of a test file decides in which tier the file is; no marker does.

`tier_of` maps a path to its tier, `TIERS` describes each tier. `make TIER` runs a tier, `make test-all` runs all.
"""

from pathlib import PurePath

TEST, TORCH, SERVERS, SYSTEM = "test", "test-torch", "test-servers", "test-system"

TIERS = {
    TEST: "tests without torch, with one Redis at most",
    TORCH: "tests that import torch",
    SERVERS: "tests of etcd, and of Redis with TLS, Sentinel and cluster modes",
    SYSTEM: "chaos, Slurm, packaging, pages in a browser, and the documentation",
}
"""Each tier, in the order in which `make test-all` runs them, with what its tests have in common."""

FOLDERS = {
    "with_torch": TORCH,
    "with_servers": SERVERS,
    "system": SYSTEM,
    "chaos": SYSTEM,
    "cluster": SYSTEM,
    "packaging": SYSTEM,
    "with_browser": SYSTEM,
}
"""The folder names that put all test files below them into a tier; the innermost one counts. All others are `TEST`."""


def tier_of(path: str | PurePath) -> str:
    """Return the tier of a test file or folder: `test`, `test-torch`, `test-servers` or `test-system`."""
    for name in reversed(PurePath(path).parts):
        if name in FOLDERS:
            return FOLDERS[name]
    return TEST


def not_run(tiers: set[str]) -> str:
    """Return which tiers a run of `tiers` leaves out, and which targets run them; empty if it leaves out none."""
    left_out = [f"{what} (make {tier})" for tier, what in TIERS.items() if tier not in tiers]
    return f"not run: {'; '.join(left_out)}; make test-all runs everything" if left_out else ""
