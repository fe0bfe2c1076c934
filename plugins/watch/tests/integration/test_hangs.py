"""`--hang-timeout` with real workers: who is named, what protects, what is kept, what ends."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from patience import kept, patience
from support import lacks, wait_for

BEATS = """
import os, pathlib, sys, time
from elastic_core.worker import heartbeat, section
rank, round_ = int(os.environ["RANK"]), int(os.environ["ELASTIC_ROUND"])
"""

STUCK = (
    BEATS
    + """
def wait_for_ever():
    while True:
        time.sleep(0.01)  # here

there = pathlib.Path(f"rank0-{round_}")  # in the agent's folder
while rank == 1 and not there.exists():  # it is not judged before its first heartbeat
    time.sleep(0.01)
for step in range(5):
    heartbeat(step=step)
    if rank == 0 and step == 4:
        there.touch()
    if round_ == 0 and rank == 1 and step == 3:
        wait_for_ever()
while round_ == 0:
    heartbeat(step=4)
    time.sleep(0.05)
"""
)


def line_of(text, mark):
    return next(number for number, line in enumerate(text.splitlines(), 1) if mark in line)


def hung(agent):
    """The incident, which is about a hang."""
    incident = agent.incident()
    assert incident["failure_class"] == "hang"
    return incident


def test_rank_that_stops_beating_is_named_with_its_line_and_started_again(elastic, script, tmp_path):
    path = script(STUCK)
    agent = elastic(
        "--nproc-per-node", "2", "--hang-timeout", "2", "--max-restarts", "1", "--run-dir", tmp_path / "run", path
    )
    assert agent.wait(60) == 0, agent.err
    place = rf"in train\.py:{line_of(STUCK, '# here')}"
    folder = tmp_path / "run" / "hang" / "round_0_1"
    told = rf"rank 1 has not reached step 4 \(at 3 for 1(?:\.\d+)? s, {place}\); the others have; stacks: {folder}"
    assert len(re.findall(f"elastic: {told}", agent.err)) == 1, agent.err
    assert re.search(rf"rank 1 failed: .* \(at 3 for 2[.\d]* s, {place}\); restart 1 of 1 now", agent.err), agent.err
    stacks = (folder / "rank_1.txt").read_text()
    assert len(re.findall("in wait_for_ever", stacks)) == 2  # at half the limit, and at the limit
    assert "rank_0.txt" in os.listdir(folder)
    assert agent.survivors() == []


def test_block_and_incident_of_a_hang_tell_where_each_rank_was(elastic, script):
    path = script(STUCK)
    agent = elastic("--nproc-per-node", "2", "--hang-timeout", "1", path)
    assert agent.wait(60) == 1
    incident = hung(agent)
    assert incident["first"]["exit"]["global_rank"] == 1
    assert incident["first"]["origin"] == "intrinsic"
    assert incident["first"]["error"]["source"] == "faulthandler"
    assert incident["first"]["error"]["frames"][-1][1] == line_of(STUCK, "# here")
    assert [worker["exit"]["global_rank"] for worker in incident["stopped"]] == [0]
    ranks = incident["hang"]["ranks"]
    assert [(each["global_rank"], each["blamed"], each["step"]) for each in ranks] == [(1, True, 3), (0, False, 4)]
    assert all((Path(incident["hang"]["stacks"]) / each["stacks"]).read_text() for each in ranks)
    assert incident["phases"]["detect_s"] >= 1
    kept(incident["phases"]["detect_s"], 2)
    block = agent.err[agent.err.index("── run") :]
    assert "hang: rank 1 has not reached step 4" in block
    assert f"train.py:{line_of(STUCK, '# here')} in wait_for_ever" in block
    assert f"Stacks: {incident['hang']['stacks']}" in block
    assert len(block.splitlines()) <= 25


SECTION = (
    BEATS
    + """
heartbeat(step=1)
with section("checkpoint", limit_s=float(sys.argv[1])):
    time.sleep(float(sys.argv[2]))
"""
)


def test_open_section_protects_every_rank(elastic, script):
    timeout_s = patience(1)
    other = f"""if rank == 1:
    while not pathlib.Path("opened").exists():
        time.sleep(0.01)
    heartbeat(step=1)
    time.sleep({3 * timeout_s})
    pathlib.Path("closing").touch()
    sys.exit()
"""
    text = SECTION.replace("heartbeat(step=1)\n", other + "heartbeat(step=1)\n", 1)
    held = """    pathlib.Path("opened").touch()
    while not pathlib.Path("closing").exists():
        time.sleep(0.01)
"""
    text = text.replace("    time.sleep(float(sys.argv[2]))\n", held)
    agent = elastic("--nproc-per-node", "2", "--hang-timeout", str(timeout_s), script(text), str(30 * timeout_s))
    assert agent.wait(60) == 0, agent.err


def test_limit_of_a_section_ends_its_protection(elastic, script):
    agent = elastic("--hang-timeout", "1", script(SECTION), "2", "60")
    assert agent.wait(60) == 1
    assert "no heartbeat for 2" in agent.err
    assert "section 'checkpoint' is over its limit" in hung(agent)["summary"]


NEVER = BEATS + "print('begun', flush=True)\ntime.sleep(float(sys.argv[1]))\n"


def test_worker_that_will_beat_is_not_judged_before_its_first_beat(elastic, script):
    assert elastic("--hang-timeout", "0.5", script(NEVER), "3").wait(60) == 0


def test_startup_timeout_ends_the_wait_for_the_first_beat(elastic, script):
    limit_s = patience(1.5)  # in which the script begins, on a busy machine too
    agent = elastic("--startup-timeout", f"{limit_s:g}", script(NEVER), str(60 + limit_s))
    assert agent.wait(60) == 1
    line = r"rank 0: no first heartbeat (\d+(?:\.\d+)?) s after the start, in train\.py:"
    told = re.search(line, hung(agent)["summary"])
    assert float(told[1]) >= limit_s - 0.1
    kept(float(told[1]), limit_s + 0.5)


# --- scripts that import nothing of ours

PLAIN = """
import os, sys, time
rank = int(os.environ["RANK"])
for step in range(int(sys.argv[1])):
    if rank == 0:
        print("step", step, flush=True)
    time.sleep(0.2)
time.sleep(float(sys.argv[2]))
"""


def test_script_without_heartbeats_is_judged_by_its_output_where_one_rank_prints_for_all(elastic, script):
    agent = elastic("--nproc-per-node", "2", "--hang-timeout", "2", script(PLAIN), "12", "60")
    assert agent.wait(60) == 1
    assert re.search(r"ranks 0, 1: nothing written or read for 2", hung(agent)["summary"])
    assert "step 11" in agent.out


def test_program_without_an_interpreter_of_ours_is_judged_by_its_log(elastic, script):
    program = script("#!/bin/sh\necho begun\nexec sleep 60\n", "job.sh")
    program.chmod(0o755)
    agent = elastic("--hang-timeout", "1", "--no-python", "--redirects", "3", program)
    assert agent.wait(60) == 1
    assert hung(agent)["hang"]["ranks"][0]["stacks"] == ""


def test_what_a_worker_has_started_counts_for_it(elastic, script):
    timeout_s = patience(1.5)  # in which the child begins, on a busy machine too
    lines = round(20 * timeout_s)
    child = f"import time\\nfor n in range({lines}):\\n    print(n, flush=True)\\n    time.sleep(0.1)"
    text = f"import subprocess, sys\nprint('begun', flush=True)\nsubprocess.run([sys.executable, '-c', '''{child}'''])"
    assert elastic("--hang-timeout", f"{timeout_s:g}", script(text)).wait(60) == 0


# --- signals


def test_script_with_its_own_handler_for_our_signal_is_not_sent_it(elastic, script):
    text = """
import signal, sys, time
signal.signal(signal.SIGRTMAX - 5, lambda *_: print("signalled", flush=True))
print("begun", flush=True)
time.sleep(60)
"""
    agent = elastic("--hang-timeout", "1", "--no-worker-hooks", script(text))
    assert agent.wait(60) == 1
    assert "begun" in agent.out
    assert "signalled" not in agent.out
    assert hung(agent)["exit_code"] == 1


def test_handler_that_a_beating_script_puts_in_place_of_ours_is_not_called(elastic, script):
    text = """
import signal, sys, time
signal.signal(signal.SIGRTMAX - 5, lambda *_: print("signalled", flush=True))
from elastic_core.worker import heartbeat
heartbeat()
print("begun", flush=True)
time.sleep(60)
"""
    agent = elastic("--hang-timeout", "1", script(text))
    assert agent.wait(60) == 1
    assert "begun" in agent.out
    assert "signalled" not in agent.out


def test_worker_that_has_failed_and_does_not_end_is_told_with_its_exception(elastic, script):
    """As where a process group waits for its peers while the interpreter shuts down."""
    text = "import atexit\n" + BEATS + "atexit.register(time.sleep, 60)\nheartbeat(step=3)\nraise ValueError('boom')\n"
    agent = elastic("--hang-timeout", "1", "--shutdown-timeout", "2", script(text))
    assert agent.wait(60) == 1
    incident = agent.incident()
    assert (incident["failure_class"], incident["summary"]) == ("user exception", "ValueError: boom")
    assert (incident["exit_code"], incident["hang"]) == (1, None)
    assert "ValueError: boom" in agent.err[agent.err.index("── run") :]
    assert agent.survivors() == []


BEATING = (
    BEATS
    + """
heartbeat(step=5)
print(os.getpid(), flush=True)
while True:
    heartbeat(step=5)
    time.sleep(0.05)
"""
)


def beating(agent):
    """The process of the only worker, which has sent a heartbeat: before the first one it is not judged."""
    return int(wait_for(lambda: agent.out.endswith("\n") and agent.out))


def test_stopped_worker_is_told_as_such_and_ended(elastic, script):
    agent = elastic("--hang-timeout", "1.5", script(BEATING))
    pid = beating(agent)
    os.kill(pid, signal.SIGSTOP)
    assert agent.wait(60) == 1
    assert "it is stopped by a signal" in hung(agent)["summary"]
    assert agent.survivors() == []


def test_time_in_which_the_agent_is_stopped_does_not_count(elastic, script):
    text = BEATS + "heartbeat()\nprint('begun', flush=True)\ntime.sleep(4.5)\nheartbeat()\ntime.sleep(0.5)\n"
    agent = elastic("--hang-timeout", "3", script(text))
    wait_for(lambda: "begun" in agent.out)
    agent.signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        agent.process.wait(3.5)
    agent.signal(signal.SIGCONT)
    assert agent.wait(60) == 0, agent.err


# --- what is kept out of the way


def test_without_the_hook_workers_get_no_memory_and_beats_do_nothing(elastic, script):
    text = BEATS + "heartbeat(step=1)\nwith section('x', limit_s=1): pass\nprint(os.environ.get('TRAINING_BEAT_FILE'))"
    agent = elastic("-p", "no:watch", script(text))
    assert agent.wait(60) == 0
    assert agent.out == "None\n"


def test_without_a_limit_the_step_is_the_progress_of_a_failure(elastic, script):
    agent = elastic(script(BEATS + "heartbeat(step=7)\nsys.exit(3)"))
    assert agent.wait(60) == 3
    assert agent.incident()["progress"] == 7


def test_debugged_rank_has_all_the_time_in_the_world(elastic, script):
    agent = elastic("--debug-rank", "0", "--hang-timeout", "0.5", script(NEVER), "2")
    assert agent.wait(60) == 0
    assert "--hang-timeout '0.5' has no effect: --debug-rank" in agent.err


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_standby_worker_beats_although_it_imported_the_module_before(elastic, script, start):
    text = BEATS + (
        "from elastic_watch import beats\n"
        "heartbeat(step=1)\n"
        "print(os.environ['ELASTIC_ROUND'], beats.attached(), flush=True)\n"
        "time.sleep(60 if round_ else 1)\n"
        "sys.exit(3)\n"
    )
    options = ["--standby", "--standby-start", start, "--standby-imports", "elastic_watch.beats", "--max-restarts", "1"]
    agent = elastic(*options, "--hang-timeout", "2", "--restart-backoff", "0", script(text))
    assert agent.wait(60) == 1
    assert agent.out.splitlines() == ["0 True", "1 True"], agent.err
    assert "not forked" not in agent.err
    assert hung(agent)["round_index"] == 1


def test_py_spy_is_asked_where_the_interpreter_can_not_be(elastic, script, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    spy = tools / "py-spy"
    spy.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "print('Process', sys.argv[-1])\nprint('Thread 1 (idle): \"MainThread\"')\nprint('    spin (/u/train.py:7)')\n"
    )
    spy.chmod(0o755)
    agent = elastic(
        "--hang-timeout", "1", "--no-worker-hooks", script("print('begun', flush=True)\nimport time\ntime.sleep(60)"),
        env={"PATH": f"{tools}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert agent.wait(60) == 1
    incident = hung(agent)
    assert incident["first"]["error"]["source"] == "py-spy"
    assert "in train.py:7" in incident["summary"]


# --- uninterruptible sleep

FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def freeze():
    """Put a process into uninterruptible sleep, out of which not even SIGKILL gets it, until the test is over."""
    if not os.access(FREEZER / "cgroup.procs", os.W_OK):
        lacks("a freezer cgroup of our own")
    folder = FREEZER / f"elastic-test-{os.getpid()}"
    folder.mkdir()

    def into(pid):
        (folder / "cgroup.procs").write_text(str(pid))
        (folder / "freezer.state").write_text("FROZEN")
        wait_for(lambda: (folder / "freezer.state").read_text() == "FROZEN\n")

    yield into
    (folder / "freezer.state").write_text("THAWED")
    for pid in (folder / "cgroup.procs").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    wait_for(lambda: (folder / "cgroup.procs").read_text() == "")
    folder.rmdir()


def test_worker_in_uninterruptible_sleep_is_told_and_not_waited_for_and_the_run_fails(elastic, script, freeze):
    agent = elastic("--hang-timeout", "1", "--shutdown-timeout", "0.3", "--max-restarts", "0", script(BEATING))
    pid = beating(agent)
    freeze(pid)
    assert agent.wait(40) == 1
    assert "it is in uninterruptible sleep" in agent.err
    assert f"(pid {pid}) does not end after SIGKILL" in agent.err
    incident = hung(agent)
    assert incident["hang"]["ranks"][0]["state"] == "D"
    assert incident["first"]["exit"]["code"] == -9
