"""A worker that is a shell or another command, which starts the interpreter whose exception is the report's."""

import sys

import pytest

from worker_kit import Worker

PYTHON = sys.executable
BOOM = "raise ValueError('boom')\n"
POPEN = "import subprocess, sys\nsys.exit(subprocess.call(sys.argv[1:]))\n"
CHECKED = """\
import multiprocessing, subprocess, sys

def child():
    raise LookupError("spawned")

if __name__ == "__main__":
    subprocess.run([sys.executable, "-c", "raise KeyError('a helper')"])
    subprocess.run([sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', '1 / 0'])"])
    spawned = multiprocessing.get_context("spawn").Process(target=child)
    spawned.start()
    spawned.join()
    subprocess.check_call(sys.argv[1:])
"""


@pytest.fixture
def below(tmp_path):
    """Start a command whose words may name the scripts here."""
    for name, source in {
        "boom.py": BOOM,
        "leave.py": "import sys\nsys.exit('no lr')\n",
        "silent.py": "import os\nos._exit(1)\n",
        "fault.py": "import ctypes\nctypes.string_at(0)\n",
        "popen.py": POPEN,
        "checked.py": CHECKED,
    }.items():
        (tmp_path / name).write_text(source)
    return lambda *command, **environment: Worker(tmp_path, command[1:], environment, interpreter=command[:1])


def shell(line):
    return "/bin/sh", "-c", line.replace("PYTHON", PYTHON)


@pytest.mark.parametrize(
    "command",
    [
        (PYTHON, "boom.py"),
        ("env", "FOO=1", PYTHON, "boom.py"),
        ("nice", "-n", "1", PYTHON, "boom.py"),
        ("timeout", "50", PYTHON, "boom.py"),
        ("setsid", "-w", PYTHON, "boom.py"),
        shell("exec PYTHON boom.py"),
        shell("PYTHON boom.py; exit $?"),
        shell("PYTHON boom.py; exit 5"),
        shell("PYTHON leave.py; PYTHON boom.py"),
        shell("PYTHON boom.py; PYTHON boom.py"),
        (PYTHON, "popen.py", PYTHON, "boom.py"),
        (PYTHON, "popen.py", "python3", "-u", "boom.py"),
        (PYTHON, "-u", "checked.py", PYTHON, "-u", "boom.py", "--language", "python", "--deep"),
        (PYTHON, "checked.py", PYTHON, "popen.py", "env", "A=1", PYTHON, "-u", "boom.py"),
    ],
    ids=lambda command: " ".join(command).replace(PYTHON, "python"),
)
def test_the_exception_is_the_workers(below, command):
    record = below(*command, PATH=f"{PYTHON.rpartition('/')[0]}:/usr/bin:/bin").record()
    assert record is not None
    assert (record.source, record.type, record.message) == ("hook", "ValueError", "boom")
    assert [frame[1:3] for frame in record.frames] == [(1, "<module>")]


@pytest.mark.parametrize(
    "line",
    [
        "PYTHON boom.py; PYTHON silent.py",
        "PYTHON fault.py; PYTHON silent.py",
        "PYTHON boom.py; kill -9 $$",
        "PYTHON fault.py; exit 3",
        "PYTHON leave.py; exit 3",
    ],
)
def test_what_the_worker_survived_is_not_the_report(below, line):
    worker = below(*shell(line))
    assert worker.exit.code != 0
    assert worker.record() is None


def test_a_message_and_a_program_that_is_not_there_are_the_workers_too(below):
    for name, said in {"leave.py": "no lr", "nosuch.py": "can't run 'nosuch.py'"}.items():
        record = below(*shell(f"PYTHON {name}; exit $?")).record()
        assert record is not None
        assert said in record.message


def test_a_fault_signals_stack_is_the_workers_too(below):
    worker = below(*shell("PYTHON fault.py; exit $?"))
    record = worker.record()
    assert record is not None
    assert (record.source, record.message) == ("faulthandler", "Segmentation fault")


def test_a_command_in_front_that_fails_itself_is_recorded(below):
    record = below(PYTHON, "checked.py", "false", "python", "boom.py").record()
    assert record is not None
    assert record.type == "subprocess.CalledProcessError"


def test_an_interpreters_name_among_the_arguments_changes_nothing(below, tmp_path):
    (tmp_path / "train.py").write_text(
        CHECKED.replace("subprocess.check_call(sys.argv[1:])", "raise RuntimeError('own')")
    )
    record = below(PYTHON, "train.py", "--language", "python", "--deep").record()
    assert record is not None
    assert (record.type, record.message) == ("RuntimeError", "own")
    (tmp_path / "train.py").write_text(CHECKED.replace("subprocess.check_call(sys.argv[1:])", "sys.exit(1)"))
    assert below(PYTHON, "train.py", "--language", "python", "--deep").record() is None
