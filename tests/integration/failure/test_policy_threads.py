"""A policy on its thread, with a real reactor: it answers, raises, hangs, or comes too late."""

import threading

import pytest

from elastic_core.failure.handler import FailureHandler
from elastic_core.failure.intensity import Intensity
from elastic_core.failure.runner import PolicyRunner
from elastic_core.system.reactor import Reactor
from elastic_core.types import Failure, FailureClass, Ignore, PolicySettings, Restart, Stop
from patience import Deadline

PATIENCE_S = 20.0
SETTINGS = PolicySettings(name="mine", max_restarts=1)
FAILURE = Failure(
    failure_class=FailureClass.EXIT, summary="exit code 1", node_id="n", round_index=0, at_s=0.0, uptime_s=1.0
)
FALLBACK = Restart(rule="max-restarts")


class Mine(FailureHandler):
    """Answers by calling what the test gives."""

    def __init__(self, answer):
        super().__init__(SETTINGS)
        self.answer = answer
        self.threads = []

    def decide(self, failure, history):
        self.threads.append(threading.current_thread().name)
        return self.answer(failure, history)


@pytest.fixture
def reactor():
    reactor = Reactor()
    yield reactor
    reactor.close()


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


def runner_of(reactor, policy, timeout_s=PATIENCE_S):
    return PolicyRunner(
        policy, Intensity(SETTINGS), name="mine", post=reactor.post, call_later=reactor.call_later, timeout_s=timeout_s
    )


def ask(reactor, runner, history=()):
    heard = []
    runner.decide(FAILURE, history, lambda *answer: heard.append((*answer, threading.current_thread())))
    until(reactor, lambda: heard)
    [(decision, reason, thread)] = heard
    assert thread is threading.current_thread()
    return decision, reason


def until(reactor, condition):
    end = Deadline(PATIENCE_S)
    while not condition():
        assert not end.passed(), "the condition never came true"
        reactor.turn(0.01)


def test_policy_decides_on_a_thread_of_its_own(reactor):
    seen = []
    policy = Mine(lambda failure, history: seen.append((failure, history)) or Ignore(rule="mine"))
    past = Failure(failure_class=FailureClass.HANG, summary="x", node_id="n", round_index=0, at_s=0.0, uptime_s=0.0)
    assert ask(reactor, runner_of(reactor, policy), [past]) == (Ignore(rule="mine"), "")
    assert seen == [(FAILURE, (past,))]
    assert policy.threads == ["elastic-policy-mine"]


def test_subclass_of_the_built_in_is_not_called_in_place(reactor):
    class Mild(Intensity):
        def decide(self, failure, history):
            return Stop(reason=threading.current_thread().name)

    decision, _ = ask(reactor, runner_of(reactor, Mild(SETTINGS)))
    assert decision.reason == "elastic-policy-mine"


@pytest.mark.parametrize("error", [KeyError("rules"), SystemExit(4), RecursionError("deep\ndown")])
def test_raise_falls_back(reactor, error):
    def answer(failure, history):
        raise error

    decision, reason = ask(reactor, runner_of(reactor, Mine(answer)))
    assert decision == FALLBACK
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    assert reason.startswith(f"policy 'mine' raised {text} (test_policy_threads.py:")
    assert reason.endswith(" in answer)")


def test_nonsense_falls_back(reactor):
    decision, reason = ask(reactor, runner_of(reactor, Mine(lambda *args: None)))
    assert decision == FALLBACK
    assert reason == "policy 'mine' answered NoneType; expected Restart, Stop or Ignore"


def test_overrun_falls_back_and_is_not_asked_again_while_it_hangs(reactor, release):
    policy = Mine(lambda *args: release.wait(PATIENCE_S) and Ignore())
    runner = runner_of(reactor, policy, timeout_s=0.5)
    assert ask(reactor, runner) == (FALLBACK, "decide of policy 'mine' has not returned after 0.5 s")
    assert ask(reactor, runner) == (FALLBACK, "policy 'mine' still hangs in an earlier decision")
    assert len(policy.threads) == 1


def test_policy_that_came_back_is_asked_again_and_its_late_word_is_not_heard(reactor, release):
    policy = Mine(lambda *args: release.wait(PATIENCE_S) and Ignore())
    runner, deadlines, heard = runner_of(reactor, policy), [], []
    runner._call_later = lambda delay_s, callback: deadlines.append(callback)
    runner.decide(FAILURE, (), lambda *answer: heard.append(answer))
    until(reactor, lambda: policy.threads)
    deadlines.pop()()
    assert [decision for decision, _ in heard] == [FALLBACK]
    release.set()
    until(reactor, lambda: not any(t.name == "elastic-policy-mine" for t in threading.enumerate()))
    reactor.turn(0.0)
    assert len(heard) == 1
    assert ask(reactor, runner) == (Ignore(), "")


def test_deadline_of_an_answered_question_is_harmless(reactor):
    runner, deadlines, heard = runner_of(reactor, Mine(lambda *args: Ignore())), [], []
    runner._call_later = lambda delay_s, callback: deadlines.append(callback)
    runner.decide(FAILURE, (), lambda *answer: heard.append(answer))
    until(reactor, lambda: heard)
    (passes,) = deadlines
    passes()
    assert heard == [(Ignore(), "")]
    assert ask(reactor, runner) == (Ignore(), "")
