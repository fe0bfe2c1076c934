"""Workers that survive a round run on in the next: real agents, and workers that speak the protocol without torch."""

import os
import signal
import sys
from pathlib import Path

import pytest

from patience import patience
from support import wait_for
from warm_kit import COUNTS, WORKER, Library, Run


@pytest.fixture
def run(elastic, tmp_path):
    folders = iter(range(100))

    def run(*words, count=3, options=("--max-restarts", "3"), python="", **more):
        folder = tmp_path / f"work{next(folders)}"
        folder.mkdir()
        own = () if "--nproc-per-node" in options else ("--nproc-per-node", str(count))
        return Run(elastic(*own, *options, WORKER, *words, cwd=folder, **more), folder)

    return run


@pytest.mark.parametrize("how", ["SIGKILL", "exception"])
def test_survivors_run_on_and_the_dead_start_anew(run, how, tmp_path):
    logs = tmp_path / "logs"
    run = run(options=("--max-restarts", "3", "--log-dir", str(logs), "--redirects", "3"))
    first = run.until_round(0, 3)
    run.kill(first[1]) if how == "SIGKILL" else run.fail(1)
    second = run.until_round(1, 3)
    assert (second[0], second[2]) == (first[0], first[2])
    assert second[1] != first[1]
    run.kill(second[0])
    third = run.until_round(2, 3)
    assert third[0] != second[0]
    assert (third[1], third[2]) == (second[1], second[2]), "one that started in the round before is kept as well"
    run.finish()
    err = run.ends()
    assert "can't be kept" not in err
    # Each round has its own files, whether or not a worker was kept.
    for index in range(3):
        for rank in range(3):
            (path,) = logs.glob(f"*/attempt_{index}/{rank}/stderr.log")
            assert path.read_text().splitlines()[0] == f"stderr of round {index}"
    assert "rank 1 failed" in err


def test_streams_through_the_agent_follow_the_worker(run):
    run = run(options=("--max-restarts", "3", "--tee", "3"))
    first = run.until_round(0, 3)
    run.kill(first[1])
    second = run.until_round(1, 3)
    assert second[0] == first[0]
    run.finish()
    run.ends()
    lines = [line for line in run.agent.out.splitlines() if '"round": 1' in line]
    assert len(lines) == 3, run.agent.out
    assert run.agent.err.count("stderr of round 1") == 3


def test_the_first_cause_is_the_dead_worker_where_no_round_follows(run):
    run = run(
        options=(
            "--max-restarts",
            "0",
        )
    )
    run.until_round(0, 3)
    run.fail(1)
    err = run.ends(1)
    assert "boom" in err
    assert not run.noted("asked", 0), "no round follows"


def test_a_worker_that_hangs_goes_down_the_ladder_in_bounded_time(run):
    limits = ("--warm-timeout", f"{patience(1):g}", "--shutdown-timeout", f"{patience(20):g}")
    run = run("0:hang", options=("--max-restarts", "3", *limits))
    first = run.until_round(0, 3)
    run.kill(first[1])
    second = run.until_round(1, 3)
    assert second[2] == first[2]
    assert second[0] != first[0]
    run.finish()
    assert "local rank 0 can't be kept, and starts anew: it has not left in time" in run.ends()


def test_one_that_is_stopped_by_a_signal_is_not_waited_for(run):
    run = run(options=("--max-restarts", "3", "--warm-timeout", "300", "--shutdown-timeout", "600"))
    first = run.until_round(0, 3)
    run.kill(first[0], signal.SIGSTOP)
    stat = Path(f"/proc/{first[0]}/stat")
    wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="the stop")
    run.kill(first[1])
    second = run.until_round(1, 3)
    assert second[0] != first[0]
    assert second[2] == first[2]
    run.finish()
    assert "local rank 0 can't be kept, and starts anew: it is stopped by a signal" in run.ends()


def test_one_that_ignores_all_is_killed_within_the_grace_period(run):
    run = run("0:deaf", options=("--max-restarts", "3", "--warm-timeout", "600", "--shutdown-timeout", "2"))
    first = run.until_round(0, 3)
    run.kill(first[1])
    assert run.until_round(1, 3)[0] != first[0]
    run.finish()
    run.ends()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("stay", "thread 'loader' still runs"),
        ("garbage", "its connection has ended"),
        ("die", "its connection has ended"),
        ("die-kept", "it has ended"),
        ("no-step", "it has not completed a step"),
    ],
)
def test_one_that_can_not_be_kept_starts_anew_with_a_line(run, what, reason):
    later = ["2:after-0"] if what == "die-kept" else []  # so that it ends before there is a place for it
    run = run(f"0:{what}", *later)
    first = run.until_round(0, 3)
    run.kill(first[1])
    second = run.until_round(1, 3)
    assert second[0] != first[0]
    assert second[2] == first[2]
    run.finish()
    err = run.ends()
    assert f"worker with local rank 0 can't be kept, and starts anew: {reason}" in err
    assert "rank 1 failed: killed by SIGKILL" in err


def test_one_that_does_not_take_its_place_is_killed_and_costs_a_restart(run):
    run = run("0:hang-kept", options=("--max-restarts", "3", "--warm-timeout", f"{patience(1):g}"))
    first = run.until_round(0, 3)
    run.kill(first[1])
    third = run.until_round(2, 3)
    assert third[0] != first[0]
    run.finish()
    assert "it has not taken its place in time" in run.ends()


def test_two_failures_at_once(run):
    run = run(count=4)
    first = run.until_round(0, 4)
    run.agent.signal(signal.SIGSTOP)  # so that it sees both together
    run.kill(first[1])
    run.kill(first[3])
    run.agent.signal(signal.SIGCONT)
    second = run.until_round(1, 4)
    assert (second[0], second[2]) == (first[0], first[2])
    assert not {second[1], second[3]} & set(first.values())
    run.finish()
    run.ends()


def test_no_process_is_kept_without_the_option(run):
    cold = run(options=("--max-restarts", "1", "--warm-timeout", "0"))
    first = cold.until_round(0, 3)
    cold.kill(first[1])
    assert not set(cold.until_round(1, 3).values()) & set(first.values())
    cold.finish()
    assert "can't be kept" not in cold.ends()


# --- the end of the run while workers are kept or leave


def test_the_guard_ends_workers_that_leave_or_are_kept_if_the_agent_dies(run):
    run = run("0:hang", options=("--max-restarts", "3", "--warm-timeout", "300", "--shutdown-timeout", "600"))
    first = run.until_round(0, 3)
    run.kill(first[1])
    run.until("asked", 0)
    run.until("left", 2)
    os.kill(run.agent.pid, signal.SIGKILL)
    run.agent.wait()
    wait_for(lambda: not run.agent.survivors(), what="the end of all processes")


def until_kept(run):
    """Have two workers kept without a place: in the long delay before the second restart. Return their pids."""
    first = run.until_round(0, 3)
    run.kill(first[1])
    second = run.until_round(1, 3)
    run.kill(second[1])

    run.until_recorded(round_index=1, kept_count=2)  # after the stop
    return first[0], first[2]


LONG = ("--max-restarts", "3", "--restart-backoff", "600")


def test_kept_workers_end_with_their_exit_handlers_when_the_agent_is_interrupted(run):
    run = run(options=LONG)
    pids = until_kept(run)
    fields = run.agent.incident()["hooks"]["warm"]
    assert fields == {"kept_workers": 2, "not_kept_workers": 0, "not_kept_reason": None}, "of the start of its round"
    run.agent.signal(signal.SIGINT)
    run.ends(130)
    assert tuple(run.noted("exited", rank)[0][0] for rank in (0, 2)) == pids


def test_one_that_does_not_end_is_killed(run):
    run = run("deaf-end", options=LONG)
    until_kept(run)
    run.agent.signal(signal.SIGTERM)
    run.ends(143)
    assert run.noted("exited", 0) == []


def test_an_interrupt_while_workers_leave_stops_them_as_any(run):
    run = run("0:hang", options=("--max-restarts", "3", "--warm-timeout", "300", "--shutdown-timeout", "600"))
    first = run.until_round(0, 3)
    run.kill(first[1])
    run.until("asked", 0)
    run.until("left", 2)
    run.agent.signal(signal.SIGINT)
    run.ends(130)


def test_a_second_signal_kills_those_that_leave(run):
    run = run("0:deaf", options=("--max-restarts", "3", "--warm-timeout", "300", "--shutdown-timeout", "600"))
    first = run.until_round(0, 3)
    run.kill(first[1])
    run.until("asked", 0)
    run.agent.signal(signal.SIGINT)
    wait_for(lambda: "SIGINT" in run.agent.err, what=run.agent.err)
    wait_for(lambda: run.agent.process.poll() is not None or run.agent.signal(signal.SIGINT), what="the end")
    run.ends(130)


def test_with_standby_the_dead_are_forked_and_the_others_kept(run):
    run = run(options=("--max-restarts", "3", "--standby", "--standby-imports", "json", "--timings"))
    first = run.until_round(0, 3)
    run.kill(first[1])
    second = run.until_round(1, 3)
    assert (second[0], second[2]) == (first[0], first[2])
    run.finish()
    err = run.ends()
    assert "spawn (3 forked)" in err
    assert "spawn (2 of 3 kept, 1 forked)" in err
    assert "is not forked" not in err


def test_the_policy_and_the_report_of_a_failure_count_those_that_run_on(run, tmp_path):
    (tmp_path / "counts.py").write_text(COUNTS)
    options = ("--max-restarts", "3", "--policy", "counts:Counts")
    run = run(options=options, env={"PYTHONPATH": str(tmp_path)})
    first = run.until_round(0, 3)
    run.kill(first[1])
    run.until_round(1, 3)
    incident = run.until_recorded(round_index=0, kept_count=2)
    assert (incident["stopped"], incident["secondary"]) == ([], [])
    run.finish()
    assert "2 alive, None kept" in run.ends()


def test_nothing_grows_in_the_agent_over_many_rounds(run):
    run = run(count=2, options=("--max-restarts", "60", "--restart-backoff", "0", "--tee", "3"))
    first = pids = run.until_round(0, 2)

    def has_begun():  # what hooks begin a moment after the workers, with threads and a socket
        statuses = run.agent.runtime.rglob("status.json")
        return any(run.agent.runtime.rglob("ledger.jsonl")) and any(
            "agent.sock" in each.read_text() for each in statuses
        )

    wait_for(has_begun, what="the ledger and the control plane")

    def size():
        return len(os.listdir(f"/proc/{run.agent.pid}/fd")), len(os.listdir(f"/proc/{run.agent.pid}/task"))

    sizes = []
    for index in range(1, 41):
        run.kill(pids[1])
        pids = run.until_round(index, 2)
        assert pids[0] == first[0]
        sizes.append(size())
    # Between two rounds, descriptors of both are open for a moment: what has grown stays.
    most = max(sizes[2:12])
    wait_for(lambda: size() <= most, what=f"no more descriptors and threads than {most}: {sizes}")
    run.finish()
    run.ends()


CALL = """
import os, sys, threading
from elastic_core.launcher import launch
try:
    launch(sys.argv[1], nproc_per_node=3, max_restarts=1, shutdown_timeout=20)
except Exception as error:
    print("failed", type(error).__name__)
children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
for thread in [each for each in threading.enumerate() if each is not threading.main_thread()]:
    thread.join(20)  # those that were told to end may still be at it
print("children", children, "threads", threading.active_count())
"""


@pytest.mark.parametrize("how", ["succeeds", "fails"])
def test_a_library_call_keeps_workers_too_and_leaves_none(tmp_path, how):
    (tmp_path / "call.py").write_text(CALL)
    agent = Library([sys.executable, "call.py", str(WORKER)], tmp_path)
    run = Run(agent, tmp_path)
    try:
        first = run.until_round(0, 3)
        run.kill(first[1])
        second = run.until_round(1, 3)
        assert (second[0], second[2]) == (first[0], first[2])
        run.finish() if how == "succeeds" else run.fail(0)
        assert run.ends()
        assert "children [] threads 1" in agent.out
        assert ("failed" in agent.out) == (how == "fails")
    finally:
        agent.close()
