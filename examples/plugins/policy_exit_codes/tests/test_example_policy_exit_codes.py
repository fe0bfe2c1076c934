"""The kit, and tests of this policy's own rules."""

import pytest

from elastic_core.api import ConfigError, FailureClass, PolicySettings, Restart, Stop
from elastic_example_policy_exit_codes import ExitCodes
from elastic_plugin_kit import FailureHandlerConformance, sample_failure


def policy(max_restarts=3, retry=(1, 75)):
    given = {"options": {"cool_down": 30.0}, "lists": {"retry": retry}}
    return ExitCodes(PolicySettings(name="exit-codes", max_restarts=max_restarts, **given))


class TestExitCodes(FailureHandlerConformance):
    @pytest.fixture
    def make_policy(self):
        return policy


@pytest.mark.parametrize(("uptime_s", "delay_s"), [(0.0, 30.0), (10.0, 20.0), (30.0, 0.0), (86400.0, 0.0)])
def test_two_starts_are_a_cool_down_apart(uptime_s, delay_s):
    failure = sample_failure(exit_code=75, uptime_s=uptime_s)
    assert policy().decide(failure, []) == Restart(delay_s=delay_s, rule="retry")


def test_another_code_ends_the_run():
    decision = policy().decide(sample_failure(exit_code=7), [])
    assert decision == Stop(reason="exit code 7 is not one to try again after", rule="retry")


def test_without_a_failed_worker_only_the_budget_counts():
    lost = sample_failure(failure_class=FailureClass.NODE_LOST, global_rank=None, local_rank=None, exit_code=7)
    assert isinstance(policy().decide(lost, []), Restart)


def test_a_failure_that_is_not_retryable_ends_the_run():
    assert isinstance(policy().decide(sample_failure(exit_code=75, retryable=False), []), Stop)


def test_codes_of_elastic_itself_are_refused():
    with pytest.raises(ConfigError, match="retry has 3, which elastic itself returns"):
        policy(retry=(75, 3))
