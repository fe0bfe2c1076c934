"""`elastic status` and `elastic incidents` beside real agents of this machine: running, failed, killed, gone."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.cli.main import main
from elastic_ops.status.command import NamedSource
from elastic_ops.status.document import STATUS_FILE, read_status
from patience import patience
from support import wait_for

WAITS = """
import os, pathlib, sys, time
here = pathlib.Path(sys.argv[1])
(here / f"up-{os.environ['ELASTIC_ROUND']}-{os.environ['RANK']}").touch()
while not (here / "finish").exists():
    order = here / f"fail-{os.environ['ELASTIC_ROUND']}-{os.environ['RANK']}"
    if order.exists():
        raise ValueError("boom")
    time.sleep(0.02)
"""


class Machine:
    """This user's machine as the commands see it, and what they answer."""

    def __init__(self, folder, monkeypatch, capsys):
        self.runtime = folder / "runtime"
        self.runtime.mkdir(mode=0o700)
        self._capsys = capsys
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(self.runtime))
        monkeypatch.setenv("TMPDIR", str(self.runtime))
        for name in [name for name in os.environ if name.startswith("PET_")]:
            monkeypatch.delenv(name)

    def asks(self, *words):
        """Return exit code, stdout and stderr of a command."""
        self._capsys.readouterr()
        code = main([str(word) for word in words])
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    def ok(self, *words):
        code, out, err = self.asks(*words)
        assert code == 0, err
        return out

    def run(self, *words):
        """Return the one run that `status --json` tells of; None: it tells of none."""
        runs = json.loads(self.ok("status", "--json", *words))["runs"]
        assert len(runs) <= 1
        return runs[0] if runs else None

    def run_dirs(self):
        return sorted(self.runtime.glob("elastic-*/*-*"))


@pytest.fixture
def machine(tmp_path, monkeypatch, capsys):
    return Machine(tmp_path, monkeypatch, capsys)


@pytest.fixture
def start(elastic, machine, script, tmp_path):
    """Start an agent whose workers wait for a word in the test's folder."""

    def begin(*options):
        args = [*options, "--shutdown-timeout", "3", str(script(WAITS)), str(tmp_path)]
        return elastic(*args, env={"XDG_RUNTIME_DIR": str(machine.runtime), "TMPDIR": str(machine.runtime)})

    return begin


def fails(folder, index, rank):
    (folder / f"fail-{index}-{rank}").touch()


def is_in(machine, state, **more):
    """Wait for a run in this state, with these values."""

    def found():
        run = machine.run()
        fits = run is not None and run["state"] == state and all(run[key] == value for key, value in more.items())
        return run if fits else None

    return wait_for(found, what=f"{state} {more}")


def test_a_run_while_it_goes_on_and_after_a_restart(machine, start, tmp_path):
    agent = start("--nproc-per-node", "2", "--max-restarts", "3")
    run = is_in(machine, "running")
    assert (run["run_id"], run["source"], run["backend"]) == (agent.run_id, "directory", "local")
    assert (run["agent"]["pid"], run["agent"]["alive"]) == (agent.pid, True)
    assert (run["round"]["index"], run["round"]["world_size"]) == (0, 2)
    assert (run["restart_count"], run["max_restarts"], run["incident_count"]) == (0, 3, 0)
    assert [(each["state"], each["first_rank"], each["worker_count"]) for each in run["nodes"]] == [("running", 0, 2)]
    assert {worker["state"] for worker in run["workers"]} == {"alive"}
    for worker in run["workers"]:
        os.kill(worker["pid"], 0)
    (folder,) = machine.run_dirs()
    assert (folder / "status.json").stat().st_mode & 0o777 == 0o600

    fails(tmp_path, 0, 1)
    run = is_in(machine, "running", restart_count=1, incident_count=1)
    assert run["last_incident"]["summary"] == "ValueError: boom"
    assert (run["last_incident"]["rank"], run["incident_count"]) == (1, 1)
    shown = machine.ok("status")
    assert f"run '{agent.run_id}': running, round 1" in shown
    assert "1 restart of 3, 0 membership changes" in shown
    assert "last incident (of 1," in shown
    listed = machine.ok("incidents")
    assert re.search(
        r"^1 +20\S+Z +\S+ +user exception +1 +\S+ +0 +restart \(max-restarts\) +ValueError: boom$", listed, re.M
    )
    block = machine.ok("incidents", agent.run_id, "1")
    assert "user exception: ValueError: boom" in block
    assert block.count("\n") <= 26

    (tmp_path / "finish").touch()
    assert agent.wait() == 0
    assert machine.run() is None
    assert "no agent of this user runs on this host" in machine.ok("status")
    assert machine.ok("incidents") == listed  # they are kept with the run's record


def test_a_run_that_failed_is_told_by_what_it_left(machine, start, tmp_path):
    agent = start("--max-restarts", "1", "--restart-backoff", "0")
    for index in range(2):
        wait_for((tmp_path / f"up-{index}-0").exists)
        fails(tmp_path, index, 0)
    assert agent.wait() == 1
    assert "1 run directory is kept there: elastic incidents" in machine.ok("status")
    run = machine.run(agent.run_id)
    assert (run["state"], run["verdict"]["exit_code"], run["incident_count"]) == ("failed", 1, 2)
    assert run["agent"]["alive"] is False
    shown = machine.ok("status", *machine.run_dirs())
    assert "verdict: failed, exit code 1" in shown
    assert "dead" not in shown
    found = json.loads(machine.ok("incidents", agent.run_id, "--json"))
    assert found["schema_version"] == 2
    assert [one["number"] for one in found["incidents"]] == [1, 2]
    assert [one["incident"]["decision"]["type"] for one in found["incidents"]] == ["restart", "stop"]
    assert found["incidents"][0]["incident"]["phases"]["start_s"] is not None
    assert "Decision: stop" in machine.ok("incidents", "--last")
    assert machine.ok("incidents", "--last") == machine.ok("incidents", "2")


def test_an_agent_that_was_killed_is_said_to_be_dead(machine, start):
    agent = start()
    is_in(machine, "running")
    agent.signal(signal.SIGKILL)
    agent.wait()
    assert machine.run() is None
    run = machine.run(agent.run_id)
    assert (run["state"], run["agent"]["alive"], run["verdict"]) == ("agent dead", False, None)
    assert [worker["state"] for worker in run["workers"]] == ["unknown"]
    assert "it is dead" in machine.ok("status", agent.run_id)
    assert machine.asks("status", "--watch", "5", agent.run_id)[0] == 0  # nothing more to wait for


def test_several_runs_are_listed(machine, start):
    agents = [start(), start()]
    wait_for(lambda: len(json.loads(machine.ok("status", "--json"))["runs"]) == 2)
    lines = machine.ok("status").splitlines()
    assert lines[0].split()[:3] == ["RUN", "STATE", "ROUND"]
    assert {line.split()[0] for line in lines[1:3]} == {agent.run_id for agent in agents}


def test_a_directory_that_the_user_chose_keeps_how_a_good_run_ended(machine, start, tmp_path):
    chosen = tmp_path / "mine"
    agent = start("--run-dir", str(chosen))
    wait_for((tmp_path / "up-0-0").exists)
    (tmp_path / "finish").touch()
    assert agent.wait() == 0
    run = machine.run(chosen)
    assert (run["state"], run["verdict"]["exit_code"], run["run_dir"]) == ("done", 0, str(chosen))
    assert read_status(chosen / "status.json").end.outcome == "succeeded"
    assert "no incident to show" in machine.asks("incidents", chosen, "--last")[2]


def test_a_watch_ends_with_its_run(machine, start, tmp_path):
    agent = start()
    is_in(machine, "running")
    command = [sys.executable, "-m", "elastic_core", "status", "--watch", "0.2", agent.run_id]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert watch.stdout.readline() == f"run '{agent.run_id}': running, round 0 (token 1)\n"
        (tmp_path / "finish").touch()
        assert agent.wait() == 0
        out, _ = watch.communicate(timeout=patience(20))
    finally:
        watch.kill()
        watch.wait()
    assert watch.returncode == 0
    # Where the agent needs some time between its verdict and the end of its directory, a look may come between.
    assert "its run directory is gone" in out or "verdict: succeeded, exit code 0" in out


def test_a_run_that_is_just_being_removed_is_gone(machine, start, tmp_path):
    start()
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(Path(is_in(machine, "running")["run_dir"]) / STATUS_FILE, copy)
    source = NamedSource(str(copy))
    assert [run.source for run in source.look()] == ["directory"]
    (copy / STATUS_FILE).unlink()  # the first that goes
    assert source.look() == ()


def test_nothing_runs_and_nothing_is_kept(machine):
    assert machine.run() is None
    assert (
        machine.ok("status")
        == f"no agent of this user runs on this host (directories: '{machine.runtime}/elastic-{os.geteuid()}')\n"
    )
    assert machine.ok("incidents") == "no incidents\n"
    assert json.loads(machine.ok("incidents", "--json"))["incidents"] == []


@pytest.mark.parametrize("command", ["status", "incidents"])
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nope"], 2, "no run directory 'nope', and no run of that id"),
        (["/nope/nope"], 2, "no run directory '/nope/nope'"),
        (["x", "--rdzv-id", "y"], 2, "name two runs; expected one"),
        (["x", "--rdzv-backend", "redis", "--rdzv-endpoint", "127.0.0.1:1"], 4, "refused"),
        (["--rdzv-id", "y"], 2, "no run directory 'y', and no run of that id"),
        (["--rdzv-backend", "redis", "--rdzv-id", "y", "--rdzv-conf", "novelty=1"], 2, "novelty"),
        (["--rdzv-backend", "nope", "--rdzv-id", "y"], 3, "'nope' is not installed"),
        (["--rdzv-backend", "static", "--rdzv-id", "y"], 2, "keeps no store"),
        (["--rdzv_backend", "redis", "--rdzv_endpoint", "127.0.0.1:1", "--rdzv_id", "y"], 4, "refused"),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:1", "--rdzv-id", "y"], 4, "refused"),
        (["--novelty"], 2, "--novelty"),
    ],
)
def test_what_can_not_be_shown_is_one_line(machine, command, words, code, said):
    got, out, err = machine.asks(command, *words)
    assert (got, out) == (code, "")
    assert re.fullmatch(r"elastic: error: .*\n", err)
    assert said in err


def test_a_directory_that_is_none_of_ours(machine, tmp_path):
    code, _, err = machine.asks("status", tmp_path)
    assert code == 2
    assert "is not a run directory" in err


def test_an_endpoints_password_is_not_in_an_error(machine):
    words = ("--rdzv-backend", "redis", "--rdzv-endpoint", "redis://u:hunter2@127.0.0.1:1", "--rdzv-id", "x")
    _, _, err = machine.asks("status", *words)
    assert "refused" in err
    assert "hunter2" not in err


def test_the_numbers_of_incidents_are_checked(machine):
    assert "no incident to show" in machine.asks("incidents", "7")[2]
    line = "elastic: error: --last: incident 7 is given too; expected one of both. Try: elastic incidents --help\n"
    assert machine.asks("incidents", "7", "--last")[2] == line
