"""Names where torch has them, and where older guides have them."""

import importlib
import sys
from types import ModuleType

import pytest

import elastic_core
from elastic_core.compat.elastic.multiprocessing import Std
from elastic_torchrun.launcher import api
from elastic_torchrun.processes.std import StdLaunch

SAME = ("LaunchConfig", "elastic_launch", "launch_agent")


@pytest.mark.parametrize("path", ["launcher", "launcher.api"])
def test_torchs_module_paths_have_our_names(path):
    compat = importlib.import_module(f"elastic_core.compat.{path}")
    assert set(SAME) <= set(compat.__all__)
    for name in SAME:
        assert getattr(compat, name) is getattr(elastic_core.launcher, name)


def test_rooms_are_attributes_of_the_package():
    assert elastic_core.launcher.launch.__name__ == "launch"
    assert callable(elastic_core.rendezvous.registry.register)
    for module in (elastic_core, elastic_core.launcher):
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = module.nothing


def test_init_process_group_is_torchs(monkeypatch):
    calls = []
    torch_distributed = ModuleType("torch.distributed")
    torch_distributed.init_process_group = lambda *args, **options: calls.append((args, options))
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setitem(sys.modules, "torch.distributed", torch_distributed)
    elastic_core.init_process_group(backend="gloo")
    elastic_core.init_process_group("nccl", timeout=5)
    assert calls == [(("gloo",), {}), (("nccl",), {"timeout": 5})]


def test_std_with_an_entrypoint_is_a_launch(monkeypatch):
    calls = []
    monkeypatch.setattr(api, "launch", lambda **options: calls.append(options) or {0: 1})
    made = Std(entrypoint=len, log_dir="logs", monitor_interval=5, max_restarts=3)
    assert isinstance(made, StdLaunch)
    assert made.run() == {0: 1}
    assert calls == [{"entrypoint": len, "log_dir": "logs", "monitor_interval": 5, "max_restarts": 3}]


def test_std_stays_an_enumeration():
    assert (Std(1), Std(3), Std["ALL"], Std.OUT | Std.ERR) == (Std.OUT, Std.ALL, Std.ALL, Std.ALL)
    assert isinstance(Std.OUT, Std)
    assert len(Std) == 2  # the flags
    with pytest.raises(TypeError):
        Std(log_dir="logs")
