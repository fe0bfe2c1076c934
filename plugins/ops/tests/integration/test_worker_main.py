"""`worker_main` in processes of their own: its server, what it records, and torch's on either side."""

import json
import os
import signal
import threading
from http.client import HTTPException

import pytest

from elastic_ops.control_plane import WorkerServer, client
from patience import patience
from support import wait_for


def up(folder):
    wait_for((folder / "up").exists)


def test_server_lives_as_long_as_the_function_and_again(worker, folder):
    process = worker("""
@worker_main()
def main(word):
    hold()
    return word
def threads():
    for each in {*threading.enumerate()} - {threading.main_thread()}:
        each.join(60)  # one that has answered may need a turn to end
    return threading.active_count()
print(main("first"), (here / "w.sock").exists(), main("second"), threads())
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
    assert process.wait(patience(20)) == 0


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
    first.wait(patience(20))
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
    assert second.wait(patience(20)) == 0


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
