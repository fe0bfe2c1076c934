"""What counts as a policy's answer, and the built-in one asked without a thread."""

import queue
import threading

import pytest
from msgspec.structs import replace

from elastic_core.failure.handler import FailureHandler
from elastic_core.failure.intensity import Intensity
from elastic_core.failure.runner import PolicyRunner, checked_decision
from elastic_core.types import Failure, FailureClass, Ignore, PolicySettings, Restart, Stop

FAILURE = Failure(
    failure_class=FailureClass.EXIT, summary="exit code 1", node_id="n", round_index=0, at_s=0.0, uptime_s=1.0
)


@pytest.mark.parametrize("answer", [Restart(), Restart(delay_s=3, exclude_nodes=("n1",)), Stop(reason="x"), Ignore()])
def test_answers(answer):
    assert checked_decision(answer) == (answer, "")


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (None, "answered NoneType; expected Restart, Stop or Ignore"),
        ("restart", "answered str"),
        (Restart, "answered StructMeta"),
        (Restart(delay_s=-1.0), "wants a restart after -1.0 s"),
        (Restart(delay_s=float("nan")), "wants a restart after nan s"),
        (Restart(delay_s=float("inf")), "wants a restart after inf s"),
        (Restart(delay_s="2"), "wants a restart after '2' s"),
        (Restart(exclude_nodes="n1"), "excludes the nodes 'n1'"),
        (Restart(exclude_nodes=(1,)), "excludes the nodes (1,)"),
        (Restart(exclude_nodes=("n1",), exclude_s=(1.0, 2.0)), "excludes nodes for (1.0, 2.0) s"),
        (Restart(exclude_nodes=("n1",), exclude_s=(-1.0,)), "excludes nodes for (-1.0,) s"),
        (Stop(reason="x", outcome="fine"), "stops with outcome 'fine'"),
        (Stop(reason=None), "stops with outcome 'failed'"),
    ],
)
def test_nonsense_is_named(answer, fault):
    decision, told = checked_decision(answer)
    assert decision is None
    assert told.startswith(fault)


def test_built_in_policy_answers_in_place():
    intensity = Intensity(PolicySettings(name="intensity", max_restarts=1))
    heard = []

    def never(*args):
        raise AssertionError("no thread, no timer")

    runner = PolicyRunner(intensity, intensity, name="intensity", post=never, call_later=never)
    runner.decide(FAILURE, (), lambda decision, reason: heard.append((decision, reason)))
    assert heard == [(Restart(rule="max-restarts"), "")]
    assert runner.name == "intensity"


class Slow(FailureHandler):
    api_version = 1

    def __init__(self):
        self.asked, self.gate, self.at_once = [], threading.Semaphore(0), 0

    def decide(self, failure, history):
        self.at_once += 1
        self.asked.append((failure.summary, self.at_once))
        self.gate.acquire(timeout=10)
        self.at_once -= 1
        return Restart(rule=failure.summary)


def test_questions_wait_for_one_another():
    """A node asks about its own failure, and the run about the first of all nodes."""
    posted, slow, heard = queue.SimpleQueue(), Slow(), []
    runner = PolicyRunner(slow, None, name="slow", post=posted.put, call_later=lambda delay_s, call: None)
    for summary in ("mine", "the run's"):
        runner.decide(replace(FAILURE, summary=summary), (), lambda decision, reason: heard.append(decision.rule))
    for _ in range(2):
        slow.gate.release()
        posted.get(timeout=10)()
    assert heard == ["mine", "the run's"]
    assert slow.asked == [("mine", 1), ("the run's", 1)]
