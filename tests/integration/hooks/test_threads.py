"""Observers on their thread, with a real reactor: order, raises, overruns, answers, the end."""

import gc
import re
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from elastic_core.hooks.handler import AgentHook
from elastic_core.hooks.members import NamedHook
from elastic_core.hooks.runner import HookRunner
from elastic_core.moments import (
    AgentStarted,
    AgentStopped,
    FailureSeen,
    LaunchChange,
    Launches,
    Power,
    Refuse,
    RoundJoined,
    RoundJoining,
    WorkersStarting,
)
from elastic_core.system.reactor import Reactor
from elastic_core.types import Failure, FailureClass, HookSettings, Round
from patience import Deadline, kept, patience

DEADLINE_S = 0.5
PATIENCE_S = 20.0
ROUND = Round(
    index=0,
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
STARTED = AgentStarted(run_id="r", node_id="n", run_dir="/x", pid=1)
STARTING = WorkersStarting(round=ROUND, restart_count=0)
STOPPED = AgentStopped(exit_code=0, reason="done")
JOINED = RoundJoined(round=ROUND)


class Bench:
    """A reactor, a runner over some hooks, and what came out of it."""

    def __init__(self):
        self.reactor = Reactor()
        self.lines = []
        self.answers = []
        self.answer_threads = set()

    def start(self, *, deadline_s=PATIENCE_S, fail_closed=False, **hooks):
        named = [
            NamedHook(
                name=name,
                distribution=f"fake-{name} 1",
                hook=cls(HookSettings(name=name)),
                fail_closed=fail_closed,
            )
            for name, cls in hooks.items()
        ]
        self.hooks = {one.name: one.hook for one in named}
        self.runner = HookRunner(
            named,
            post=self.reactor.post,
            call_later=self.reactor.call_later,
            log=SimpleNamespace(notice=self.hear_line),
            deadline_s=deadline_s,
            actions=self,
        )
        return self.runner

    def hear_line(self, line):
        self.answer_threads.add(threading.current_thread())
        self.lines.append(line)

    def hear(self, *answer):
        self.answer_threads.add(threading.current_thread())
        self.answers.append(answer)

    def until(self, condition):
        end = Deadline(PATIENCE_S)
        while not condition():
            assert not end.passed(), "the condition never came true"
            self.reactor.turn(0.01)


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.runner.close(0.0)
    bench.reactor.close()


class Recorder(AgentHook):
    def __init__(self, settings):
        super().__init__(settings)
        self.seen = []
        self.threads = set()

    def note(self, event):
        self.seen.append(event)
        self.threads.add(threading.current_thread().name)

    on_agent_started = on_round_joined = on_failure = on_agent_stopped = note


def stuck_hook(release):
    class Stuck(Recorder):
        powers = frozenset({Power.REFUSAL})

        def on_round_joined(self, event):
            self.note(event)
            release.wait(PATIENCE_S)
            raise RuntimeError("too late to be heard")

        def on_joining(self, event):
            self.on_round_joined(event)
            return Refuse(reason="too late to be heard")

    return Stuck


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


def test_moments_arrive_in_order_on_one_thread(bench):
    runner = bench.start(one=Recorder, two=Recorder)
    for moment in (STARTED, JOINED, STOPPED):
        runner.observe(moment)
    runner.close()
    for hook in bench.hooks.values():
        assert hook.seen == [STARTED, JOINED, STOPPED]
        assert hook.threads == {"elastic-hooks"}
    assert not bench.lines


def test_thread_ends_after_close(bench):
    before = {*threading.enumerate()}  # one of a test before this one may not have ended yet
    runner = bench.start(one=Recorder)
    assert before.issuperset(threading.enumerate())
    runner.observe(STARTED)
    runner.close()
    bench.until(lambda: before.issuperset(threading.enumerate()))


@pytest.mark.parametrize("error", [ValueError("two\nlines"), SystemExit(3)])
def test_raise_is_told_and_counted_and_hurts_nobody(bench, error):
    class Raising(Recorder):
        def on_agent_started(self, event):
            raise error

    runner = bench.start(bad=Raising, good=Recorder)
    runner.observe(STARTED)
    runner.observe(STARTED)
    bench.until(lambda: bench.lines and len(bench.hooks["good"].seen) == 2)
    [line] = bench.lines  # once, however often
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    assert line.startswith(f"hook 'bad' (fake-bad 1): on_agent_started raised {text} (test_threads.py:")
    assert line.endswith(" in on_agent_started)")
    assert bench.answer_threads == {threading.current_thread()}


def test_overrun_is_abandoned_named_and_off_and_the_others_go_on(bench, release):
    runner = bench.start(deadline_s=DEADLINE_S, slow=stuck_hook(release), good=Recorder)
    runner.observe(STARTED)
    runner.observe(JOINED)
    runner.observe(STOPPED)
    good = bench.hooks["good"]
    bench.until(lambda: good.seen == [STARTED, JOINED, STOPPED])
    [line] = bench.lines
    assert line.startswith("hook 'slow' (fake-slow 1): on_round_joined has not returned after ")
    assert line.endswith("s; it is off for the rest of the run")
    assert bench.hooks["slow"].seen == [STARTED, JOINED]
    release.set()
    runner.observe(JOINED)
    bench.until(lambda: len(good.seen) == 4)
    assert len(bench.lines) == 1
    assert bench.hooks["slow"].seen == [STARTED, JOINED]


def test_slow_hook_within_its_deadline_is_not_abandoned(bench):
    class Slow(Recorder):
        def on_agent_started(self, event):
            threading.Event().wait(patience(0.2))  # stands for work that takes this long
            self.note(event)

    runner = bench.start(deadline_s=patience(0.9), slow=Slow)
    for _ in range(5):
        runner.observe(STARTED)
    bench.until(lambda: len(bench.hooks["slow"].seen) == 5)
    assert not bench.lines


def test_question_is_answered_although_a_hook_hangs_in_it(bench, release):
    class Gate(AgentHook):
        powers = frozenset({Power.REFUSAL})

        def on_joining(self, event):
            return Refuse(reason="row remapping pending")

    runner = bench.start(deadline_s=DEADLINE_S, slow=stuck_hook(release), gate=Gate)
    runner.ask_join(RoundJoining(round_index=0), bench.hear)
    bench.until(lambda: bench.answers)
    assert bench.answers == [(Refuse(reason="row remapping pending"), "hook 'gate' (fake-gate 1)")]
    assert bench.answer_threads == {threading.current_thread()}
    runner.ask_join(RoundJoining(round_index=1), bench.hear)
    bench.until(lambda: len(bench.answers) == 2)
    assert len(bench.lines) == 1


def test_first_refusal_ends_the_asking(bench):
    class First(Recorder):
        powers = frozenset({Power.REFUSAL})

        def on_joining(self, event):
            return Refuse(reason="first")

    class Second(Recorder):
        powers = frozenset({Power.REFUSAL})

        def on_joining(self, event):
            self.note(event)
            return Refuse(reason="second")

    runner = bench.start(first=First, second=Second)
    runner.ask_join(RoundJoining(round_index=0), bench.hear)
    bench.until(lambda: bench.answers)
    assert bench.answers == [(Refuse(reason="first"), "hook 'first' (fake-first 1)")]
    assert not bench.hooks["second"].seen


def test_variables_of_all_hooks_are_gathered_and_reserved_ones_refused(bench):
    class One(AgentHook):
        powers = frozenset({Power.LAUNCHES})

        def on_workers_starting(self, event):
            return Launches(environment={"NCCL_DEBUG": "INFO", "RANK": "0", "A": 5})

    class Two(AgentHook):
        powers = frozenset({Power.LAUNCHES})

        def on_workers_starting(self, event):
            return Launches(environment={"SITE": "b"})

    runner = bench.start(one=One, two=Two)
    runner.ask_start(STARTING, bench.hear)
    bench.until(lambda: bench.answers and len(bench.lines) == 2)
    assert bench.answers == [((LaunchChange(environment={"NCCL_DEBUG": "INFO", "SITE": "b"}),), None, "")]
    assert bench.lines == [
        "hook 'one' (fake-one 1): on_workers_starting may not set 'RANK': it is reserved, it identifies the worker",
        "hook 'one' (fake-one 1): on_workers_starting may not set 'A': name and value must be text",
    ]


def test_start_may_be_refused(bench):
    class Gate(AgentHook):
        powers = frozenset({Power.REFUSAL})

        def on_workers_starting(self, event):
            return Refuse(reason="ECC errors")

    runner = bench.start(gate=Gate)
    runner.ask_start(STARTING, bench.hear)
    bench.until(lambda: bench.answers)
    assert bench.answers == [((), Refuse(reason="ECC errors"), "hook 'gate' (fake-gate 1)")]


@pytest.mark.parametrize("wanted", ["soon", -1.0, float("nan")])
def test_a_time_that_is_none_is_told_and_the_refusal_stands(bench, wanted):
    class Gate(AgentHook):
        powers = frozenset({Power.REFUSAL})

        def on_joining(self, event):
            return Refuse(reason="hot", again_s=wanted)

    runner = bench.start(gate=Gate)
    runner.ask_join(RoundJoining(round_index=0), bench.hear)
    bench.until(lambda: bench.answers and bench.lines)
    assert bench.answers == [(Refuse(reason="hot"), "hook 'gate' (fake-gate 1)")]
    assert f"wants to be asked again in {wanted!r} s; expected a number" in bench.lines[0]


@pytest.mark.parametrize("reason", ["", " \n"])
def test_a_refusal_without_a_reason_says_so(bench, reason):
    class Gate(AgentHook):
        powers = frozenset({Power.REFUSAL})

        def on_joining(self, event):
            return Refuse(reason=reason)

    runner = bench.start(gate=Gate)
    runner.ask_join(RoundJoining(round_index=0), bench.hear)
    bench.until(lambda: bench.answers)
    assert bench.answers == [(Refuse(reason="without a reason"), "hook 'gate' (fake-gate 1)")]


def test_about_a_start_that_was_refused_only_those_are_asked_again_who_may_refuse(bench):
    class Gate(Recorder):
        api_version = 1
        powers = frozenset({Power.REFUSAL})

        def on_workers_starting(self, event):
            self.note(event)

    class Sets(Gate):
        powers = frozenset({Power.LAUNCHES})

    runner = bench.start(sets=Sets, gate=Gate)
    runner.ask_start(WorkersStarting(round=ROUND, restart_count=0, asked_again=True), bench.hear)
    bench.until(lambda: bench.answers)
    assert bench.answers == [((), None, "")]
    assert [len(bench.hooks[name].seen) for name in ("gate", "sets")] == [1, 0]


@pytest.mark.parametrize(
    ("answer", "needed"),
    [
        ("no", "answered str; expected Refuse or None"),
        (False, "answered bool"),
        (Launches(environment={"A": "b"}), "answered Launches; expected Refuse or None"),
        (Refuse(reason=None), "answered Refuse"),
    ],
)
def test_other_answers_are_told_and_mean_no_objection(bench, answer, needed):
    class Odd(AgentHook):
        def on_joining(self, event):
            return answer

    runner = bench.start(odd=Odd)
    runner.ask_join(RoundJoining(round_index=0), bench.hear)
    bench.until(lambda: bench.answers and bench.lines)
    assert bench.answers == [(None, "")]
    assert bench.lines[0].startswith(f"hook 'odd' (fake-odd 1): on_joining {needed}")


def test_an_answer_that_takes_a_power_names_it(bench):
    class Watches(AgentHook):
        api_version = 1
        powers = frozenset()

        def on_joining(self, event):
            return Refuse(reason="no")

    runner = bench.start(watches=Watches)
    runner.ask_join(RoundJoining(round_index=0), bench.hear)
    bench.until(lambda: bench.answers and bench.lines)
    assert bench.answers == [(None, "")]
    assert "answered Refuse, which takes powers = frozenset({Power.REFUSAL}) in its class" in bench.lines[0]


def test_environment_that_is_no_mapping_is_told(bench):
    class Odd(AgentHook):
        powers = frozenset({Power.LAUNCHES})

        def on_workers_starting(self, event):
            return Launches(environment=None)

    runner = bench.start(odd=Odd)
    runner.ask_start(STARTING, bench.hear)
    bench.until(lambda: bench.answers and bench.lines)
    assert bench.answers == [((), None, "")]


def test_question_waits_for_what_was_told_before_it(bench):
    class Both(Recorder):
        def on_joining(self, event):
            self.note(event)

    runner = bench.start(both=Both)
    runner.observe(STARTED)
    runner.ask_join(RoundJoining(round_index=0), bench.hear)
    bench.until(lambda: bench.answers)
    assert bench.hooks["both"].seen == [STARTED, RoundJoining(round_index=0)]


def test_close_gives_up_on_a_stuck_hook_in_time_and_names_who_was_not_told(bench, release):
    runner = bench.start(deadline_s=PATIENCE_S, slow=stuck_hook(release), good=Recorder)
    runner.observe(JOINED)
    runner.observe(STOPPED)
    began_s = time.monotonic()
    runner.close(0.1)
    kept(time.monotonic() - began_s, PATIENCE_S / 2)
    assert "hook 'slow' (fake-slow 1): on_round_joined has not returned" in bench.lines[0]
    assert bench.lines[0].endswith("the run ends without it")
    assert bench.lines[1:] == ["hooks good: not notified of the end, because other hooks took too long"]


def test_close_abandons_one_and_still_tells_the_next(bench, release):
    runner = bench.start(deadline_s=DEADLINE_S, slow=stuck_hook(release), good=Recorder)
    runner.observe(JOINED)
    runner.observe(STOPPED)
    runner.close(PATIENCE_S)
    assert bench.hooks["good"].seen == [JOINED, STOPPED]
    assert len(bench.lines) == 1


def test_after_close_questions_are_answered_at_once(bench):
    class Gate(AgentHook):
        powers = frozenset({Power.REFUSAL})

        def on_joining(self, event):
            return Refuse(reason="no")

    runner = bench.start(gate=Gate)
    runner.close()
    runner.ask_join(RoundJoining(round_index=0), bench.hear)
    assert bench.answers == [(None, "")]


def test_idle_runner_does_not_wake_the_reactor(bench):
    runner = bench.start(deadline_s=DEADLINE_S, one=Recorder)
    failure = Failure(failure_class=FailureClass.EXIT, summary="x", node_id="n", round_index=0, at_s=0.0, uptime_s=0.0)
    runner.observe(FailureSeen(failure=failure))
    bench.until(lambda: bench.hooks["one"].seen)
    timers = []
    runner._call_later = lambda *args: timers.append(args)
    bench.until(lambda: not runner._watched)
    assert not timers


# --- gates that break


def closed(answer):
    """Return a gate that fails closed; `answer` is called for its answer."""

    class Closed(AgentHook):
        api_version = 1
        powers = frozenset({Power.REFUSAL})
        fail_closed = True

        def on_joining(self, event):
            return answer()

    return Closed


def no_driver():
    raise RuntimeError("no driver")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(no_driver, "on_joining raised RuntimeError: no driver"), (lambda: "no", "on_joining answered str")],
)
def test_a_gate_that_breaks_refuses_where_it_says_so(bench, answer, reason):
    class Open(closed(answer)):
        fail_closed = False

    for cls, refused in ((closed(answer), True), (Open, False)):
        runner = bench.start(gate=cls)
        runner.ask_join(RoundJoining(round_index=0), bench.hear)
        bench.until(lambda: bench.answers)
        ((refusal, who),) = bench.answers
        assert (refusal is not None) == refused
        if refusal is not None:
            assert refusal.reason.startswith(reason)
            assert who == "hook 'gate' (fake-gate 1)"
        runner.close()
        bench.answers.clear()


def test_a_gate_that_breaks_refuses_where_its_user_says_so(bench):
    class Open(closed(no_driver)):
        fail_closed = False

    runner = bench.start(fail_closed=True, gate=Open)
    runner.ask_join(RoundJoining(round_index=0), bench.hear)
    bench.until(lambda: bench.answers)
    ((refusal, _),) = bench.answers
    assert refusal.reason.startswith("on_joining raised RuntimeError: no driver")
    runner.close()


def test_a_gate_that_hangs_refuses_until_its_call_returns(bench, release):
    calls = []

    def answer():
        calls.append(threading.current_thread())
        if len(calls) == 1:
            release.wait(PATIENCE_S)

    runner = bench.start(deadline_s=DEADLINE_S, gate=closed(answer), other=Recorder)

    def ask(count):
        runner.ask_join(RoundJoining(round_index=0), bench.hear)
        bench.until(lambda: len(bench.answers) == count)
        return bench.answers[-1][0]

    assert "on_joining has not returned after" in ask(1).reason
    assert ask(2) == Refuse(reason="its on_joining has not returned yet")
    assert len(calls) == 1  # one call at a time, and no thread more for each question
    (line,) = bench.lines
    assert line.endswith("; it refuses until it has")
    release.set()
    end = Deadline(PATIENCE_S)
    while ask(len(bench.answers) + 1) is not None:
        assert not end.passed(), "the gate never opened again"
    assert len(calls) == 2


# --- the catch-all

JOINING = RoundJoining(round_index=0)
FAILED = FailureSeen(
    failure=Failure(
        failure_class=FailureClass.EXIT, summary="exit code 7", node_id="n", round_index=0, at_s=1, uptime_s=1
    )
)


class All(Recorder):
    api_version = 1
    on_agent_started = AgentHook.on_agent_started
    on_round_joined = AgentHook.on_round_joined
    on_failure = AgentHook.on_failure
    on_agent_stopped = AgentHook.on_agent_stopped
    powers = frozenset({Power.REFUSAL})

    def on_moment(self, event):
        self.note(event)
        return Refuse(reason="not for a catch-all to say")


def test_a_catch_all_takes_what_the_class_has_no_method_for(bench):
    class Both(All):
        def on_round_joined(self, event):
            self.seen.append("own")

    runner = bench.start(both=Both)
    for moment in (STARTED, JOINED, FAILED):
        runner.observe(moment)
    runner.ask_join(JOINING, bench.hear)
    runner.ask_start(STARTING, bench.hear)
    assert bench.answers == [(None, ""), ((), None, "")], "nobody waits for a catch-all"
    runner.observe(STOPPED)
    bench.until(lambda: len(bench.hooks["both"].seen) == 6)
    assert bench.hooks["both"].seen == [STARTED, "own", FAILED, JOINING, STARTING, STOPPED]


def test_a_catch_all_that_raises_is_named_so(bench):
    class Raises(AgentHook):
        api_version = 1

        def on_moment(self, event):
            raise KeyError("seat")

    runner = bench.start(broken=Raises)
    runner.observe(JOINED)
    bench.until(lambda: bench.lines)
    assert bench.lines[0].startswith("hook 'broken' (fake-broken 1): on_moment raised KeyError: 'seat'")


class Holds(AgentHook):
    """Holds a stop for as long as the test has it."""

    api_version = 1
    powers = frozenset({Power.RUN, Power.HOLDS})
    seconds = 2
    thread = None

    @property
    def hold_s(self):
        type(self).thread = threading.current_thread()
        return self.seconds


def test_holds_are_asked_for_beside_the_loop_and_overtake_moments(bench, release):
    runner = bench.start(stuck=stuck_hook(release), holds=Holds, none=type("None_", (Holds,), {"seconds": 0}))
    runner.observe(JOINED)
    bench.until(lambda: bench.hooks["stuck"].seen)
    runner.observe(STOPPED)
    runner.ask_holds(bench.hear)
    assert bench.answers == []
    release.set()
    bench.until(lambda: bench.answers)
    assert bench.answers == [({"holds": 2.0},)]
    assert bench.answer_threads == {threading.current_thread()}
    assert Holds.thread is not threading.current_thread()
    bench.until(lambda: STOPPED in bench.hooks["stuck"].seen)


def test_without_a_hook_that_holds_the_answer_comes_at_once(bench):
    bench.start(other=Recorder).ask_holds(bench.hear)
    assert bench.answers == [({},)]


def test_a_hold_that_blocks_is_abandoned_at_the_deadline(bench, release):
    class Blocks(Holds):
        @property
        def hold_s(self):
            release.wait(PATIENCE_S)
            return 5.0

    bench.start(deadline_s=DEADLINE_S, blocks=Blocks, holds=Holds).ask_holds(bench.hear)
    bench.until(lambda: bench.answers)
    assert bench.answers == [({"holds": 2.0},)]
    (line,) = bench.lines
    told = r"hook 'blocks' \(fake-blocks 1\): hold_s has not returned after (.*) s; it is off for the rest of the run"
    took_s = float(re.fullmatch(told, line)[1])
    assert took_s >= DEADLINE_S
    kept(took_s, 1.0)


@pytest.mark.parametrize("value", ["long", -1, float("nan"), float("inf"), None, True, 1e300])
def test_a_hold_of_no_length_is_told_and_holds_nothing(bench, value):
    bench.start(odd=type("Odd", (Holds,), {"seconds": value}), holds=Holds).ask_holds(bench.hear)
    bench.until(lambda: bench.answers)
    bench.until(lambda: bench.lines)
    assert bench.answers == [({"holds": 2.0},)]
    (line,) = bench.lines
    assert f"hook 'odd' (fake-odd 1): hold_s is {value!r}; expected a number of seconds" in line


def test_a_repeated_call_goes_on_after_it_has_raised(bench):
    seen = []

    class Watches(Holds):
        def on_agent_started(self, event):
            self.timer = self.run.call_every(0.01, self.look)

        def look(self):
            seen.append(threading.current_thread().name)
            raise ValueError("half a file")

    bench.start(watches=Watches).observe(STARTED)
    bench.until(lambda: len(seen) >= 3)
    assert set(seen) == {"elastic-hooks"}
    assert len(bench.lines) == 1
    assert "a call that it had set raised ValueError: half a file" in bench.lines[0]
    bench.hooks["watches"].timer.cancel()
    end_s, count = time.monotonic() + 0.2, len(seen)
    bench.until(lambda: time.monotonic() > end_s)
    assert len(seen) <= count + 1  # one may have been under way


def test_the_loop_does_not_hold_a_cancelled_call_until_it_is_due(bench):
    class Look:
        def __call__(self):
            pass

    class Watches(Holds):
        def on_agent_started(self, event):
            looks = [Look(), Look()]
            self.looks = [weakref.ref(look) for look in looks]
            self.timers = [self.run.call_every(600.0, looks[0]), self.run.call_later(600.0, looks[1])]

    bench.start(watches=Watches).observe(STARTED)
    hook = bench.hooks["watches"]
    bench.until(lambda: hasattr(hook, "timers") and all(timer._timer is not None for timer in hook.timers))
    for timer in hook.timers:
        timer.cancel()
    del timer
    hook.timers.clear()
    bench.until(lambda: [gc.collect()] and [look() for look in hook.looks] == [None, None])


def test_a_repeated_call_that_is_under_way_is_not_made_again(bench, release):
    seen = []

    class Slow(Holds):
        def on_agent_started(self, event):
            self.run.call_every(0.01, self.look)
            self.run.call_later(0.1, lambda: None)

        def look(self):
            seen.append(1)
            release.wait(PATIENCE_S)

    bench.start(slow=Slow).observe(STARTED)
    bench.until(lambda: seen)
    end_s = time.monotonic() + 0.1
    bench.until(lambda: time.monotonic() > end_s)
    assert len(bench.runner._tasks) <= 2
    release.set()
    bench.until(lambda: len(seen) >= 2)


def test_the_repeated_call_of_a_gate_that_was_stuck_is_made_again(bench, release):
    seen = []

    class Gate(Holds):
        powers = frozenset({Power.RUN, Power.REFUSAL})
        fail_closed = True

        def on_agent_started(self, event):
            self.run.call_every(0.05, lambda: seen.append(1))

        def on_joining(self, event):
            release.wait(PATIENCE_S)

    runner = bench.start(deadline_s=DEADLINE_S, gate=Gate)
    runner.observe(STARTED)
    bench.until(lambda: seen)
    runner.ask_join(RoundJoining(round_index=0), bench.hear)
    bench.until(lambda: bench.answers)
    count = len(seen)
    release.set()
    bench.until(lambda: len(seen) >= count + 2)
