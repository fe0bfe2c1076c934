"""The command line as a process: what it imports, how it ends, and that nothing is left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.errors import ConfigError
from elastic_core.options.devices import Node
from patience import patience
from stub_torch import stub_torch

__all__ = ["stub_torch"]

HEAVY = ("torch", "numpy", "asyncio", "rich")


def elastic(*argv, env=None, cwd=None, python=()):
    return subprocess.run(
        [sys.executable, *python, "-m", "elastic_core", *argv],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience(60),
    )


@pytest.fixture
def place(tmp_path):
    """A working directory with a script, and a temp directory of its own that must stay empty."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text("print('trained')\n")
    (tmp_path / "temp").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "never"),
    [
        (["--help"], (*HEAVY, "msgspec", "pluggy", "subprocess", "json")),
        (["run", "--help"], (*HEAVY, "pluggy", "subprocess", "json")),
        (["run", "--dry-run", "--nproc-per-node", "2", "train.py"], (*HEAVY, "click", "subprocess", "json")),
        (["run", "missing.py"], (*HEAVY, "click", "pluggy", "subprocess", "json")),
    ],
)
def test_only_what_is_needed_is_imported(place, argv, never):
    ended = elastic(*argv, cwd=place / "work", python=("-X", "importtime"))
    assert ended.returncode in (0, 2)
    imported = {
        line.rpartition("|")[2].strip() for line in ended.stderr.splitlines() if line.startswith("import time:")
    }
    assert "elastic_core.cli.main" in imported
    assert not imported & set(never)


BAD = [
    (["--bogus", "train.py"], "no such option: --bogus"),
    (["--nnodes", "two", "train.py"], "--nnodes: 'two'"),
    (["--nproc-per-node", "0", "train.py"], "--nproc-per-node: '0'"),
    (["trian.py"], "script 'trian.py' not found"),
    (["-m", "no_such_module"], "module 'no_such_module' not found"),
    (["--no-python", "no-such-program"], "program 'no-such-program' not found on PATH"),
    (["--log-dir", "train.py", "train.py"], "--log-dir: 'train.py'"),
    (["--run-path", "-m", "train"], "--run-path runs a script, not a module (-m)"),
    (["--rdzv-backend", "redis", "--nnodes", "2", "train.py"], "no run id"),
]


@pytest.mark.parametrize(("argv", "text"), BAD, ids=lambda value: value[0] if isinstance(value, list) else None)
def test_bad_input_is_one_line_and_leaves_nothing(place, argv, text):
    temp = {"TMPDIR": str(place / "temp"), "XDG_RUNTIME_DIR": str(place / "temp")}
    ended = elastic("run", *argv, cwd=place / "work", env=temp)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"elastic: error: {text}")
    assert ended.stderr.count("\n") == 1
    assert list((place / "temp").iterdir()) == []
    assert [path.name for path in (place / "work").iterdir()] == ["train.py"]


def test_gpu_without_gpu_is_one_line(place):
    ended = elastic("run", "--nproc-per-node", "gpu", "train.py", cwd=place / "work", env={"CUDA_VISIBLE_DEVICES": ""})
    assert ended.returncode == 2
    assert ended.stderr.startswith("elastic: error: --nproc-per-node 'gpu': ")
    assert ended.stderr.count("\n") == 1


def test_the_module_form_is_elastic_run(place):
    ended = subprocess.run(
        [sys.executable, "-m", "elastic_core.run", "--dry-run", "train.py"],
        cwd=place / "work",
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    assert ended.returncode == 0
    assert ended.stdout.startswith("Configuration\n")


def test_a_closed_pipe_ends_quietly(place):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        ended = subprocess.run(
            [sys.executable, "-m", "elastic_core", "run", "--help"],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=patience(60),
        )
    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_full_disk_for_our_own_output_is_one_line():
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "elastic_core", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=patience(60),
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("elastic: error: the system refused: [Errno 28]")
    assert ended.stderr.count("\n") == 1


def test_help_survives_a_terminal_without_unicode():
    ended = elastic("run", "--help", env={"PYTHONIOENCODING": "ascii"})
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("auto", ("cuda", 2)),
        ("cuda", ("cuda", 2)),
        ("rocm", ("rocm", 2)),
        ("xpu", ("xpu", 0)),
        ("npu", ("npu", 4)),
        ("nonsense", ("nonsense", -1)),
    ],
)
def test_torch_is_asked_in_a_process_of_its_own(stub_torch, kind, answer):
    assert Node({**os.environ, **stub_torch}).ask_torch(kind) == answer
    assert "torch" not in sys.modules


def test_a_torch_that_can_not_be_imported_is_named(stub_torch):
    (Path(stub_torch["PYTHONPATH"].partition(os.pathsep)[0]) / "torch.py").write_text("raise OSError('libcudart')")
    with pytest.raises(ConfigError, match="torch said 'OSError: libcudart'"):
        Node({**os.environ, **stub_torch}).ask_torch("cuda")


def test_without_torch_devices_can_be_counted_by_hand(tmp_path):
    python = tmp_path / "python"  # with no packages
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(ConfigError, match=r"no torch is installed for \S+; expected torch 2\.13 .* or give the number"):
        Node({**os.environ, "PYTHONPATH": ""}, python=str(python)).ask_torch("cuda")
