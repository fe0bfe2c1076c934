"""Timers with real processes: servers as a library, and the agent's."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from elastic_core.compat.elastic import timer
from elastic_torchrun.launcher.api import LaunchConfig, elastic_launch
from elastic_torchrun.processes.child_failed import ChildFailedError
from patience import patience
from support import wait_for
from timer_kit import CLIENT, LATE, ON


def line_of(text, mark):
    return next(number for number, line in enumerate(text.splitlines(), 1) if mark in line)


# --- as a library


def over_time(queue):
    timer.configure(timer.LocalTimerClient(queue))
    with timer.expires(after=0.1):
        threading.Event().wait(60)


def in_time(queue):
    timer.configure(timer.LocalTimerClient(queue))
    with timer.expires(after=60):
        pass


def test_a_queue_server_kills_who_is_late_and_nobody_else():
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    server = timer.LocalTimerServer(queue)
    server.start()
    workers = [context.Process(target=target, args=(queue,)) for target in (over_time, in_time)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(patience(30))
    server.stop()
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL, 0]


def test_a_queue_server_goes_by_requests_and_not_by_whose_pid_it_is_now():
    server = timer.LocalTimerServer(multiprocessing.get_context("spawn").Queue())
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    requests = [timer.TimerRequest(gone.pid, scope, at_s) for scope, at_s in (("a", 1.0), ("b", 2.0), ("c", 9.0))]
    server.register_timers(requests)
    assert server.get_expired_timers(5.0) == {gone.pid: requests[:2]}
    server.register_timers([timer.TimerRequest(gone.pid, "a", -1)])
    assert server.get_expired_timers(5.0) == {gone.pid: requests[1:2]}
    server.clear_timers({gone.pid})
    assert server.get_expired_timers(50.0) == {}


def file_worker(path, *, after_s, signum, until):
    code = f"""
import os, time
from elastic_core.compat.elastic import timer
with timer.expires({after_s}, scope="s", client=timer.FileTimerClient({path!r}, {signum})):
    while not os.path.exists({str(until)!r}):
        time.sleep(0.01)
"""
    return subprocess.Popen([sys.executable, "-c", code])


def test_a_pipe_server_ends_who_is_late_with_its_signal_and_never_itself(tmp_path):
    heard = []
    path = str(tmp_path / "pipe")
    server = timer.FileTimerServer(path, "run", log_event=lambda name, request: heard.append((name, request)))
    server.start()
    # What a client that died has left, and what is none, costs the others nothing.
    with open(path, "w") as file:
        file.write('nonsense\n{"version": 1, "pid": 5')
    over = tmp_path / "over"
    late, told = (file_worker(path, after_s=0.1, signum=signum, until=over) for signum in (15, 0))
    assert late.wait(patience(30)) == -signal.SIGTERM
    wait_for(lambda: len(heard) == 4)
    over.touch()
    assert told.wait(patience(30)) == 0
    server.stop()
    names = [name for name, _ in heard]
    assert (names[0], names[-1]) == ("watchdog started", "watchdog stopped")
    assert sorted(names[1:-1]) == ["kill worker process", "timer expired", "timer expired"]
    assert {request.worker_pid for _, request in heard[1:-1]} == {late.pid, told.pid}
    assert not Path(path).exists()
    assert server.get_last_progress_time() > 0


def test_a_pipe_server_heeds_what_is_there_once(tmp_path):
    heard = []
    path = str(tmp_path / "pipe")
    server = timer.FileTimerServer(path, "run", log_event=lambda name, request: heard.append(name))
    client = timer.FileTimerClient(path, signal=0)
    client.acquire("s", 1.0)
    server.start()
    server.run_once()
    assert heard == ["watchdog started", "timer expired"]
    assert not Path(path).exists()


# --- the agent's


def test_a_late_worker_is_killed_and_a_hang_and_the_run_goes_on(elastic, script, tmp_path):
    path = script(LATE)
    agent = elastic(
        "--nproc-per-node", "2", "--max-restarts", "1", "--run-dir", tmp_path / "run",
        "--event-log-handler", f"jsonl:{tmp_path / 'events.jsonl'}", path,
        env=ON,
    )  # fmt: skip
    assert agent.wait(60) == 0, agent.err
    incident = json.loads((tmp_path / "run/incident.json").read_text())
    first = incident["first"]
    assert (incident["failure_class"], first["exit"]["global_rank"]) == ("hang", 1)
    assert (first["exit"]["code"], first["exit"]["stop_signal"]) == (-9, 9)
    assert "rank 1 is over its time for 'load' by" in incident["summary"]
    assert f"in train.py:{line_of(LATE, '# here')}" in incident["summary"]
    assert incident["hang"]["section"] == "load"
    assert incident["restart_count"] == 0
    assert "load_batch" in (tmp_path / "run/hang/round_0_timer_1/rank_1.txt").read_text()
    assert agent.out.count("round 1") == 2
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    watchdog = [event for event in events if "watchdog_event" in event.get("metadata", {}).get("metadata", "")]
    assert [event["name"] for event in watchdog] == [
        "watchdog started",
        "timer expired",
        "kill worker process",
        "watchdog stopped",
    ]
    assert json.loads(watchdog[1]["metadata"]["metadata"])["scope_id"] == "load"
    assert not (tmp_path / "run/timers").exists()
    assert agent.survivors() == []


def test_a_late_worker_without_restarts_ends_the_run_with_1(elastic, script):
    agent = elastic("--nproc-per-node", "2", script(LATE), env=ON)
    assert agent.wait(60) == 1, agent.err
    assert "hang: rank 1 is over its time for 'load'" in agent.err
    assert "Traceback" in agent.err


STRANGE = (
    CLIENT
    + """
path = os.environ["TORCHELASTIC_TIMER_FILE"]
stranger = int(sys.argv[1])
with open(path, "w") as pipe:
    for _ in range(2):
        pipe.write("nonsense\\n")
        pipe.write("x" * 5000 + "\\n")
        for pid in (stranger, 1, os.getppid()):
            pipe.write(timer.FileTimerRequest(pid, "s", 1.0, 9).to_json() + "\\n")
        pipe.flush()
    with timer.expires(0.1, scope="told", client=timer.FileTimerClient(path, signal=0)):
        while "and goes on" not in open("agent.err").read():  # of its agent, in whose folder it runs
            time.sleep(0.01)
    pipe.write('{"version": 1, "pid"')  # and ends with the pipe open
    pipe.flush()
    print(oct(os.stat(path).st_mode & 0o777), flush=True)
    os._exit(0)
"""
)


def test_what_comes_through_the_pipe_harms_nobody(elastic, script):
    with subprocess.Popen(["sleep", "60"]) as stranger:
        agent = elastic(script(STRANGE), stranger.pid, env=ON)
        assert agent.wait(60) == 0, agent.err
        assert stranger.poll() is None
        stranger.kill()
    assert agent.err.count("is no request") == 1
    assert agent.err.count("bytes; it is left out") == 1
    assert agent.err.count("which is no worker of this agent") == 1
    assert agent.err.count("rank 0 is over its time for 'told', and goes on") == 1
    assert "0o600" in agent.out


def test_a_debugged_run_has_no_limits(elastic, script):
    path = script(CLIENT + "with timer.expires(0.1):\n    time.sleep(1)\nprint('through', flush=True)\n")
    agent = elastic("--debug-rank", "0", path, env=ON)
    assert agent.wait(60) == 0, agent.err
    assert "through" in agent.out


def test_a_late_worker_that_a_rule_ignores_is_ended_and_the_others_go_on(elastic, script, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{name: one less, match: {class: hang}, action: ignore}]")
    path = script(LATE.replace("with timer.expires(30):\n    pass", "time.sleep(2)\nprint('through', flush=True)"))
    agent = elastic("--nproc-per-node", "2", "--policy", rules, path, env=ON)
    assert agent.wait(60) == 0, agent.err
    assert agent.out.count("through") == 1


def test_a_run_within_a_run_has_a_pipe_of_its_own(elastic, script, tmp_path):
    inner = script(LATE, "inner.py")
    outer = script(
        CLIENT
        + f"""
import subprocess
command = [sys.executable, "-m", "elastic_core.run", "--nproc-per-node", "2", {str(inner)!r}]
inner = subprocess.run(command, capture_output=True, text=True)
found = [text in inner.stderr for text in ("another agent reads it", "over its time for 'load'")]
print(inner.returncode, *found, flush=True)
with timer.expires(30):
    pass
""",
        "outer.py",
    )
    agent = elastic(outer, env=ON | {"TORCHELASTIC_TIMER_FILE": str(tmp_path / "own.pipe")})
    assert agent.wait(60) == 0, agent.err
    assert "1 True True" in agent.out
    assert not (tmp_path / "own.pipe").exists()


@pytest.mark.parametrize(
    ("variables", "needle"),
    [
        ({"TORCHELASTIC_ENABLE_FILE_TIMER": "yes"}, "TORCHELASTIC_ENABLE_FILE_TIMER: 'yes'; expected 1 or 0"),
        (ON | {"TORCHELASTIC_TIMER_FILE": __file__}, "is there, and is no pipe"),
        (ON | {"TORCHELASTIC_TIMER_FILE": "/nowhere/pipe"}, "No such file or directory"),
    ],
)
def test_a_pipe_that_cannot_be_is_one_line(elastic, script, variables, needle):
    agent = elastic(script("print('started')"), env=variables)
    assert agent.wait(30) == 2
    assert needle in agent.err
    assert "started" not in agent.out
    assert Path(__file__).stat().st_size > 0


def late_function():
    client = timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"])
    with timer.expires(0.2, scope="f", client=client):
        threading.Event().wait(60)


def test_the_variable_counts_for_library_calls_too(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1, max_restarts=0, rdzv_backend="etcd")
    with pytest.raises(ChildFailedError, match="is over its time for 'f'"):
        elastic_launch(config, late_function)()
    assert "TORCHELASTIC_TIMER_FILE" not in os.environ


# --- torch's, beside ours
