"""Torch at its first use: missing, broken, too old or too new, each in one line."""

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import elastic_core
from elastic_core.errors import ConfigError
from elastic_core.torch_release import SUPPORTED, TORCH_HINT, import_torch

ROOT = Path(__file__).parents[2]
REMEDY = r"; expected torch 2\.13 to 2\.15\. Try: pip install 'torch>=2\.13,<2\.16'$"


@pytest.fixture
def torch(monkeypatch):
    """Put a stand-in for torch in its place; return it."""
    stub = ModuleType("torch")
    stub.distributed = ModuleType("torch.distributed")
    monkeypatch.setitem(sys.modules, "torch", stub)
    monkeypatch.setitem(sys.modules, "torch.distributed", stub.distributed)
    return stub


@pytest.mark.parametrize("release", ["2.13.0", "2.13.0+cpu", "2.14.1", "2.15.0a0+git1234", "mine", "", "3"])
def test_a_release_that_is_supported_or_unknown_is_returned(torch, release):
    torch.__version__ = release
    assert import_torch("f") is torch


@pytest.mark.parametrize("release", ["2.12.1", "1.13.0", "2.16.0", "3.0.0", "2.2.0"])
def test_another_release_is_one_line(torch, release):
    torch.__version__ = release
    with pytest.raises(ConfigError, match=rf"^f: torch {re.escape(release)} is installed for \S+{REMEDY}"):
        import_torch("f")


def test_without_torch_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=rf"^--x: no torch is installed for \S+{REMEDY}"):
        import_torch("--x")
    with pytest.raises(ConfigError, match=r"^elastic_core\.init_process_group: no torch is installed"):
        elastic_core.init_process_group()


def test_a_broken_torch_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open\\nand more')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(
        ConfigError, match=rf"^f: torch can't be imported \(OSError: libcudart\.so\.13: [^\n]+\){REMEDY}"
    ):
        import_torch("f")


def test_what_torch_itself_lacks_is_named(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("import sympy_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(ConfigError, match=r"torch can't be imported .*No module named 'sympy_that_is_not_there'"):
        import_torch("f")


def test_no_distribution_requires_torch_and_the_range_has_one_place():
    for path in [ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]:
        document = tomllib.loads(path.read_text())
        others = document.get("tool", {}).get("hatch", {}).get("metadata", {}).get("hooks", {}).get("custom", {})
        required = [*document["project"].get("dependencies", []), *others.get("others", [])]
        assert [line for line in required if re.match(r"torch\b", line)] == [], path
    (first, last), (least, below) = SUPPORTED, re.findall(r"2\.(\d+)", TORCH_HINT)
    assert (first, last) == ((2, int(least)), (2, int(below) - 1))
