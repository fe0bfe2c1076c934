"""`init_process_group()`: what it makes of variables, devices and time limits, before torch has a word."""

import contextlib
import sys
from datetime import timedelta
from types import ModuleType, SimpleNamespace

import pytest

from elastic_core.api import ConfigError
from elastic_train import Checkpointer, ElasticSampler, JoinedGroup, init_process_group
from elastic_train.process_group import _device
from elastic_train.time_limits import time_limit

WORKER = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def worker(monkeypatch):
    """The variables of a worker, of which a test changes one."""
    for name, value in WORKER.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RANK", "two", "RANK='two' in the environment; expected a whole number"),
        ("LOCAL_RANK", None, "LOCAL_RANK missing in the environment, where RANK, WORLD_SIZE is set"),
        ("MASTER_ADDR", None, "MASTER_ADDR missing in the environment, where RANK is set"),
        ("MASTER_PORT", None, "MASTER_PORT missing in the environment, where RANK is set"),
        ("MASTER_PORT", "http", "MASTER_PORT='http' in the environment; expected a whole number"),
        ("MASTER_PORT", "65536", "MASTER_PORT=65536 in the environment; expected 65535 at most"),
    ],
)
def test_a_variable_that_is_missing_or_malformed_is_one_line(monkeypatch, name, value, message):
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "torch", None)  # which is not asked
    with pytest.raises(ConfigError, match=message) as caught:
        init_process_group()
    assert "Try: elastic run" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_torch_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ConfigError, match=r"^init_process_group: no torch is installed for .*; expected torch 2\.13 to"
    ):
        init_process_group()


def test_an_older_torch_is_one_line(monkeypatch):
    stub = ModuleType("torch")
    stub.__version__ = "2.12.1"
    monkeypatch.setitem(sys.modules, "torch", stub)
    with pytest.raises(ConfigError, match=r"torch 2\.12\.1 is installed .* Try: pip install 'torch>=2\.13,<2\.16'$"):
        init_process_group()


def test_samplers_and_checkpoints_need_it_when_they_are_used(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in WORKER:
        monkeypatch.delenv(name)
    sampler, checkpoints = ElasticSampler(8), Checkpointer(tmp_path)
    with pytest.raises(ConfigError, match=r"^ElasticSampler: no torch is installed"):
        next(iter(sampler))
    with pytest.raises(ConfigError, match=r"^Checkpointer\.save: no torch is installed"):
        checkpoints.save({}, step=1)
    with pytest.raises(ConfigError, match=r"^Checkpointer\.load: no torch is installed"):
        checkpoints.load()


@pytest.mark.parametrize("option", ["rank", "world_size", "init_method", "store"])
def test_what_the_variables_say_is_no_option(option):
    with pytest.raises(ConfigError, match=rf"init_process_group\({option}=…\): .* Try: torch.distributed"):
        init_process_group(**{option: 1})


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(None, None), ("10m", 600), ("500ms", 0.5), (90, 90), (timedelta(hours=1), 3600)]
)
def test_a_time_limit_has_a_unit(timeout, seconds):
    assert time_limit(timeout, "f") == (None if seconds is None else timedelta(seconds=seconds))


@pytest.mark.parametrize("timeout", ["soon", "0s", 0, -1, float("inf"), float("nan"), timedelta(0)])
def test_a_time_limit_that_is_none_is_refused(timeout):
    with pytest.raises(ConfigError, match=r"expected a time above 0, with its unit. Try: timeout='10m'"):
        time_limit(timeout, "f")


@pytest.mark.parametrize(
    ("end", "left"), [(None, True), (SystemExit(0), True), (SystemExit(3), False), (ValueError(), False)]
)
def test_the_group_outlives_an_error_which_others_must_not_see_first(monkeypatch, end, left):
    destroyed = []
    monkeypatch.setattr(JoinedGroup, "destroy", lambda self: destroyed.append(self))
    group = JoinedGroup("cpu", 0, 0, 1)
    with contextlib.suppress(ValueError, SystemExit), group:
        if end is not None:
            raise end
    assert destroyed == ([group] if left else [])


def torch_with(devices):
    """A torch that sees so many CUDA devices."""
    cuda = SimpleNamespace(is_available=lambda: devices > 0, device_count=lambda: devices)
    return SimpleNamespace(cuda=cuda, device=lambda *words: words)


@pytest.mark.parametrize(
    ("backend", "devices", "expected"),
    [
        (None, 0, (("cpu",), "gloo")),
        (None, 4, (("cuda", 3), "cpu:gloo,cuda:nccl")),
        ("nccl", 4, (("cuda", 3), "nccl")),
        ("gloo", 4, (("cpu",), "gloo")),
        ("mpi", 0, (("cpu",), "mpi")),
    ],
)
def test_the_device_follows_the_backend(backend, devices, expected):
    assert _device(torch_with(devices), backend, 3) == expected


@pytest.mark.parametrize(
    ("backend", "devices", "message"),
    [
        ("nccl", 0, r"backend 'nccl' needs a CUDA device, this process sees none. Try: backend='gloo'"),
        (None, 2, r"LOCAL_RANK=3; expected less than 2, the number of CUDA devices .* Try: elastic run --nproc-per"),
    ],
)
def test_a_device_that_is_not_there_is_one_line(backend, devices, message):
    with pytest.raises(ConfigError, match=message):
        _device(torch_with(devices), backend, 3)
