"""`worker_main` in processes of their own: its server, what it records, and torch's on either side."""

import json
import os
import signal
import subprocess
import sys
import threading
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from elastic_ops.control_plane import WorkerServer, client
from patience import patience
from support import wait_for

HEAD = """
import os, pathlib, sys, threading
from elastic_ops.control_plane import worker_main
here = pathlib.Path(os.environ["TEST_FOLDER"])
def hold():
    (here / "up").touch()
    while not (here / "finish").exists():
        threading.Event().wait(0.02)
"""


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="ec-", dir="/tmp") as path:  # short: sockets are in it
        yield Path(path)


@pytest.fixture
def worker(folder):
    """Start a script with a socket's path in its environment."""
    started = []

    def start(text, *, path=None, head=HEAD, **env):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "ELASTIC_"))}
        own = {"TORCH_WORKER_SERVER_SOCKET": str(folder / "w.sock") if path is None else path}
        process = subprocess.Popen(
            [sys.executable, "-c", head + text],
            env=inherited | {"TEST_FOLDER": str(folder)} | (own if path != "" else {}) | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def up(folder):
    wait_for((folder / "up").exists)


def test_server_lives_as_long_as_the_function_and_again(worker, folder):
    process = worker("""
@worker_main()
def main(word):
    hold()
    return word
print(main("first"), (here / "w.sock").exists(), main("second"), threading.active_count())
""")
    up(folder)
    assert client.call(str(folder / "w.sock"), "ping").text == "pong"
    (folder / "finish").touch()
    assert process.communicate(timeout=patience(20)) == ("first False second 1\n", "")


def test_without_the_variable_there_is_no_server_and_nothing_is_loaded(worker, folder):
    (folder / "finish").touch()
    process = worker(
        """
@worker_main()
def main():
    print(threading.active_count(), {"http", "http.server", "socket", "torch"} & set(sys.modules))
main()
with worker_main():
    print("inside")
""",
        path="",
    )
    assert process.communicate(timeout=patience(20)) == ("1 set()\ninside\n", "")


@pytest.mark.parametrize("use", ["@worker_main()\ndef main():\n    boom()\nmain()", "with worker_main():\n    boom()"])
def test_exceptions_are_recorded_and_go_on(worker, folder, use):
    error = folder / "error.json"
    process = worker(f"def boom():\n    raise ValueError('boom')\n{use}\n", TORCHELASTIC_ERROR_FILE=str(error))
    assert "ValueError: boom" in process.communicate(timeout=patience(20))[1]
    assert process.returncode == 1
    assert "ValueError: boom" in json.loads(error.read_text())["message"]["message"]
    assert not (folder / "w.sock").exists()


@pytest.mark.parametrize(("code", "recorded"), [("'no data'", True), ("0", False), ("3", False)])
@pytest.mark.parametrize(
    "use", ["@worker_main()\ndef main():\n    sys.exit({})\nmain()", "with worker_main():\n    sys.exit({})"]
)
def test_exits_are_recorded_where_they_say_why(worker, folder, use, code, recorded):
    error = folder / "error.json"
    process = worker(use.format(code), TORCHELASTIC_ERROR_FILE=str(error))
    process.communicate(timeout=patience(20))
    assert process.returncode == (int(code) if code.isdigit() else 1)
    assert error.exists() == recorded


def test_process_ends_with_its_main_thread_whoever_waits_for_an_answer(worker, folder):
    process = worker("""
from elastic_ops.control_plane import register_handler
def forever(request, response):
    (here / "finish").touch()
    threading.Event().wait()
register_handler("forever", forever)
with worker_main():
    hold()
""")
    up(folder)
    with pytest.raises((ConnectionResetError, HTTPException)):
        client.call(str(folder / "w.sock"), "forever", timeout_s=20)
    assert process.wait(20) == 0


def test_forked_child_has_no_part_in_it(worker, folder):
    process = worker("""
import signal
@worker_main()
def main():
    child = os.fork()
    if child == 0:
        assert threading.active_count() == 1
        main_again()
        hold_child()
        os._exit(0)
    hold()
    print("parent", (here / "w.sock").exists(), flush=True)
    (here / "child-may-end").touch()
    assert os.waitpid(child, 0)[1] == 0
def main_again():
    assert (here / "w.sock").exists()
def hold_child():
    (here / "child").touch()
    while not (here / "child-may-end").exists():
        threading.Event().wait(0.02)
main()
""")
    up(folder)
    wait_for((folder / "child").exists)
    path = str(folder / "w.sock")
    assert client.call(path, "ping").text == "pong"
    (folder / "finish").touch()
    assert process.communicate(timeout=patience(20)) == ("parent True\n", "")
    assert not (folder / "w.sock").exists()


def test_worker_that_was_killed_leaves_a_socket_that_the_next_one_replaces(worker, folder):
    first = worker("with worker_main():\n    hold()\n")
    up(folder)
    first.send_signal(signal.SIGKILL)
    first.wait(20)
    (folder / "up").unlink()
    second = worker("with worker_main():\n    hold()\n")
    up(folder)
    assert client.call(str(folder / "w.sock"), "ping").text == "pong"
    third = worker("with worker_main():\n    print('trains')\n")
    out, err = third.communicate(timeout=patience(20))
    assert (out, third.returncode) == ("trains\n", 0)
    assert err.startswith("elastic: no control plane in this worker: another process listens at ")
    assert err.count("\n") == 1
    (folder / "finish").touch()
    assert second.wait(20) == 0


def test_unsafe_directory_costs_the_server_and_not_the_training(worker, folder):
    open_folder = folder / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    process = worker("with worker_main():\n    print('trains')\n", path=str(open_folder / "w.sock"))
    out, err = process.communicate(timeout=patience(20))
    assert (out, process.returncode) == ("trains\n", 0)
    assert "can be written by others (mode 777)" in err
    assert list(open_folder.iterdir()) == []


def test_there_is_no_server_on_tcp(worker, folder):
    """Torch's constructor takes a host and a port; ours takes a path, and ends as soon as it is told to."""
    with pytest.raises(TypeError):
        WorkerServer("127.0.0.1", 0)
    for _ in range(20):
        server = WorkerServer(str(folder / "w.sock"))
        server.shutdown()
        server.shutdown()
    assert not (folder / "w.sock").exists()


def test_handlers_of_user_code_come_first(worker, folder):
    worker("""
from elastic_ops.control_plane import Request, Response, handler_names, register_handler
def mine(request: Request, response: Response) -> None:
    response.set_content("mine " + request.get_param("k") + request.body(), "text/plain")
register_handler("ping", mine)
assert handler_names() == ("ping",)
with worker_main():
    hold()
""")
    up(folder)
    assert client.call(str(folder / "w.sock"), "ping", {"k": "v"}).text == "mine v"


def test_pyspy_dump_says_what_it_needs(worker, folder):
    worker("with worker_main():\n    hold()\n", PATH="/nowhere")
    up(folder)
    reply = client.call(str(folder / "w.sock"), "pyspy_dump")
    assert (reply.status, "py-spy is not installed. Try: pip install py-spy" in reply.text) == (500, True)


@pytest.mark.parametrize(("code", "status"), [(0, 200), (1, 500)])
def test_pyspy_dump_runs_what_is_installed(worker, folder, code, status):
    program = folder / "py-spy"
    program.write_text(f'#!/bin/sh\necho "$@"\necho "no\nright" >&2\nexit {code}\n')
    program.chmod(0o755)
    process = worker("with worker_main():\n    hold()\n", PATH=f"{folder}:{os.environ['PATH']}")
    up(folder)
    reply = client.call(str(folder / "w.sock"), "pyspy_dump", {"native": "1", "nonblocking": "", "evil": "x"})
    assert reply.status == status
    if code:
        assert reply.text.startswith("py-spy failed (exit code 1): no right. Try: ")
    else:
        assert reply.text == f"dump --pid {process.pid} --native --nonblocking\n"


def test_server_without_a_thread_listens_to_nobody(folder, monkeypatch):
    def none(thread):
        raise RuntimeError("can't start new thread")

    path = folder / "w.sock"
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        with pytest.raises(RuntimeError, match="new thread"):
            WorkerServer(str(path))
    assert not path.exists()
    WorkerServer(str(path)).shutdown()


def test_compat_has_it_by_torchs_name():
    from elastic_core.compat.elastic import control_plane
    from elastic_ops.control_plane import worker_main

    assert control_plane.worker_main is worker_main
    assert control_plane.TORCH_WORKER_SERVER_SOCKET == "TORCH_WORKER_SERVER_SOCKET"


# --- torch

BOTH = """
import torch
from torch._C._distributed_c10d import _register_handler, _WorkerServer
def echo(request, response):
    response.set_status(202)
    response.set_content(request.get_param("a") + request.body(), "text/x-echo")
def broken(request, response):
    raise ValueError("boom")
_register_handler("echo", echo)
_register_handler("broken", broken)
theirs = _WorkerServer(str(here / "t.sock"))
with worker_main():
    hold()
theirs.shutdown()
"""


@pytest.mark.torch
def test_torchs_server_and_ours_answer_alike(worker, folder):
    process = worker(BOTH)
    wait_for((folder / "up").exists, within_s=60)
    ours, theirs = str(folder / "w.sock"), str(folder / "t.sock")
    assert client.names(ours) == client.names(theirs)
    newer = {"c10d_health_check", "fr_dump_file"} & set(client.names(ours))  # of torch 2.15
    for name in ("ping", "fr_trace_json", "wait_counter_values", *newer):
        assert client.call(ours, name) == client.call(theirs, name)
    # A handler that was registered with torch, through both doors, parameters and all.
    assert client.call(ours, "echo", {"a": "1 ü"}) == client.call(theirs, "echo", {"a": "1 ü"})
    for name in ("nope", "broken"):
        mine, other = client.call(ours, name), client.call(theirs, name)
        assert (mine.status, mine.content_type) == (other.status, other.content_type)
    assert client.call(ours, "broken").text.startswith("Handler broken failed: ValueError: boom")
    for method, path in (("GET", "/"), ("GET", "/handler/ping"), ("GET", "/nope"), ("POST", "/nope")):
        mine, other = (client._ask(each, method, path, 10) for each in (ours, theirs))
        assert mine.status == other.status
    assert "hold" in client.call(ours, "dump_traceback").text
    assert "hold" in client.call(theirs, "dump_traceback").text
    (folder / "finish").touch()
    assert process.communicate(timeout=patience(30))[0] == ""
    assert process.returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["finish", "t.sock", "up"]  # torch leaves its own


@pytest.mark.torch
def test_ctl_reaches_a_worker_with_torchs_worker_main(elastic, script, folder, monkeypatch, capsys):
    from elastic_core.cli.main import main

    text = (HEAD + "with worker_main():\n    hold()\n").replace(
        "elastic_ops.control_plane", "torch.distributed.elastic.control_plane"
    )
    env = {"TEST_FOLDER": str(folder), "XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(folder)}
    agent = elastic(str(script(text)), env=env)
    wait_for((folder / "up").exists, within_s=60)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    assert main(["ctl", "--worker", "0", "ping"]) == 0
    assert main(["ctl", "--worker", "0", "fr_trace_json"]) == 0
    assert '"version"' in capsys.readouterr().out
    (folder / "finish").touch()
    assert agent.wait() == 0
