"""`elastic ctl` beside real agents: what it sees, what it makes them do, and what keeps it out."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from elastic_core.cli.main import main
from elastic_core.errors import ConfigError, ElasticError
from elastic_ops.control_plane import client
from elastic_ops.ctl.target import Target, asked
from patience import patience
from ports import free_port
from redis_servers import redis_server  # noqa: F401  # a fixture
from support import wait_for

WAITS = """
import json, os, pathlib, signal, sys, threading
here = pathlib.Path(sys.argv[1])
env = os.environ
if "stubborn" in sys.argv:  # before it is seen to run
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(json.dumps({"round": int(env["ELASTIC_ROUND"]), "restarts": int(env["TORCHELASTIC_RESTART_COUNT"]),
                  "changes": int(env["ELASTIC_MEMBERSHIP_CHANGES"]), "rank": int(env["RANK"]),
                  "socket": env.get("TORCH_WORKER_SERVER_SOCKET")}), flush=True)
def stuck_here():
    event = threading.Event()
    while not (here / "finish").exists():
        if (here / f"fail-{env['ELASTIC_ROUND']}-{env['RANK']}").exists():
            raise ValueError("boom")
        event.wait(0.05)
if "served" in sys.argv:
    from elastic_ops.control_plane import register_handler, worker_main
    def step(request, response):
        response.set_content(request.get_param("of") + " 7", "text/plain")
    register_handler("step", step)
    wait_here = stuck_here
    @worker_main()
    def stuck_here():  # the server listens
        (here / f"listens-{env['RANK']}").touch()
        wait_here()
stuck_here()
"""


class Machine:
    """This user's machine as `elastic ctl` sees it."""

    def __init__(self, runtime, monkeypatch, capsys):
        self.runtime = runtime
        self._capsys = capsys
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        monkeypatch.setenv("TMPDIR", str(runtime))

    def listening(self):
        """Return the sockets of the agents that have said that they listen."""
        told = (_status(path) for path in self.runtime.glob("elastic-*/*/status.json"))
        return {status["control"] for status in told if status.get("control")}

    def ctl(self, *words):
        """Return exit code, stdout and stderr."""
        self._capsys.readouterr()
        code = main(["ctl", *map(str, words)])
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        assert said.err.count("\n") <= 1
        return code, said.out, said.err

    def ok(self, *words):
        code, out, err = self.ctl(*words)
        assert (code, err) == (0, "")
        return out

    def refused(self, *words):
        """Return the one line of a refusal, with its code."""
        code, out, err = self.ctl(*words)
        assert out == ""
        return code, err

    def state(self):
        return json.loads(self.ok("--json", "state"))["body"]


@pytest.fixture
def machine(monkeypatch, capsys):
    with TemporaryDirectory(prefix="ec-", dir="/tmp") as folder:  # short: sockets are in it
        yield Machine(Path(folder), monkeypatch, capsys)


@pytest.fixture
def start(machine, elastic, script, tmp_path):  # agents end before their folder is removed
    """Start an agent whose workers wait, and wait until it listens, and so do workers that serve."""

    def begin(*options, words=(), listens=True):
        before = machine.listening()
        args = ["--shutdown-timeout", "20", *options, str(script(WAITS)), str(tmp_path), *words]
        agent = elastic(*args, env={"XDG_RUNTIME_DIR": str(machine.runtime), "TMPDIR": str(machine.runtime)})
        if listens:
            wait_for(lambda: machine.listening() - before)
        if "served" in words:
            workers = int(options[options.index("--nproc-per-node") + 1]) if "--nproc-per-node" in options else 1
            wait_for(lambda: len([*tmp_path.glob("listens-*")]) == workers)
        return agent

    return begin


def _status(path):
    try:
        return json.loads(path.read_bytes())
    except OSError:
        return {}


def finish(folder):
    (folder / "finish").touch()


def test_sees_agent_and_workers(start, machine, tmp_path):
    agent = start("--nproc-per-node", "2", "--redirects", "1")
    assert machine.ok("ping") == "pong\n"
    listed = machine.ok()
    assert listed.startswith(
        "agent: drain, heartbeats, heartbeats-progress, ledger, metrics, ping, planned-stops, planned-stops-progress, "
        "planned-stops-steps, restart, stacks, state, store, workers\n"
        "rank 0: no server\n"
    )
    state = machine.state()
    assert (state["run_id"], state["state"], state["round"]["index"]) == (agent.run_id, "running", 0)
    workers = json.loads(machine.ok("workers"))["workers"]
    assert [(worker["global_rank"], worker["alive"]) for worker in workers] == [(0, True), (1, True)]
    assert all(worker["uptime_s"] > 0 and Path(worker["stdout"]).exists() for worker in workers)
    assert {worker["pid"] for worker in workers} <= set(agent.survivors())
    assert json.loads(machine.ok("metrics"))["workers_alive"] == 2
    (path,) = machine.listening()
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    finish(tmp_path)
    assert agent.wait() == 0
    assert not list(machine.runtime.glob("elastic-*/*/*.sock"))  # the directory is kept for its logs


def test_stacks_show_the_line_where_each_worker_is(start, machine):
    agent = start("--nproc-per-node", "2")
    stacks = wait_for(lambda: (text := machine.ok("stacks")).count("in stuck_here") == 2 and text)
    assert "rank 0 (local rank 0, pid " in stacks
    assert machine.ok("stacks", "rank=1").count("in stuck_here") == 1
    code, line = machine.refused("stacks", "rank=7")
    assert (code, "no worker with global rank '7' runs on this node" in line) == (1, True)
    machine.ok("drain")  # what was written for the stacks is no evidence of a fatal error
    assert agent.wait() == 143
    assert "Fatal" not in agent.err


def test_stacks_of_workers_that_are_watched_for_hangs_or_have_only_their_own_server(start, machine):
    agent = start("--hang-timeout", "60")
    wait_for(lambda: "in stuck_here" in machine.ok("stacks"))
    machine.ok("drain")
    assert agent.wait() == 143
    agent = start("--no-worker-hooks", words=["served"])
    wait_for(lambda: "its own server" in machine.ok("stacks"))  # once it serves
    machine.ok("drain")
    assert agent.wait() == 143
    agent = start("--no-worker-hooks")
    assert "it does not answer" in machine.ok("stacks")
    machine.ok("drain")
    assert agent.wait() == 143


def test_worker_with_worker_main_is_asked_itself(start, machine):
    start("--nproc-per-node", "2", words=["served"])
    wait_for(lambda: "no server" not in machine.ok())
    assert machine.ok().splitlines()[1] == "rank 0: dump_traceback, ping, pyspy_dump, step"
    assert machine.ok("--worker", "1", "ping") == "pong\n"
    assert "in stuck_here" in machine.ok("--worker", "1", "dump_traceback")
    assert machine.ok("--worker", "0", "step", "of=epoch") == "epoch 7\n"
    (served,) = machine.runtime.glob("elastic-*/*/worker_1.sock")
    assert stat.S_IMODE(served.stat().st_mode) == 0o600
    code, line = machine.refused("--worker", "0", "stpe")
    assert (code, "Try: elastic ctl step" in line) == (2, True)


def test_drain_is_as_a_sigterm(start, machine):
    agent = start("--nproc-per-node", "2", "--max-restarts", "3")
    assert "2 workers to stop, at most 20 s" in machine.ok("drain")
    assert agent.wait() == 143
    assert "SIGTERM: stopping 2 workers, at most 20 s" in agent.err
    assert agent.survivors() == []


def test_drain_by_a_deadline_ends_workers_that_do_not_end(start, machine):
    agent = start(words=["stubborn"])
    wait_for(lambda: agent.lines())
    code, line = machine.refused("drain", "deadline=soon")
    assert (code, "deadline: 'soon'; expected seconds" in line) == (2, True)
    assert "1 worker to stop, at most 10 s" in machine.ok("drain", "deadline=10")
    assert "at most 0.3 s" in machine.ok("drain", "deadline=0.3")  # a later word hurries, it does not kill at once
    assert agent.wait(within_s=8) == 143
    assert "second signal" not in agent.err.replace("a second signal kills", "")


def test_restart_begins_a_round_and_leaves_the_budget_alone(start, machine, tmp_path):
    agent = start("--nproc-per-node", "2", "--max-restarts", "1")
    wait_for(lambda: len(agent.lines()) == 2)
    assert machine.ok("restart", "reason=new data") == "round 0 ends; all workers of the run are started again\n"
    wait_for(lambda: len(agent.lines()) == 4)
    assert [(line["round"], line["restarts"], line["changes"]) for line in agent.lines()[2:]] == [(1, 0, 0)] * 2
    assert "round 0 is over: a restart was requested on node" in agent.err
    assert "(new data)" in agent.err
    (tmp_path / "fail-1-0").touch()
    wait_for(lambda: len(agent.lines()) == 6)  # the one restart that there is
    assert agent.lines()[-1]["restarts"] == 1
    (tmp_path / "fail-2-1").touch()
    assert agent.wait() == 1
    (incident,) = machine.runtime.glob("elastic-*/*/incident.json")
    assert json.loads(incident.read_bytes())["restart_count"] == 1


def test_restart_on_one_node_restarts_all(elastic, machine, script, tmp_path, redis_server):  # noqa: F811
    text = script(WAITS)

    def begin(name):
        runtime = tmp_path / f"rt-{name}"
        runtime.mkdir(mode=0o700)
        options = ["--rdzv-backend", "redis", "--rdzv-endpoint", redis_server.endpoint, "--rdzv-id", "both"]
        options += ["--nnodes", "2", "--node-id", name, "--rdzv-conf", "last_call_timeout=0.2"]
        return elastic(
            *options, str(text), str(tmp_path), env={"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(runtime)}
        )

    agents = [begin("a"), begin("b")]
    wait_for(lambda: all(agent.lines() for agent in agents))
    (path,) = wait_for(lambda: list((tmp_path / "rt-b").glob("elastic-*/*/status.json")))
    wait_for(lambda: _status(path).get("control"))
    assert "round 0 ends" in machine.ok("--run", path.parent, "restart", "reason=why not")
    wait_for(lambda: all(len(agent.lines()) == 2 for agent in agents))
    for agent in agents:
        second = agent.lines()[1]
        assert (second["round"], second["restarts"], second["changes"]) == (1, 0, 0)
    assert "all workers are started again: a restart was requested on node b (why not)" in agents[0].err
    finish(tmp_path)
    assert [agent.wait() for agent in agents] == [0, 0]


def test_restart_is_refused_where_it_can_not_be(start, machine):
    place = f"127.0.0.1:{free_port()}"
    agent = start("--nnodes", "2", "--rdzv-backend", "static", "--rdzv-endpoint", place, listens=False)
    # Nobody else comes: static does not wait for others, so that its workers run.
    wait_for(lambda: agent.lines())
    wait_for(machine.listening)
    code, line = machine.refused("restart")
    assert (code, "backend 'static' can't tell the other nodes" in line) == (1, True)


def test_interrupt_ends_the_agent_whoever_asks_it_something(start, machine):
    agent = start()
    (path,) = machine.listening()
    with socket.socket(socket.AF_UNIX) as idle, socket.socket(socket.AF_UNIX) as half:
        idle.connect(path)
        half.connect(path)
        half.sendall(b"POST /handler/stacks HTTP/1.1\r\n")
        assert machine.ok("ping") == "pong\n"  # those two keep nobody else waiting
        agent.signal(signal.SIGINT)
        assert agent.wait(within_s=5) == 130
    assert agent.survivors() == []


def test_interrupt_of_ctl_is_an_interrupt(start, machine):
    agent = start()
    agent.signal(signal.SIGSTOP)
    env = os.environ | {"XDG_RUNTIME_DIR": str(machine.runtime), "TMPDIR": str(machine.runtime)}
    asking = subprocess.Popen([sys.executable, "-m", "elastic_core", "ctl", "ping"], env=env, stderr=subprocess.PIPE)
    (path,) = machine.listening()
    wait_for(lambda: _queued(asking.pid))
    asking.send_signal(signal.SIGINT)
    assert asking.wait(patience(10)) == 130
    assert asking.communicate()[1] == b""
    code, line = machine.refused("--timeout", "0.3", "ping")
    assert (code, "did not answer in time" in line) == (1, True)
    agent.signal(signal.SIGCONT)
    assert client.call(path, "ping").ok


def _queued(pid):
    """Return whether a process waits on a unix socket."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed since it was listed
            if "socket:" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                return True
    return False


def test_what_is_not_there_is_told_in_a_line(start, machine, tmp_path):
    code, line = machine.refused("ping")
    assert (code, "no agent of this user runs on this host (directories: " in line) == (2, True)
    code, line = machine.refused("--run", "nope", "ping")
    assert (code, "no run of that id" in line, "--rdzv" in line) == (2, True, False)
    agent = start()
    code, line = machine.refused("--worker", "3", "ping")
    assert (code, "--worker: 3; expected a rank on this node: 0. Try: elastic ctl workers" in line) == (
        2,
        True,
    )
    code, line = machine.refused("--worker", "0", "ping")
    assert (code, "worker_main() on the script's main function" in line) == (2, True)
    code, line = machine.refused("stakcs")
    assert (code, "Try: elastic ctl stacks" in line) == (2, True)
    code, line = machine.refused("dump_traceback")
    assert (code, "Try: --worker RANK" in line) == (2, True)
    code, line = machine.refused("drain", "now")
    assert (code, "parameter: 'now'; expected KEY=VALUE" in line) == (2, True)
    (tmp_path / "fail-0-0").touch()
    assert agent.wait() == 1
    code, line = machine.refused("--run", agent.run_id, "ping")
    assert (code, "has ended here (failed, exit code 1)" in line) == (2, True)


def test_agent_that_was_killed_and_one_that_listens_to_nobody(start, machine):
    killed = start()
    killed.signal(signal.SIGKILL)
    assert killed.wait() == -9
    code, line = machine.refused("--run", killed.run_id, "ping")
    assert (code, "is dead" in line) == (2, True)
    quiet = start("--no-control-plane", listens=False)
    wait_for(lambda: quiet.lines())
    assert quiet.lines()[0]["socket"] is None
    statuses = machine.runtime.glob
    wait_for(lambda: quiet.run_id in [_status(path).get("run_id") for path in statuses("elastic-*/*/status.json")])
    code, line = machine.refused("--run", quiet.run_id, "ping")
    words = "has no control plane. Try: again in a second if the run has just begun, else elastic run without --no-c"
    assert (code, words in line) == (2, True)


def test_two_agents_are_told_apart_by_run_or_by_rank(start, machine):
    first, second = start("--nproc-per-node", "1"), start("--nproc-per-node", "2", words=["served"])
    code, line = machine.refused("ping")
    assert (code, "RUN: 2 runs are on this host (" in line) == (2, True)
    assert machine.ok("--run", first.run_id, "ping") == "pong\n"
    wait_for(lambda: machine.ctl("--worker", "1", "ping")[0] == 0)  # only one of them has that rank
    assert second.process.poll() is None


@pytest.mark.parametrize("mode", [0o700, 0o775])
def test_deep_or_open_run_directory_is_no_obstacle(start, machine, tmp_path, mode):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    deep.chmod(mode)
    agent = start("--run-dir", str(deep), words=["served"], listens=False)
    path = Path(wait_for(lambda: _status(deep / "status.json").get("control")))
    assert path == (deep if mode == 0o700 else deep / "control") / "agent.sock"
    assert machine.ok("--run", deep, "ping") == "pong\n"
    assert machine.ok("--run", deep, "--worker", 0, "ping") == "pong\n"
    machine.ok("--run", deep, "drain")
    assert agent.wait() == 143
    assert not list(deep.glob("**/*.sock"))


def test_variable_that_a_user_has_set_stands(elastic, script, tmp_path):
    finish(tmp_path)
    env = {"TORCH_WORKER_SERVER_SOCKET": "/mine"}
    agent = elastic(str(script(WAITS)), str(tmp_path), env=env)
    assert agent.wait() == 0
    assert agent.lines()[0]["socket"] == "/mine"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (PermissionError(13, "Permission denied"), ConfigError, "is not for user"),
        (ConnectionRefusedError(), ConfigError, "does not listen at '/x'"),
        (ConnectionResetError(), ElasticError, "closed the connection without a valid HTTP response"),
        (client.http.client.BadStatusLine("x"), ElasticError, "closed the connection without a valid HTTP response"),
    ],
)
def test_trouble_with_a_socket_is_one_line(error, kind, text):
    def fails():
        raise error

    with pytest.raises(kind, match=text):
        asked(Target(name="the agent", path="/x"), fails)
