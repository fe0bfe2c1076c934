"""Which refusals of the system may be over in a moment."""

import errno

import pytest

from elastic_core.agent.run_decision import FailureContext
from elastic_core.errors import ConfigError, WorkerError, is_momentary
from elastic_core.failure.runner import PolicyRunner
from elastic_core.hooks.handler import AgentHook
from elastic_core.hooks.members import NamedHook
from elastic_core.hooks.runner import HookRunner
from elastic_core.moments import RoundJoining
from elastic_core.system.clock import SYSTEM_CLOCK
from elastic_core.types import Failure, FailureClass, HookSettings, Restart, Round

ROUND = Round(
    index=3,
    token=1,
    nonce="",
    node_rank=0,
    node_count=1,
    local_world_size=1,
    base_rank=0,
    world_size=1,
    role="default",
    role_base_rank=0,
    role_world_size=1,
    master_addr="h",
    master_port=1,
)
FOR_NOW = ("EAGAIN", "ENOMEM", "EMFILE", "ENFILE", "ENOSPC", "EDQUOT", "EIO")
FOR_GOOD = ("ENOENT", "EACCES", "EPERM", "ENOEXEC", "E2BIG", "EROFS", "ENOTDIR", "EADDRINUSE")


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("name", FOR_NOW + FOR_GOOD)
@pytest.mark.parametrize("kind", [WorkerError, ConfigError])
def test_workers_that_were_refused_for_a_moment_are_worth_another_try(name, kind):
    error = caused(kind("can't be started"), OSError(getattr(errno, name), "no"))
    failure = FailureContext("n", SYSTEM_CLOCK).no_start(error, ROUND)
    assert failure.retryable == (name in FOR_NOW)


def test_a_thread_that_is_not_to_be_had_is_a_matter_of_time():
    assert is_momentary(caused(WorkerError("x"), RuntimeError("can't start new thread")))
    assert not is_momentary(RuntimeError("something else"))
    assert not is_momentary(None)


FAILURE = Failure(failure_class=FailureClass.EXIT, summary="s", node_id="n", round_index=0, at_s=1.0, uptime_s=1.0)


def test_a_policy_without_a_thread_is_answered_for(monkeypatch):
    monkeypatch.setattr("threading.Thread.start", refused)

    class Fallback:
        def decide(self, failure, history):
            return Restart(rule="fallback")

    answers, later = [], []
    runner = PolicyRunner(
        object(), Fallback(), name="own", post=never, call_later=lambda delay_s, call: later.append(call)
    )
    runner.decide(FAILURE, (), lambda decision, reason: answers.append((decision.rule, reason)))
    assert answers == [("fallback", "policy 'own' was not asked (can't start new thread)")]
    assert later == []


def refused(thread):
    raise RuntimeError("can't start new thread")


def never(*args):
    raise AssertionError("not expected")


class Door(AgentHook):
    """Has something to say about joining."""

    def on_joining(self, event):
        return None


def test_hooks_wait_for_a_thread(monkeypatch):
    monkeypatch.setattr("threading.Thread.start", refused)
    later = []
    runner = HookRunner(
        [NamedHook(name="door", distribution="d", hook=Door(HookSettings(name="door")))],
        post=never,
        call_later=lambda delay_s, call: later.append((delay_s, call)),
        log=never,
    )
    runner.ask_join(RoundJoining(round_index=0), never)
    again = min(later, key=lambda entry: entry[0])[1]
    later.clear()
    again()
    assert len(later) == 1  # refused again, and not given up
    started = []
    monkeypatch.setattr("threading.Thread.start", lambda thread: started.append(thread.name))
    later.pop()[1]()
    assert started == ["elastic-hooks"]
    assert later == []
