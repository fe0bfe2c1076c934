"""The steps, saves and restores of real workers, as another hook of their agent finds them."""

import json
import os
import signal

import pytest

from proc_kit import command_line
from support import wait_for

HOOK = """
import json, os
from elastic_core.api import AgentHook, Power

NAMES = ("planned-stops-progress", "heartbeats-progress")

class Reads(AgentHook):
    api_version = 1
    powers = frozenset({Power.FEED, Power.RUN})
    round = 0

    def on_workers_started(self, event):
        self.round = event.round.index
        for name in NAMES:
            self.run.offers()[name]({"above": "4"})
        with open(f"{os.environ['READ']}.set.{self.round}", "w"):
            pass

    def on_run_event(self, event):
        when = event.values.get("event") if event.name == "step" else event.name
        if when in ("WorkersStopped", "feed_closed"):
            for index in range(self.round + 1):
                self.write(when, index, event.at_s)

    def write(self, when, index, at_s):
        parameters = {"round": str(index)}
        found = [json.loads(self.run.offers()[name](parameters).content)["workers"] for name in NAMES]
        with open(os.environ["READ"], "a") as file:
            file.write(json.dumps([when, index, at_s, *found]) + os.linesep)
"""
WAITS = """
import os, pathlib, signal, sys, time
round_, rank = int(os.environ["ELASTIC_ROUND"]), int(os.environ["LOCAL_RANK"])
while not pathlib.Path(f"{os.environ['READ']}.set.{round_}").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def run(elastic, tmp_path):
    """Start a script beside the hook; `read` has what the hook found."""
    meta = tmp_path / "site" / "reads-1.0.dist-info"
    meta.mkdir(parents=True)
    (meta.parent / "reads.py").write_text(HOOK)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: reads\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[elastic_core.hooks]\nreads = reads:Reads\n")

    def start(text, *options):
        script = tmp_path / "train.py"
        script.write_text(WAITS + text)
        env = {"PYTHONPATH": str(meta.parent), "READ": str(tmp_path / "read")}
        # The ledger would set the step for `above_s`, too.
        return elastic("--restart-backoff", 0, "-p", "no:ledger", *options, script, env=env)

    return start


@pytest.fixture
def read(tmp_path):
    """Return the last that the hook found in a round: when, and the workers of both responses."""

    def last(round_index):
        lines = [json.loads(line) for line in (tmp_path / "read").read_text().splitlines()]
        assert lines[-1][0] == "feed_closed"
        *_, (_, _, at_s, saves, beats) = (line for line in lines if line[1] == round_index)
        return at_s, saves, beats

    return last


def kinds(worker):
    return [(kind, end is not None) for kind, _, end in worker["marks"]]


TRAINS = """
from elastic_train import restoring, saving, should_stop
other = pathlib.Path(os.environ["READ"] + ".rank_0")
with restoring():
    pass
for step in range(3 * round_, 8):
    should_stop(step=step)
    with saving():
        with saving():
            pass
        if (round_, rank, step) == (0, 1, 4):
            while not other.exists():  # rank 0 has begun, too
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    while (round_, rank, step) == (0, 0, 4):
        other.touch()
        time.sleep(0.01)
"""


def test_a_worker_that_is_killed_in_a_save_leaves_its_mark_open(run, read):
    agent = run(TRAINS, "--nproc-per-node", 2, "--max-restarts", 1)
    assert agent.wait() == 0, agent.err
    at_s, saves, beats = read(0)
    other, killed = saves["0"], saves["1"]
    assert beats == {}
    assert (killed["first_step"], killed["step"], killed["above_s"], killed["marks_dropped"]) == (0, 4, None, 0)
    assert kinds(killed) == [("restore", True), *[("save", True)] * 4, ("save", False)]
    assert all(closed for _, closed in kinds(other)[:-1])
    times = [killed["alive_s"], killed["marks"][0][2], killed["first_step_s"], killed["step_s"], killed["marks"][-1][1]]
    assert times == sorted(times)
    assert times[-1] <= at_s
    saved = killed["marks"][-2]
    assert killed["first_step_s"] < saved[1] <= saved[2] < killed["step_s"]
    for own in read(1)[1].values():
        assert (own["first_step"], own["step"], own["marks_dropped"]) == (3, 7, 0)
        assert kinds(own) == [("restore", True), *[("save", True)] * 5]
        assert own["first_step_s"] < own["above_s"] < own["step_s"]
        assert own["marks"][2][2] <= own["above_s"] <= own["marks"][3][1]  # step 5: after the saves at 3 and 4


def test_more_saves_than_a_page_has_slots_are_counted(run, read):
    agent = run("from elastic_train import saving\nfor _ in range(100):\n    with saving(): pass")
    assert agent.wait() == 0, agent.err
    (own,) = read(0)[1].values()
    assert (kinds(own), own["marks_dropped"], own["step"]) == ([("save", True)] * 64, 36, None)


def test_workers_that_send_heartbeats_have_steps_and_no_marks(run, read):
    text = "from elastic_core.worker import heartbeat, section\nfor step in range(3, 7):\n    heartbeat(step=step)"
    agent = run(text, "--nproc-per-node", 2)
    assert agent.wait() == 0, agent.err
    at_s, saves, beats = read(0)
    assert (saves, sorted(beats)) == ({}, ["0", "1"])
    for own in beats.values():
        assert (own["first_step"], own["step"], own["marks"], own["marks_dropped"]) == (3, 6, [], 0)
        assert own["alive_s"] == own["first_step_s"] < own["above_s"] < own["step_s"] < at_s


def test_a_script_that_calls_nothing_is_absent(run, read):
    assert run("").wait() == 0
    assert read(0)[1:] == ({}, {})


SPARE = """
while not pathlib.Path(os.environ["READ"] + ".spare").exists():
    time.sleep(0.01)  # the spare imports the modules before this worker does
import elastic_watch.beats
from elastic_train import saving, should_stop
for step in range(3 + round_, 7 + round_):
    should_stop(step=step)
    elastic_watch.beats.heartbeat(step=step)
    with saving():
        pass
os.write(1, f"{round_} {os.getpid()}{os.linesep}".encode())
while round_ == 0:
    time.sleep(0.01)
"""


def test_a_standby_worker_writes_into_the_page_of_its_round_only(run, read, tmp_path):
    (tmp_path / "site" / "marker.py").write_text("import os\nopen(os.environ['READ'] + '.spare', 'w').close()\n")
    imports = "elastic_train.marks,elastic_train.stops,elastic_watch.beats,marker"
    spawn = ("--standby", "--standby-start", "spawn", "--standby-imports", imports)
    agent = run(SPARE, *spawn, "--max-restarts", 1)
    wait_for(lambda: "\n" in agent.out, what="the worker")
    (spare,) = (pid for pid in agent.survivors() if b"elastic_standby/spare.py" in command_line(pid))
    os.kill(int(agent.out.split()[1]), signal.SIGKILL)
    assert agent.wait() == 0, agent.err
    assert agent.out.splitlines()[1] == f"1 {spare}"
    for round_index in (0, 1):
        _, saves, beats = read(round_index)
        for own in (saves["0"], beats["0"]):
            assert (own["first_step"], own["step"]) == (3 + round_index, 6 + round_index)
            assert own["alive_s"] <= own["first_step_s"] <= own["above_s"] <= own["step_s"]
        assert kinds(saves["0"]) == [("save", True)] * 4


def test_processes_that_a_worker_starts_write_nothing_for_it(run, read):
    text = (
        "import subprocess\n"
        "from elastic_train import saving, should_stop\n"
        "should_stop(step=2)\n"
        "code = 'from elastic_train import *\\nwith saving(): should_stop(step=99)'\n"
        "subprocess.run([sys.executable, '-c', code], check=True)\n"
        "if os.fork() == 0:\n"
        "    with saving(): should_stop(step=98)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    agent = run(text)
    assert agent.wait() == 0, agent.err
    (own,) = read(0)[1].values()
    assert (own["step"], own["marks"]) == (2, [])
