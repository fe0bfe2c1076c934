"""The example policy is pure: failures in, decisions out."""

import pytest

from elastic_core.api import Failure, FailureClass, PolicySettings, Restart, Stop
from elastic_example_policy_never import NeverRetry


def policy(max_restarts=2):
    given = {"options": {"pause": 3.0}, "lists": {"exceptions": ("ValueError", "MyError")}}
    return NeverRetry(PolicySettings(name="never", max_restarts=max_restarts, **given))


def failure(exception_type="", decision=None, **fields):
    return Failure(
        failure_class=FailureClass.USER_EXCEPTION if exception_type else FailureClass.SIGNAL,
        summary=f"{exception_type}: boom",
        node_id="n0",
        round_index=0,
        at_s=1.0,
        uptime_s=1.0,
        exception_type=exception_type,
        decision=decision,
        **fields,
    )


@pytest.mark.parametrize("exception_type", ["ValueError", "MyError", "package.errors.MyError"])
def test_a_named_exception_ends_the_run(exception_type):
    decision = policy().decide(failure(exception_type), [])
    assert isinstance(decision, Stop)
    assert "is never retried" in decision.reason


@pytest.mark.parametrize("exception_type", ["", "RuntimeError", "NotMyError"])
def test_everything_else_is_tried_again_after_the_pause(exception_type):
    assert policy().decide(failure(exception_type), []) == Restart(delay_s=3.0, rule="max-restarts")


def test_the_budget_ends():
    history = [failure("RuntimeError", decision=Restart())] * 2
    assert isinstance(policy().decide(failure("RuntimeError"), history), Stop)
    assert isinstance(policy().decide(failure("RuntimeError"), history[:1]), Restart)


def test_what_a_retry_cannot_mend_is_not_retried():
    assert isinstance(policy().decide(failure("SyntaxError", retryable=False), []), Stop)
