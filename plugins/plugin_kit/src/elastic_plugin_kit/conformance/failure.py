"""The kit for restart policies: tests that a `FailureHandler` is pure, and returns valid decisions."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import ClassVar, Final

import msgspec
import pytest

from elastic_core.api import SYSTEM_CLOCK, Decision, Failure, FailureClass, FailureHandler, Ignore, Restart, Stop
from elastic_plugin_kit.conformance.kit import Kit, check_api_version, check_options, in_time
from elastic_plugin_kit.conformance.kit_process import WATCHMAN, check_imports, nothing_left
from elastic_plugin_kit.conformance.store_run import another_hosts_clock
from elastic_plugin_kit.samples import sample_failure

MakePolicy = Callable[[int], FailureHandler]
"""What the fixture `make_policy` gives: called with `max_restarts`, it returns a new policy."""

QUICK_S: Final = 0.5
"""A decision that takes a second is not waited for; half of it is what this machine may add."""
ABANDONED_S: Final = 1.0
"""An agent waits no longer for a decision: the built-in policy decides then."""
HOUR_S: Final = 3600.0
ALL_S: Final = 30.0
"""For all of the kit's failures, one after the other."""
HISTORY_LIMIT: Final = 64
"""How many failures a run keeps for its policy."""


class FailureHandlerConformance(Kit):
    """Subclass it and give the fixture `make_policy`: a function from `max_restarts` to a new policy."""

    page: ClassVar[str] = "policy.md"

    keeps_budget: ClassVar[bool] = True
    """Whether the policy ends a run that fails again and again, as `--max-restarts` asks; False skips that test."""

    @pytest.fixture
    def make_policy(self) -> MakePolicy:
        """Return a function that makes a policy: the one fixture that a subclass must give."""
        pytest.fail(f"{type(self).__name__} must give the fixture `make_policy`: a function from max_restarts")

    def test_the_api_version_is_stated(self, make_policy: MakePolicy) -> None:
        """The class states the version of the interfaces that it was written for."""
        check_api_version(type(make_policy(3)))

    def test_the_options_are_declared_well(self, make_policy: MakePolicy) -> None:
        """The core can report each wrong value of an option."""
        cls = type(make_policy(3))
        check_options(cls.__name__, cls.options)

    def test_its_import_is_light(self, make_policy: MakePolicy) -> None:
        """Neither torch nor numpy comes into the agent's process."""
        check_imports(type(make_policy(3)))

    def test_every_failure_is_decided(self, make_policy: MakePolicy) -> None:
        """Of each class, with and without a worker to blame, early and late in a run: never an error."""
        policy = make_policy(3)
        for failure, history in _questions():
            answer = _decide(policy, failure, history)
            valid = isinstance(answer, (Restart, Stop, Ignore))
            assert valid, f"{_told(failure)}: decide returned {answer!r}; expected Restart, Stop or Ignore"

    def test_decisions_can_be_followed(self, make_policy: MakePolicy) -> None:
        """Delays are finite, node ids are texts, and a stop has a reason."""
        policy = make_policy(3)
        for failure, history in _questions():
            _check(_decide(policy, failure, history), _told(failure))

    def test_the_same_question_has_the_same_answer(self, make_policy: MakePolicy) -> None:
        """Called again, on another object, after other calls, at another time, with another random seed."""
        policy, questions = make_policy(3), list(_questions())
        first = [_decide(policy, failure, history) for failure, history in questions]
        random.seed(1)
        again = [_decide(policy, failure, history) for failure, history in reversed(questions)][::-1]
        assert again == first, (
            "decide returned another decision for the same arguments, in another order of calls; expected no state"
        )
        with another_hosts_clock(HOUR_S):
            other = make_policy(3)
            random.seed(2)
            later = [_decide(other, failure, history) for failure, history in questions]
        assert later == first, (
            "another policy object decided otherwise, an hour later; expected no clock and no random numbers"
        )

    def test_history_may_be_any_sequence(self, make_policy: MakePolicy) -> None:
        """A list or a tuple; it is left as it is."""
        policy = make_policy(3)
        for failure, history in _questions():
            given = list(history)
            assert _decide(policy, failure, given) == _decide(policy, failure, tuple(history))
            assert given == list(history), "decide changed `history`; expected it unchanged"

    def test_it_opens_nothing(self, make_policy: MakePolicy) -> None:
        """No file, socket, process or sleep; what it needs it reads when it is built."""
        policy = make_policy(3)
        _decide(policy, sample_failure(), ())  # what is imported at the first call is not I/O of the policy's

        def watched() -> list[str]:
            with WATCHMAN.watching() as seen:
                for failure, history in _questions():
                    policy.decide(failure, history)
            return seen

        seen = in_time(policy, "decide", watched, within_s=ALL_S, what="all of the kit's failures")
        assert not seen, f"decide did {sorted(set(seen))}; expected no I/O"

    def test_decisions_are_quick(self, make_policy: MakePolicy) -> None:
        """Also after as many failures as a run knows of, and on a thread of its own."""
        policy, history = make_policy(HISTORY_LIMIT), [_past(at_s) for at_s in range(HISTORY_LIMIT - 1)]
        began_s = SYSTEM_CLOCK.monotonic_s()
        _decide(policy, sample_failure(at_s=5000.0), history)
        took_s = SYSTEM_CLOCK.monotonic_s() - began_s
        what = f"decide took {took_s:.2f} s with {len(history)} failures in the history"
        assert took_s < QUICK_S, f"{what}; expected less than {QUICK_S:g} s"

    def test_it_leaves_nothing(self, make_policy: MakePolicy) -> None:
        """Neither threads nor sockets nor files: an agent may run in a process that goes on."""
        for last in (False, True):
            # What is imported or cached at the first time is no leak.
            with nothing_left("the policy") if last else nullcontext():
                policy = make_policy(3)
                for failure, history in _questions():
                    _decide(policy, failure, history)
                del policy

    def test_fields_of_later_versions_do_no_harm(self, make_policy: MakePolicy) -> None:
        """Records gain fields; what is decided without them stays so."""
        policy = make_policy(3)
        for failure, history in _questions():
            later = _decide(policy, _later(failure), [_later(past) for past in history])
            assert later == _decide(policy, failure, history)

    @pytest.mark.parametrize("max_restarts", [0, 1, 3])
    def test_a_run_that_fails_again_and_again_ends(self, make_policy: MakePolicy, max_restarts: int) -> None:
        """After at most `max_restarts` restarts."""
        if not self.keeps_budget:
            pytest.skip("keeps_budget is False: the policy does not count by --max-restarts")
        policy, history = make_policy(max_restarts), list[Failure]()
        for turn in range(max_restarts + 1):
            failure = sample_failure(at_s=10.0 * turn, round_index=turn)
            decision = _decide(policy, failure, history)
            if not isinstance(decision, Restart):
                return
            history.append(msgspec.structs.replace(failure, decision=decision))
        pytest.fail(f"decide returned {max_restarts + 1} restarts; expected at most max_restarts={max_restarts}")


def _decide(policy: FailureHandler, failure: Failure, history: Sequence[Failure]) -> Decision:
    what = f"for {_told(failure)} after {len(history)} others"
    return in_time(policy, "decide", lambda: policy.decide(failure, history), within_s=ABANDONED_S, what=what)


def _questions() -> Iterator[tuple[Failure, Sequence[Failure]]]:
    histories: list[list[Failure]] = [
        [],
        [_past(5.0)],
        [_past(5.0 * turn) for turn in range(6)],
        [msgspec.structs.replace(_past(5.0), decision=Ignore())],
    ]
    for failure_class in FailureClass:
        for failure in (
            sample_failure(failure_class=failure_class, at_s=100.0),
            sample_failure(failure_class=failure_class, at_s=1e6, uptime_s=9e5, retryable=False, exit_code=255,
                           alive_count=0, kept_count=0),
            sample_failure(failure_class=failure_class, at_s=100.0, uptime_s=0.0, exception_type="", message="",
                           global_rank=None, local_rank=None, exit_code=137, summary="é\u2028" * 500,
                           alive_count=7, kept_count=6),
        ):  # fmt: skip
            for history in histories:
                yield failure, tuple(history)


def _past(at_s: float) -> Failure:
    return sample_failure(at_s=at_s, decision=Restart(rule="max-restarts"))


_Later = msgspec.defstruct("_Later", [("later", str, "x")], bases=(Failure,), frozen=True, kw_only=True)


def _later(failure: Failure) -> Failure:
    made = _Later(**{name: getattr(failure, name) for name in failure.__struct_fields__})
    assert isinstance(made, Failure)
    return made


def _check(decision: Decision, about: str) -> None:
    assert isinstance(decision.rule, str), f"{about}: `rule` is {decision.rule!r}; expected a text"
    match decision:
        case Restart():
            right = isinstance(decision.delay_s, (int, float)) and math.isfinite(decision.delay_s)
            assert right, f"{about}: delay_s is {decision.delay_s!r}; expected a finite number"
            assert decision.delay_s >= 0, f"{about}: delay_s is {decision.delay_s!r}; expected 0 or more"
            names = decision.exclude_nodes
            assert isinstance(names, tuple), f"{about}: exclude_nodes is {names!r}; expected a tuple"
            assert all(isinstance(name, str) and name for name in names), (
                f"{about}: exclude_nodes is {names!r}; expected node ids"
            )
            times = decision.exclude_s
            right = (
                isinstance(times, tuple) and len(times) <= len(names) and all(0 <= for_s < math.inf for for_s in times)
            )
            assert right, f"{about}: exclude_s is {times!r}; expected at most one time in seconds for each of {names!r}"
        case Stop():
            known = decision.outcome in {"failed", "done"}
            assert known, f"{about}: outcome is {decision.outcome!r}; expected 'failed' or 'done'"
            assert isinstance(decision.reason, str), f"{about}: reason is {decision.reason!r}; expected a text"
            assert decision.reason.strip(), f"{about}: the reason of a Stop is empty; expected a line for people"
            assert "\n" not in decision.reason, f"{about}: the reason has several lines; expected one"
        case Ignore():
            pass


def _told(failure: Failure) -> str:
    return f"a failure of class {failure.failure_class.value!r}, exit code {failure.exit_code}"
