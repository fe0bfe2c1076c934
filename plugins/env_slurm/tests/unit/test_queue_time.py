"""Since when a job was queued, by Slurm's data."""

import pytest

from elastic_env_slurm.queue_time import queued_since_s

JOB = {
    "SubmitTime": "2026-11-26T10:00:00",
    "EligibleTime": "2026-11-26T11:00:00",
    "StartTime": "2026-11-26T12:30:00",
}


@pytest.mark.parametrize(
    ("changed", "waited_s"),
    [
        ({}, 5400),
        ({"EligibleTime": "Unknown"}, 9000),
        ({"EligibleTime": "2026-11-26T12:30:01"}, 0),  # a job that the scheduler started at once
    ],
)
def test_the_time_between_eligible_and_start_is_queued(changed, waited_s):
    assert queued_since_s(JOB | changed, "1795696200") == 1795696200 - waited_s


@pytest.mark.parametrize(
    ("job", "started"),
    [
        (JOB, ""),
        (JOB, "soon"),
        ({}, "1795696200"),
        (JOB | {"StartTime": "Unknown"}, "1795696200"),
        (JOB | {"EligibleTime": "Unknown", "SubmitTime": "None"}, "1795696200"),
        (JOB | {"StartTime": "2026-11-26T12:30:00+01:00"}, "1795696200"),
    ],
)
def test_without_these_fields_it_is_not_known(job, started):
    assert queued_since_s(job, started) == 0
