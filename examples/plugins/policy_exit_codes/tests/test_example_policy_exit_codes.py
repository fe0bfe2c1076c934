"""The kit, and what only this policy promises."""

import pytest

from elastic_core.api import ConfigError, FailureClass, PolicySettings, Restart, Stop
from elastic_example_policy_exit_codes import ExitCodes
from elastic_plugin_kit import FailureHandlerConformance, sample_failure


def policy(max_restarts=3, **options):
    given = {"retry": "1:75", "cool_down": 30.0} | options
    return ExitCodes(PolicySettings(name="exit-codes", max_restarts=max_restarts, options=given))


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


def test_without_a_worker_to_blame_no_code_is_asked_for():
    lost = sample_failure(failure_class=FailureClass.NODE_LOST, global_rank=None, local_rank=None, exit_code=7)
    assert isinstance(policy().decide(lost, []), Restart)


def test_what_a_retry_cannot_mend_is_not_retried():
    assert isinstance(policy().decide(sample_failure(exit_code=75, retryable=False), []), Stop)


@pytest.mark.parametrize("retry", ["", ":", "0", "256", "75:", "75-78", "-9", "SIGKILL", "²"])
def test_what_is_no_exit_code_is_refused(retry):
    with pytest.raises(ConfigError, match="is no list of exit codes from 1 to 255"):
        policy(retry=retry)


def test_time_does_not_run_backwards():
    with pytest.raises(ConfigError, match="cool_down is -1 s; 0 s or more is needed"):
        policy(cool_down=-1.0)
