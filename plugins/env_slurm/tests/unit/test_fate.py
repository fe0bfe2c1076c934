"""What becomes of a job that was told to stop, by what Slurm 22.05 says of it."""

import pytest

from elastic_env_slurm.fate import End, fate_of, minutes_of, read_fields

JOB = """JobId=4711 JobName=train.sbatch
   UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue={may} Restarts={restarts} BatchFlag={batch} Reboot=0 ExitCode=0:0
   RunTime={ran} TimeLimit={limit} TimeMin=N/A
   StartTime=2026-11-23T07:15:36 EndTime=Unknown Deadline=N/A
   PreemptEligibleTime=2026-11-23T07:15:36 PreemptTime={preempted}
   Partition=low AllocNode:Sid=login:7029
   Comment=state JobState=FAILED
"""
PARTITION = "PartitionName=low\n   AllowGroups=ALL\n   GraceTime=8 Hidden=NO\n   PreemptMode={mode}\n"
CONFIG = "Configuration of 2026\nFederationParameters    =\nKillWait      = 5 sec\nPreemptMode = GANG,REQUEUE\n"
PREEMPTED = {"preempted": "2026-11-23T07:20:47"}
LIMIT = {"state": "COMPLETING", "reason": "TimeLimit", "limit": "01:00:00"}


def fate(requeue="preempted", *, mode="REQUEUE", attempt=0, warned=False, config=CONFIG, bound=None, **job):
    values = {"ran": "00:00:16", "state": "RUNNING", "reason": "None", "may": 1, "restarts": 0, "batch": 1}
    text = JOB.format(**values | {"limit": "UNLIMITED", "preempted": "None"} | job)
    described = (read_fields(text), read_fields(PARTITION.format(mode=mode)), read_fields(config))
    return fate_of(*described, requeue=requeue, attempt=attempt, warned=warned, limit=bound)


@pytest.mark.parametrize(
    ("requeue", "given", "end", "line"),
    [
        ("preempted", PREEMPTED, End.STAY, "was preempted: this agent stays until Slurm ends it and begins it again"),
        ("auto", PREEMPTED | {"state": "SIGNALING"}, End.STAY, "was preempted: this agent stays until"),
        ("auto", PREEMPTED, End.STAY, "was preempted: this agent stays until Slurm ends it and begins it again"),
        ("preempted", PREEMPTED | {"mode": "CANCEL"}, End.AS_IT_IS, "was preempted, and is not begun again. Try: --r"),
        ("auto", PREEMPTED | {"mode": "CANCEL"}, End.ASK_LAST, "was preempted: Slurm is asked to begin it again"),
        ("auto", PREEMPTED | {"may": 0}, End.AS_IT_IS, "was preempted, and Slurm may not begin it again. Try: sb"),
        ("off", PREEMPTED, End.AS_IT_IS, ""),
        ("auto", LIMIT, End.ASK_NOW, "is out of time: Slurm is asked to begin it again"),
        ("preempted", LIMIT, End.AS_IT_IS, "is out of time, and is not begun again. Try: --requeue auto"),
        ("auto", {"warned": True, "limit": "01:00:00"}, End.ASK_LAST, "is soon out of time: Slurm is asked to begin"),
        ("auto", {"warned": True}, End.AS_IT_IS, "got the notice of --preemption-signal, but Slurm neither"),
        ("auto", {"warned": True}, End.AS_IT_IS, "it is not begun again. Try: scontrol requeue 4711"),
        ("auto", {"warned": True, "limit": "365-00:00:00"}, End.AS_IT_IS, "it is not begun again. Try: scontrol"),
        ("off", {"warned": True}, End.AS_IT_IS, ""),
        ("auto", {"limit": "01:00:00"}, End.AS_IT_IS, ""),  # the step alone
        ("auto", {"state": "COMPLETING"}, End.AS_IT_IS, "was cancelled"),
        ("auto", {"state": "CANCELLED"}, End.AS_IT_IS, "was cancelled"),
        ("auto", {"state": "COMPLETING", "restarts": 3, "attempt": 2}, End.AS_IT_IS, "Slurm begins job 4711 again"),
        ("auto", PREEMPTED | {"restarts": 2, "attempt": 2}, End.STAY, "was preempted: "),
        ("auto", LIMIT | {"batch": 0}, End.AS_IT_IS, ""),
    ],
)
def test_what_becomes_of_a_job(requeue, given, end, line):
    found = fate(requeue, **given)
    assert found.end is end
    assert (line in found.line) if line else not found.line


@pytest.mark.parametrize("given", [LIMIT, PREEMPTED | {"mode": "CANCEL"}, {"warned": True, "limit": "01:00:00"}])
def test_a_limit_bounds_how_often_a_job_is_begun_again(given):
    found = [fate("auto", **given, attempt=2, restarts=2, bound=bound) for bound in (None, 3, 2, 1, 0)]
    assert [each.end is End.AS_IT_IS for each in found] == [False, False, True, True, True]
    words = "and is not begun again: it has begun again 2 times already. Try: a greater --requeue-limit"
    assert found[2].line.endswith(words)
    assert fate("auto", **PREEMPTED, attempt=2, restarts=2, bound=1).end is End.STAY  # that is Slurm's own


@pytest.mark.parametrize(
    ("given", "stops"),
    [
        (LIMIT, True),
        (LIMIT | {"bound": 3}, True),
        (PREEMPTED | {"mode": "CANCEL"}, False),  # the attempt had not its time
        ({"warned": True, "limit": "1-00:00:00", "ran": "23:58:00"}, True),
        ({"warned": True, "limit": "1-00:00:00", "ran": "00:58:00"}, False),
    ],
)
def test_an_attempt_out_of_time_that_got_nowhere_is_the_last(given, stops):
    found = fate("auto", **given)
    assert bool(found.if_stuck) == stops
    if stops:
        words = (
            "is not begun again: no worker made a step or saved in this attempt, as far as its agent can observe. Try: "
        )
        assert words + "should_stop(step=n) or heartbeat(step=n) in the script" in found.if_stuck
        assert ("or --requeue-limit N" in found.if_stuck) == ("bound" not in given)
    assert found.within_s == (5 if given.get("state") == "COMPLETING" else None)


@pytest.mark.parametrize(
    ("text", "minutes"), [("00:02:30", 2.5), ("1-02:00:00", 26 * 60), ("UNLIMITED", None), ("", None), ("90", None)]
)
def test_times_of_slurm_are_read(text, minutes):
    assert minutes_of(text) == minutes


def test_an_agent_stays_for_as_long_as_slurm_needs():
    assert fate(**PREEMPTED).stay_s == 8 + 5 + 60
    assert fate(**PREEMPTED, config="PreemptMode = OFF\n").stay_s == 8 + 30 + 60


def test_what_slurm_says_is_read_by_name():
    fields = read_fields(CONFIG)
    assert (fields["KillWait"], fields["FederationParameters"], fields["PreemptMode"]) == ("5", "", "GANG,REQUEUE")
    assert read_fields(JOB)["JobState"] == "{state}"  # the first of a name: what a user has written comes later
