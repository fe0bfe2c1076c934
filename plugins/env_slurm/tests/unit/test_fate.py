"""What becomes of a job that was told to stop, by what Slurm 22.05 says of it."""

import pytest

from elastic_env_slurm.fate import End, fate_of, read_fields

JOB = """JobId=4711 JobName=train.sbatch
   UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue={may} Restarts={restarts} BatchFlag={batch} Reboot=0 ExitCode=0:0
   RunTime=00:00:16 TimeLimit={limit} TimeMin=N/A
   StartTime=2026-11-23T07:15:36 EndTime=Unknown Deadline=N/A
   PreemptEligibleTime=2026-11-23T07:15:36 PreemptTime={preempted}
   Partition=low AllocNode:Sid=login:7029
   Comment=state JobState=FAILED
"""
PARTITION = "PartitionName=low\n   AllowGroups=ALL\n   GraceTime=8 Hidden=NO\n   PreemptMode={mode}\n"
CONFIG = "Configuration of 2026\nFederationParameters    =\nKillWait      = 5 sec\nPreemptMode = GANG,REQUEUE\n"
PREEMPTED = {"preempted": "2026-11-23T07:20:47"}
LIMIT = {"state": "COMPLETING", "reason": "TimeLimit", "limit": "01:00:00"}


def fate(requeue="preempted", *, mode="REQUEUE", attempt=0, warned=False, config=CONFIG, **job):
    values = {"state": "RUNNING", "reason": "None", "may": 1, "restarts": 0, "batch": 1, "limit": "UNLIMITED"}
    text = JOB.format(**values | {"preempted": "None"} | job)
    described = (read_fields(text), read_fields(PARTITION.format(mode=mode)), read_fields(config))
    return fate_of(*described, requeue=requeue, attempt=attempt, warned=warned)


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
        ("auto", {"warned": True}, End.AS_IT_IS, ""),  # somebody's signal: there is no limit
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


def test_an_agent_stays_for_as_long_as_slurm_needs():
    assert fate(**PREEMPTED).stay_s == 8 + 5 + 60
    assert fate(**PREEMPTED, config="PreemptMode = OFF\n").stay_s == 8 + 30 + 60


def test_what_slurm_says_is_read_by_name():
    fields = read_fields(CONFIG)
    assert (fields["KillWait"], fields["FederationParameters"], fields["PreemptMode"]) == ("5", "", "GANG,REQUEUE")
    assert read_fields(JOB)["JobState"] == "{state}"  # the first of a name: what a user has written comes later
