"""torch's worker server beside ours."""

from elastic_ops.control_plane import client
from patience import patience
from support import wait_for
from worker_main_kit import HEAD

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
    wait_for(lambda: main(["ctl", "--worker", "0", "ping"]) == 0, what="the agent, which may listen later")
    assert main(["ctl", "--worker", "0", "fr_trace_json"]) == 0
    assert '"version"' in capsys.readouterr().out
    (folder / "finish").touch()
    assert agent.wait() == 0
