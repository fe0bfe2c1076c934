"""Which agents are of one attempt, and which attempts a report has."""

import pytest

from elastic_report.combining.attempts import Presence, attempts_of, since_last_success


def there(begin_s: float, end_s: float, outcome: str = "", first_round: int | None = 0) -> Presence:
    return Presence(begin_s=begin_s, end_s=end_s, outcome=outcome, first_round=first_round)


@pytest.mark.parametrize(
    ("presences", "groups"),
    [
        pytest.param([], [], id="none"),
        pytest.param([there(0, 10, "failed"), there(10, 20)], [[0], [1]], id="one after the other"),
        pytest.param([there(0, 10), there(2, 12), there(11, 20)], [[0, 1, 2]], id="overlapping"),
        pytest.param([there(20, 30), there(0, 10)], [[1], [0]], id="in any order"),
        pytest.param([there(0, 10), there(12, 30, "", 3)], [[0, 1]], id="killed, and joined a run that went on"),
        pytest.param([there(0, 10, "stopped"), there(12, 30, "", 3)], [[0], [1]], id="ended, and started again"),
    ],
)
def test_agents_that_overlap_are_one_attempt(presences: list[Presence], groups: list[list[int]]) -> None:
    assert attempts_of(presences) == groups


@pytest.mark.parametrize(
    ("outcomes", "kept"),
    [
        (["failed", "failed"], [0, 1]),
        (["succeeded", "failed", "failed"], [1, 2]),
        (["failed", "succeeded"], [0, 1]),
        (["succeeded", "failed", "succeeded"], [1, 2]),
        (["succeeded", "succeeded"], [1]),
        (["", "succeeded", ""], [2]),
    ],
)
def test_a_report_begins_after_the_last_success(outcomes: list[str], kept: list[int]) -> None:
    presences = [there(number * 10, number * 10 + 5, outcome) for number, outcome in enumerate(outcomes)]
    groups = [[number] for number in range(len(outcomes))]
    assert since_last_success(groups, presences) == [[number] for number in kept]


def test_an_attempt_with_a_failed_node_did_not_succeed() -> None:
    presences = [there(0, 5, "succeeded"), there(0, 5, "failed"), there(10, 15, "failed")]
    assert since_last_success([[0, 1], [2]], presences) == [[0, 1], [2]]
