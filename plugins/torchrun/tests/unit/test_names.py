"""`elastic_core.compat`: the table of its modules, their stubs, and what is said where the distribution is missing."""

import importlib
import runpy
import subprocess
import sys

import pytest

from elastic_core.plugins import torch_side
from elastic_torchrun.names import NAMES, homes, is_package, stub


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_table_is_there(name):
    module = importlib.import_module(f"elastic_core.compat.{name}")
    assert module.__all__ == sorted(homes(name))
    assert set(homes(name)) <= set(dir(module))
    assert hasattr(module, "__path__") == is_package(name)
    for each, home in homes(name).items():
        if each not in ("EtcdStore", "ElasticDistributedSampler"):  # these import torch
            assert getattr(module, each) is getattr(importlib.import_module(home), each)


def test_a_name_that_is_not_there_is_refused_as_of_any_module():
    from elastic_core.compat.elastic import events

    with pytest.raises(AttributeError, match=r"module 'elastic_core\.compat\.elastic\.events' has no attribute 'nope'"):
        _ = events.nope
    with pytest.raises(ModuleNotFoundError, match="nope"):
        importlib.import_module("elastic_core.compat.elastic.nope")


def test_a_name_is_fetched_when_it_is_first_used():
    code = (
        "import sys, elastic_core.compat.elastic.timer as timer\n"
        "assert 'elastic_torchrun.timer.file_server' not in sys.modules\n"
        "timer.FileTimerServer\n"
        "assert 'elastic_torchrun.timer.file_server' in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_stub_re_exports_every_name(tmp_path):
    path = tmp_path / "events.py"
    path.write_text(stub("elastic.events"))
    from elastic_core.compat.elastic import events

    assert {each: getattr(events, each) for each in events.__all__}.items() <= runpy.run_path(str(path)).items()


def test_without_the_distribution_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(torch_side, "find_entries", list)
    for name in [name for name in sys.modules if name.startswith("elastic_core.compat")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError) as caught:
        importlib.import_module("elastic_core.compat.elastic.events")
    assert str(caught.value) == (
        "elastic_core.compat comes with elastic-torchrun, which is not installed. "
        "Try: pip install -r sets/torchrun.txt, in a checkout of elastic-core"
    )
