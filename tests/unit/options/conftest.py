"""Distributions that a test puts on the path of its own process."""

import sys
import textwrap

import pytest


@pytest.fixture
def distributions(tmp_path, monkeypatch):
    """Return what installs one; its modules are forgotten after the test."""

    def install(distribution, entries, **modules):
        root = tmp_path / distribution
        info = root / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(entries)
        for name, source in modules.items():
            (root / f"{name}.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(str(root))

    before = set(sys.modules)
    yield install
    for name in set(sys.modules) - before:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]
