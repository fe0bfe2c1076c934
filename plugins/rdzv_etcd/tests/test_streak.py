"""Who may say that a member is gone."""

import pytest

from elastic_rdzv_etcd.streak import Streak

TTL_S = 3.0


def heard_at(*times_s):
    streak = Streak()
    for time_s in times_s:
        streak.answered(sent_s=time_s - 0.1, now_s=time_s, ttl_s=TTL_S)
    return streak


@pytest.mark.parametrize(
    ("answers_s", "now_s", "may"),
    [
        ((), 100, False),  # a newcomer
        ((10,), 10.5, False),  # one answer is no history
        ((10, 11, 12), 12, False),
        ((10, 11, 12, 13), 13, True),  # one lease without a gap
        ((10, 11, 12, 13), 15.5, False),  # silent since: it may be the server
        ((10, 11, 12, 13, 17), 17, False),  # a gap
        ((10, 11, 12, 13, 17, 18, 19), 19.5, False),
        ((10, 11, 12, 13, 17, 18, 19, 20), 20, True),  # one lease after it
        ((10, 11, 12, 13, 8), 8, False),  # a clock that went back
    ],
)
def test_who_was_answered_for_a_lease_without_a_gap_may_judge(answers_s, now_s, may):
    assert heard_at(*answers_s).may_judge(now_s=now_s, ttl_s=TTL_S) is may


def test_a_slow_answer_counts_from_when_it_was_asked_for():
    streak = heard_at(10, 11, 12)
    streak.answered(sent_s=12.1, now_s=13, ttl_s=TTL_S)
    streak.answered(sent_s=13.1, now_s=14.2, ttl_s=TTL_S)  # 2.1 s after the last request went out
    assert not streak.may_judge(now_s=14.2, ttl_s=TTL_S)
