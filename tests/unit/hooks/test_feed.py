"""The feed of a run for hooks: numbered, in order, on the thread of all hooks, and never felt by the agent."""

import threading

import pytest

from elastic_core import messages as m
from elastic_core import moments
from elastic_core.agent.feed import StepTaken, described
from elastic_core.agent.machine.states import Created, Step
from elastic_core.api import AgentHook, AgentStopped, HookSettings, Power, RoundJoined
from elastic_core.api.feed import Phase
from elastic_core.api.rendezvous import RosterMember
from elastic_core.hooks import runner as runner_module
from elastic_core.hooks.members import NamedHook
from elastic_core.hooks.runner import HookRunner
from elastic_plugin_kit import sample_failure, sample_round
from support import Lines, wait_for


class Taker(AgentHook):
    api_version = 1
    powers = frozenset({Power.FEED})

    def __init__(self, settings):
        super().__init__(settings)
        self.events = []
        self.threads = set()

    def on_run_event(self, event):
        self.threads.add(threading.current_thread())
        self.events.append(event)

    def on_agent_stopped(self, event):
        self.events.append(event)

    @property
    def names(self):
        return [getattr(event, "name", "agent_stopped") for event in self.events]


class Raises(Taker):
    def on_run_event(self, event):
        super().on_run_event(event)
        raise ConnectionError("nobody there")


class Waits(Taker):
    def __init__(self, settings):
        super().__init__(settings)
        self.go_on = threading.Event()

    def on_run_event(self, event):
        super().on_run_event(event)
        self.go_on.wait(60)


def runner_for(*hooks):
    lines = Lines()
    named = [NamedHook(name=f"hook{at}", distribution=f"acme {at}", hook=hook) for at, hook in enumerate(hooks)]
    runner = HookRunner(
        named,
        post=lambda call: call(),
        call_later=lambda delay_s, call: None,
        log=lines,
        actions=object(),
    )
    return runner, lines


def make(cls=Taker):
    return cls(HookSettings(name="x"))


def test_each_hook_gets_all_of_it_numbered_and_in_order_on_the_thread_of_all_hooks():
    one, other = make(), make()
    runner, lines = runner_for(one, other)
    assert runner.feeds
    for index in range(100):
        runner.publish("step", {"index": index})
    runner.close()
    for hook in (one, other):
        assert hook.names == ["step"] * 100 + ["feed_closed"]
        assert [event.values["index"] for event in hook.events[:-1]] == list(range(100))
        assert [event.number for event in hook.events] == list(range(1, 102))
    assert one.threads == other.threads
    assert [thread.name for thread in one.threads] == ["elastic-hooks"]
    times = [(event.at_s, event.at_ns) for event in one.events]
    assert times == sorted(times)
    assert lines == []


def test_nothing_is_started_or_kept_without_a_hook_that_takes_it():
    before = {*threading.enumerate()}  # one of a test before this one may not have ended yet
    runner, _ = runner_for()
    runner.publish("step", {})
    assert not runner.feeds
    assert before.issuperset(threading.enumerate())
    runner.close()


def test_a_hook_leaves_out_the_events_that_its_class_names():
    class Leaves(Taker):
        without_events = frozenset({"store_call", "feed_closed"})

    class Wrong(Taker):
        without_events = 5

    hook, wrong = make(Leaves), make(Wrong)
    runner, _ = runner_for(hook, wrong)
    runner.publish("store_call", {})
    runner.publish("step", {})
    runner.close(run_dir_kept=lambda: True)
    assert hook.names == ["step", "feed_closed"]
    assert [event.number for event in hook.events] == [2, 3]
    assert hook.events[-1].values == {"run_dir_kept": True}
    assert wrong.names == ["store_call", "step", "feed_closed"]


def test_the_store_is_measured_where_a_hook_takes_its_calls():
    class Leaves(Taker):
        without_events = frozenset({"store_call"})

    named = [NamedHook(name="x", distribution="acme 1", hook=make(cls)) for cls in (Taker, Leaves, AgentHook)]
    assert [each.takes_event("store_call") for each in named] == [True, False, False]


def test_after_the_end_there_is_nothing_more():
    hook = make()
    runner, _ = runner_for(hook)
    runner.close()
    runner.publish("late", {})
    runner.close()
    assert hook.names == ["feed_closed"]


def test_what_a_hook_adds_is_for_the_others():
    class Adds(Taker):
        powers = frozenset({Power.FEED, Power.RUN})

    one, other = make(Adds), make()
    runner, _ = runner_for(one, other)
    one.run.record("temperature", {"celsius": 41})
    runner.close()
    assert (one.names, other.names) == (["feed_closed"], ["temperature", "feed_closed"])
    assert (other.events[0].source, other.events[0].values) == ("hook0", {"celsius": 41})


def test_one_that_raises_three_times_in_a_row_gets_no_more():
    hook, other = make(Raises), make()
    runner, lines = runner_for(hook, other)
    for _ in range(10):
        runner.publish("step", {})
    runner.observe(AgentStopped(exit_code=0, reason=""))
    runner.close()
    assert [name for name in hook.names if name != "agent_stopped"] == ["step"] * 3
    assert "agent_stopped" in hook.names
    assert other.names.count("step") == 10
    line = Raises.on_run_event.__code__.co_firstlineno + 2
    fault = f"ConnectionError: nobody there (test_feed.py:{line} in on_run_event)"
    assert lines == [
        f"hook 'hook0' (acme 0): on_run_event raised {fault}",
        f"hook 'hook0' (acme 0): on_run_event raised {fault}; it gets no more of the feed",
    ]


def test_events_beyond_a_bound_are_left_out_and_moments_overtake_those_that_wait(monkeypatch):
    monkeypatch.setattr(runner_module, "MOST_EVENTS", 5)
    slow = make(Waits)
    runner, lines = runner_for(slow)
    runner.publish("first", {})
    wait_for(lambda: slow.events)
    for _ in range(8):
        runner.publish("step", {})
    runner.observe(AgentStopped(exit_code=0, reason=""))
    slow.go_on.set()
    runner.close()
    assert slow.names == ["first", "agent_stopped", *["step"] * 4, "feed_closed"]
    assert [event.number for event in slow.events if event.__class__ is not AgentStopped] == [1, 2, 3, 4, 5, 10]
    assert lines == ["hooks were not called for 4 moments: they were too slow"]


def test_one_that_does_not_return_is_left_behind_at_the_end_and_the_others_go_on():
    slow, other = make(Waits), make()
    runner, lines = runner_for(slow, other)
    runner.publish("step", {})
    wait_for(lambda: slow.events)
    runner.close(0.2)
    assert lines[0].startswith("hook 'hook0' (acme 0): on_run_event has not returned after ")
    assert lines[0].endswith("; the run ends without it")
    assert other.names[-1] == "feed_closed"
    slow.go_on.set()


def test_only_hooks_with_the_power_get_it_and_their_lines_are_shown_to_the_end():
    class Speaks(Taker):
        powers = frozenset({Power.FEED, Power.RUN})

        def on_run_event(self, event):
            self.run.notice(f"got {event.name}", named=False)

    class Other(AgentHook):
        api_version = 1

        def on_run_event(self, event):
            raise AssertionError("it does not have the power")

    runner, lines = runner_for(make(Speaks), make(Other))
    runner.publish("step", {})
    runner.close()
    assert lines == ["got step", "got feed_closed"]


@pytest.mark.parametrize(
    ("what", "name", "values"),
    [
        (moments.StoreReachable(reachable=False, text="away"), "store_reachable", {"reachable": False, "text": "away"}),
        (
            moments.StoreCall(call="renew", took_s=0.5, failed=True),
            "store_call",
            {"call": "renew", "took_s": 0.5, "failed": True},
        ),
        (moments.RoundJoining(round_index=3), "round_joining", {"round_index": 3}),
    ],
)
def test_what_happens_has_the_name_and_the_fields_of_its_record(what, name, values):
    assert described(what) == (name, values)


def test_a_step_has_its_events_fields_and_what_it_led_to():
    phase = Phase(name="rendezvous", took_s=1.0, well=True)
    hung = StepTaken(
        event=m.HangFound(failure=sample_failure()), step=Step(state=Created()), at_s=2.0, entered=True, phases=(phase,)
    )
    name, values = described(hung)
    assert (name, values["event"], values["state"], values["entered"]) == ("step", "HangFound", "created", True)
    assert (values["failure"], values["phases"]) == (sample_failure(), (phase,))
    counts = (values["state_reason"], values["restart_count"], values["membership_changes"])
    assert counts == (hung.step.reason, 0, 0)
    members = (RosterMember(node_id="n0", local_world_size=2),)
    event = m.RoundFormed(round=sample_round(), members=members)
    name, values = described(StepTaken(event=event, step=Step(state=Created()), at_s=2.0, entered=False))
    assert (values["round"], "members" in values) == (sample_round(), False)  # up to a thousand: only once
    assert described(RoundJoined(round=sample_round(), members=members))[1]["members"] == members
