"""What counts as progress of an attempt, and which times are compared with Slurm's: tables."""

import pytest

from elastic_core.api import WorkerExit
from elastic_env_slurm.progress import Heartbeat, Progress, Saving, heartbeats_of, saving_of
from elastic_env_slurm.time_limits import line_about_stop, line_about_times


def beats(step, pid=7):
    return {0: Heartbeat(pid=pid, step=step)}


def exits(code):
    return WorkerExit(local_rank=0, global_rank=0, pid=7, code=code, at_s=1.0, at_ns=1, runtime_s=1.0)


@pytest.mark.parametrize(
    ("taken", "made", "observed"),
    [
        ([], False, False),
        ([beats(None)], False, False),
        ([beats(40), beats(40)], False, True),
        ([beats(40), beats(41)], True, True),
        ([beats(40), beats(41, pid=8)], False, True),  # another process, which begins there
        ([Saving(asks=True)], False, False),
        ([Saving(asks=True, steps=0)], False, True),
        ([Saving(asks=True, steps=1)], True, True),
        ([Saving(asks=True, saved=True)], True, False),
        ([(0, False)], True, False),
        ([(143, False)], False, False),  # a failure
        ([(143, True)], True, False),  # a script that catches SIGTERM to save
        ([(-15, True)], False, False),
        ([(-9, True)], False, False),
    ],
)
def test_steps_saves_and_ends_by_itself_are_progress(taken, made, observed):
    progress = Progress()
    for each in taken:
        match each:
            case Saving():
                progress.take_saving(each)
            case dict():
                progress.take_beats(each)
            case code, draining:
                progress.take_exit(exits(code), draining=draining)
    assert (progress.made, progress.observed) == (made, observed)


def test_heartbeats_are_those_of_elastic_watch():
    answer = '{"workers": {"1": {"pid": 7, "age_s": 0.5, "step": 40, "sections": ["save"]}}}'
    assert heartbeats_of(answer) == {1: Heartbeat(pid=7, step=40)}
    assert heartbeats_of('{"workers": 5}') == {}


def test_an_answer_of_another_version_shows_nothing():
    assert saving_of('{"asks": true, "steps": 3, "saved": false, "within_s": 9}').steps == 3
    assert saving_of('{"steps": "three"}') == Saving()
    assert saving_of("busy") == Saving()


PREEMPTS = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
LIMITED = {"TimeLimit": "01:00:00"}
ENDLESS = {"TimeLimit": "UNLIMITED"}
WARN = "Slurm kills what is left 30 s after the time limit (KillWait), and workers may take 60 s to save and stop "


@pytest.mark.parametrize(
    ("job", "more", "given", "line"),
    [
        (ENDLESS, {}, (60, None, False), "--shutdown-timeout is 60 s. Try: --shutdown-timeout 25"),
        (LIMITED, {}, (30, None, False), ""),
        (
            LIMITED,
            {},
            (30, 30, False),
            WARN + "(--save-timeout 30 s, --shutdown-timeout 30 s). Try: elastic slurm submit ",
        ),
        (LIMITED, {}, (30, 30, False), "--warning 2m, or sbatch --signal=USR1@120 with --preemption-signal USR1"),
        (LIMITED, {}, (10, 20, False), ""),
        (LIMITED, {}, (30, 30, True), ""),  # the run saves before the limit
        (ENDLESS, {}, (30, 30, False), ""),
        (ENDLESS, PREEMPTS, (30, 30, False), "30 s after it has preempted a job (GraceTime 0 s, KillWait 30 s), and"),
        (
            ENDLESS,
            PREEMPTS,
            (30, 30, False),
            "Try: --save-timeout 17 --shutdown-timeout 8, or a partition with a longer",
        ),
        (LIMITED, PREEMPTS | {"GraceTime": "20"}, (30, 30, True), "50 s after it has preempted a job (GraceTime 20 s"),
        (LIMITED, PREEMPTS | {"GraceTime": "30"}, (30, 30, True), ""),
        (ENDLESS, PREEMPTS | {"PreemptMode": "OFF"}, (30, 30, False), ""),
    ],
)
def test_a_stop_that_slurm_cuts_short_is_a_line(job, more, given, line):
    shutdown_s, save_s, notice = given
    partition = {name: value for name, value in more.items() if name != "PreemptType"}
    config = {"KillWait": "30", "PreemptMode": "OFF", "PreemptType": more.get("PreemptType", "preempt/none")}
    times = {"shutdown_s": shutdown_s, "save_s": save_s, "notice": notice}
    found = line_about_times(job, partition, config, **times)
    assert (line in found) if line else not found
    assert not line_about_times(job, partition, config | {"KillWait": "?"}, **times)


OVER, RUNNING = {"JobState": "COMPLETING"}, {"JobState": "RUNNING"}
PREEMPTED = RUNNING | {"PreemptTime": "2026-11-26T03:52:22"}


@pytest.mark.parametrize(
    ("job", "grace", "needed_s", "line"),
    [
        (OVER, "0", 60, "Slurm kills what is left 30 s after its signal (KillWait): before the 60 s are over"),
        (OVER, "0", 30, ""),
        (OVER, "600", 60, "Slurm kills what is left 30 s after its signal (KillWait): before the 60 s are over"),
        (PREEMPTED, "10", 60, "Slurm kills what is left 40 s after its signal (GraceTime, KillWait): before the 60 s"),
        (PREEMPTED, "600", 60, ""),
        (RUNNING | {"PreemptTime": "None"}, "0", 60, ""),  # somebody's own SIGTERM
    ],
)
def test_the_stop_itself_names_a_shorter_limit_of_slurm(job, grace, needed_s, line):
    found = line_about_stop(job, {"GraceTime": grace}, {"KillWait": "30"}, needed_s=needed_s)
    assert (found.startswith(line) and bool(found)) == bool(line)
    assert not line_about_stop(job, {"GraceTime": grace}, {}, needed_s=needed_s)
