"""Fixtures of the tests in these folders."""

import gc

import pytest

from elastic_torchrun.functions import FunctionCall
from group_kit import GroupKit, open_fds
from support import wait_for


@pytest.fixture
def installed(tmp_path):
    """Install a class by a distribution of its own; return the environment that has it."""

    def install(source, cls):
        root = tmp_path / "site"
        info = root / "acme_logs-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-logs\nVersion: 1.2\n\n")
        (info / "entry_points.txt").write_text(f"[torchrun.logs_specs]\nacme = acme_logs:{cls}\n")
        (root / "acme_logs.py").write_text(source)
        return {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PET_LOGS_SPECS": "acme"}

    return install


@pytest.fixture
def group(tmp_path):
    """Return a function that makes a group for a call; each must leave no descriptor and no child behind."""
    gc.collect()  # queues of other tests
    before, kits = open_fds(), []

    def make(fn, *args, method="spawn", by_rank=None, **more):
        folder = tmp_path / str(len(kits))
        folder.mkdir()
        kits.append(GroupKit(folder, call=FunctionCall(fn, by_rank or args, method), **more))
        return kits[-1]

    yield make
    for kit in kits:
        kit.close()
    # What an earlier test still held may have gone; what a thread of the process looks at just now goes at once.
    wait_for(lambda: set(open_fds()) <= set(before), what=f"no descriptors beside {before}")
