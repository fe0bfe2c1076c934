"""`--exit-timeout`: a worker whose uncaught exception is on record has so long to end by itself."""

import subprocess
import sys

import pytest

from elastic_core.processes.errors import record_pipe
from elastic_core.worker import startup
from patience import patience
from support import wait_for

HANGS = """
import os, pathlib, sys, threading, time
from elastic_core.worker import record
here = pathlib.Path(os.environ["HERE"])
def wait():
    while not (here / "end").exists():
        time.sleep(0.01)
def main():
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        threading.Thread(target=wait).start()
        raise ValueError("label 11 is not a digit")
    while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(0.01)
"""
NOT_ENDED = "rank 1 has not ended"


@pytest.fixture
def run(elastic, script, tmp_path):
    def start(text, *args, nproc=2):
        return elastic("--nproc-per-node", nproc, *args, script(text), env={"HERE": str(tmp_path)})

    return start


def test_the_agent_and_the_workers_mean_the_same_pipe():
    names = ("ERROR_FILE_VARIABLE", "HOOKS_VARIABLE", "RECORD_PIPE_SUFFIX", "BEGUN_SUFFIX")
    assert all(getattr(record_pipe, name) == getattr(startup, name) for name in names)


@pytest.mark.parametrize("call", ["main()", "record(main)()"], ids=["plain", "@record"])
def test_worker_that_does_not_end_has_failed_with_its_exception(run, call):
    agent = run(HANGS + call, "--exit-timeout", "0.5")
    assert agent.wait(30) == 1, agent.err
    assert NOT_ENDED + " 0.5 s after its exception" in agent.err
    incident = agent.incident()
    assert incident["summary"].startswith("ValueError: label 11 is not a digit")
    assert (incident["failure_class"], incident["first"]["exit"]["global_rank"]) == ("user exception", 1)
    assert agent.survivors() == []
    assert not list(agent.runtime.rglob("*.pipe"))


@pytest.mark.parametrize("options", [(), ("--standby", "--standby-imports", "json")], ids=["", "standby"])
def test_restart_is_named_after_the_exception(run, options):
    agent = run(HANGS + "main()", "--exit-timeout", "0.5", "--max-restarts", "1", *options)
    assert agent.wait(30) == 0, agent.err
    assert "rank 1 failed: ValueError: label 11 is not a digit" in agent.err


def test_worker_that_ends_in_time_is_let(run):
    text = (
        "import atexit, time\natexit.register(time.sleep, 1)\natexit.register(print, 'saved')\nraise ValueError('boom')"
    )
    agent = run(text, "--exit-timeout", "60", nproc=1)
    assert agent.wait(30) == 1
    assert agent.incident()["first"]["exit"]["code"] == 1
    assert "saved" in agent.out
    assert "has not ended" not in agent.err


UPLOADS = """
import atexit, os, pathlib, subprocess, sys, threading, time
from multiprocessing import get_context
end, rank = pathlib.Path(os.environ["HERE"], "end"), os.environ["RANK"]
recorded = end.with_name("recorded")
def upload():
    recorded.touch()
    while not end.exists():
        time.sleep(0.01)
    os.write(1, b"uploaded by %d\\n" % int(rank))
if sys.argv[1] == "thread":
    threading.Thread(target=upload).start()
elif sys.argv[1] == "child":
    get_context("fork").Process(target=upload).start()
elif rank == "0":
    atexit.register(upload)
else:
    while not recorded.exists():
        time.sleep(0.01)
raise ValueError("label 11 is not a digit")
"""
WAITS = "waiting for threads and exit handlers of 1 worker, at most "


@pytest.mark.parametrize(("how", "nproc"), [("atexit", 1), ("thread", 1), ("child", 1), ("atexit", 2)])
def test_exit_handlers_that_nobody_waits_for_have_the_grace_period_without_a_signal(
    elastic, script, tmp_path, how, nproc
):
    # Of two, rank 1 ends while rank 0 still has its time.
    options = ("--nproc-per-node", nproc, "--exit-timeout", "0.3" if nproc == 1 else "60", "--shutdown-timeout", "60")
    agent = elastic(*options, script(UPLOADS), how, env={"HERE": str(tmp_path)})
    wait_for(lambda: WAITS in agent.err, what="a line about what is waited for")
    # Of two the first to end has failed; the other, whose exception is on record, too, is in nobody's way.
    assert ("rank 0 has not ended" in agent.err) == (nproc == 1)
    assert agent.process.poll() is None
    (tmp_path / "end").touch()
    assert agent.wait(30) == 1
    assert "uploaded by 0" in agent.out
    incident = agent.incident()
    assert incident["summary"].startswith("ValueError: label 11 is not a digit")
    assert incident["first"]["exit"]["code"] == 1
    assert incident["stopped"] == []
    assert agent.survivors() == []


def test_exit_handlers_without_end_are_cut_after_the_grace_period(run):
    agent = run(
        UPLOADS.replace("sys.argv[1]", "'atexit'"), "--exit-timeout", "0.2", "--shutdown-timeout", "1.5", nproc=1
    )
    assert agent.wait(30) == 1
    assert "threads and exit handlers of 1 worker are cut short: the time is over" in agent.err
    assert agent.incident()["summary"].startswith("ValueError: label 11 is not a digit")
    assert agent.survivors() == []


def test_exit_handlers_after_a_code_have_any_time(run):
    text = "import atexit, sys, time\natexit.register(print, 'saved')\natexit.register(time.sleep, 1)\n"
    agent = run(text + "try:\n    sys.exit(4)\nfinally:\n    time.sleep(0.5)", "--exit-timeout", "0.2", nproc=1)
    assert agent.wait(30) == 4
    assert "saved" in agent.out
    assert "has not ended" not in agent.err


@pytest.mark.parametrize("options", [("--exit-timeout", "0"), ("--exit-timeout", "0.2", "--no-worker-hooks")])
def test_time_without_end(run, tmp_path, options):
    agent = run(HANGS + "main()", *options)
    wait_for(lambda: "ValueError: label 11" in agent.err)
    with pytest.raises(AssertionError, match="still running"):
        agent.wait(1)
    (tmp_path / "end").touch()
    assert agent.wait(30) == 1
    assert NOT_ENDED not in agent.err


SURVIVES = """
import sys, threading, time
def thread():
    raise ValueError("in a thread")
threading.Thread(target=thread).start()
try:
    raise ValueError("caught, and shown as the interpreter would")
except ValueError:
    sys.excepthook(*sys.exc_info())
time.sleep(1.5)
"""


def test_exception_that_the_script_survives_does_not_count(run):
    agent = run(SURVIVES, "--exit-timeout", "0.3")
    assert agent.wait(30) == 0, agent.err
    assert "in a thread" in agent.err


FUNCTION = """
import threading, time
from elastic_torchrun.launcher.api import launch
def main():
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise ValueError("label 11 is not a digit")
if __name__ == "__main__":
    try:
        launch(main, exit_timeout=0.5, shutdown_timeout=1)
    except Exception as error:
        print(type(error).__name__, "label 11 is not a digit" in str(error))
"""


def test_function_worker_too(tmp_path):
    (tmp_path / "lib.py").write_text(FUNCTION)
    command = [sys.executable, "lib.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.stdout.endswith("ChildFailedError True\n"), done.stdout + done.stderr
