"""The feed of a run for hooks: in order, on threads of their own, and never felt by the agent."""

import threading

import pytest

from elastic_core import messages as m
from elastic_core import moments
from elastic_core.agent.feed import StepTaken, StoreCall, StoreReachable, described
from elastic_core.agent.machine.states import Created, Step
from elastic_core.api import AgentHook, HookSettings, Phase, Power
from elastic_core.hooks import feed as feed_module
from elastic_core.hooks.feed import HookFeed
from elastic_core.hooks.members import NamedHook, hook_feed
from elastic_core.hooks.runner import HookRunner
from elastic_core.plugin_faults import PluginLabel
from elastic_plugin_kit import sample_failure, sample_round
from support import wait_for


class Taker(AgentHook):
    api_version = 2
    powers = frozenset({Power.FEED})

    def __init__(self, settings):
        super().__init__(settings)
        self.events = []
        self.threads = set()

    def on_run_event(self, event):
        self.threads.add(threading.current_thread())
        self.events.append(event)

    @property
    def names(self):
        return [event.name for event in self.events]


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


def feed_for(*hooks):
    lines = []
    takers = [(PluginLabel("hook", f"hook{index}", f"acme {index}"), hook) for index, hook in enumerate(hooks)]
    return HookFeed(takers, post=lambda call: None, notice=lines.append), lines


def make(cls=Taker):
    return cls(HookSettings(name="x"))


def test_each_hook_gets_all_of_it_in_order_on_a_thread_of_its_own():
    one, other = make(), make()
    feed, lines = feed_for(one, other)
    assert feed.wanted
    for index in range(100):
        feed.publish("step", {"index": index})
    feed.close()
    for hook in (one, other):
        assert hook.names == ["step"] * 100 + ["feed_closed"]
        assert [event.values["index"] for event in hook.events[:-1]] == list(range(100))
        assert len(hook.threads) == 1
    assert one.threads.isdisjoint(other.threads)
    times = [(event.at_s, event.at_ns) for event in one.events]
    assert times == sorted(times)
    assert lines == []


def test_nothing_is_started_or_kept_without_a_hook_that_takes_it():
    feed, _ = feed_for()
    feed.publish("step", {})
    assert not feed.wanted
    feed.close()


def test_a_hook_leaves_out_the_events_that_its_class_names():
    class Leaves(Taker):
        without_events = frozenset({"store_call", "feed_closed"})

    class Wrong(Taker):
        without_events = 5

    hook, wrong = make(Leaves), make(Wrong)
    feed, _ = feed_for(hook)
    assert (feed.takes("step"), feed.takes("store_call")) == (True, False)
    feed.publish("store_call", {})
    feed.publish("step", {})
    feed.close(run_dir_kept=True)
    assert hook.names == ["step", "feed_closed"]
    assert hook.events[-1].values == {"run_dir_kept": True}
    assert feed_for(wrong)[0].takes("store_call")


def test_after_the_end_there_is_nothing_more():
    hook = make()
    feed, _ = feed_for(hook)
    feed.close()
    feed.publish("late", {})
    feed.close()
    assert hook.names == ["feed_closed"]


def test_what_a_hook_adds_is_for_the_others():
    one, other = make(), make()
    feed, _ = feed_for(one, other)
    feed.publish("temperature", {"celsius": 41}, source="hook0")
    feed.close()
    assert (one.names, other.names) == (["feed_closed"], ["temperature", "feed_closed"])
    assert (other.events[0].source, other.events[0].values) == ("hook0", {"celsius": 41})


def test_one_that_raises_three_times_in_a_row_gets_no_more():
    hook, other = make(Raises), make()
    feed, lines = feed_for(hook, other)
    for _ in range(10):
        feed.publish("step", {})
    feed.close()
    assert len(hook.events) == 3
    assert len(other.events) == 11
    line = Raises.on_run_event.__code__.co_firstlineno + 2
    fault = f"ConnectionError: nobody there (test_feed.py:{line} in on_run_event)"
    assert lines == [
        f"hook 'hook0' (acme 0): on_run_event raised {fault}",
        f"hook 'hook0' (acme 0): on_run_event raised {fault}; it gets no more of the feed",
    ]


def test_a_slow_one_loses_events_and_holds_up_neither_the_agent_nor_others(monkeypatch):
    monkeypatch.setattr(feed_module, "MOST_WAITING", 5)
    monkeypatch.setattr(feed_module, "CLOSE_LIMIT_S", 0.0)
    slow, other = make(Waits), make()
    feed, lines = feed_for(slow, other)
    feed.publish("first", {})
    wait_for(lambda: slow.events and other.events)
    for index in range(9):
        feed.publish("step", {})
        wait_for(lambda index=index: len(other.events) == index + 2)
    feed.close()
    assert lines[0] == "hook 'hook0' (acme 0): on_run_event has not returned; the run ends without it"
    assert "hook 'hook0' (acme 0): 4 events of the feed were left out: it was too slow" in lines
    slow.go_on.set()
    wait_for(lambda: slow.names[-1] == "feed_closed")
    assert slow.names == ["first", *["step"] * 5, "feed_closed"]


def test_a_hook_that_is_off_gets_no_more():
    hook = make()
    feed, _ = feed_for(hook)
    feed.leave_out(hook)
    feed.publish("step", {})
    feed.close()
    assert hook.names == []


def test_the_runner_gives_it_to_hooks_with_the_power_only_and_shows_their_lines_to_the_end():
    class Speaks(Taker):
        powers = frozenset({Power.FEED, Power.RUN})

        def on_run_event(self, event):
            super().on_run_event(event)
            self.run.notice(f"got {event.name}", named=False)

    class Other(AgentHook):
        api_version = 2

        def on_run_event(self, event):
            raise AssertionError("it does not have the power")

    hooks = [NamedHook(name=cls.__name__, distribution="d 1", hook=make(cls)) for cls in (Speaks, Other)]
    lines = []
    feed = hook_feed(hooks, post=lambda call: None, notice=lines.append)
    runner = HookRunner(
        hooks,
        post=lambda call: None,
        call_later=lambda delay_s, call: None,
        log=lines.append,
        actions=object(),
        feed=feed,
    )
    feed.publish("step", {})
    runner.close()
    runner.close_feed()
    assert lines == ["got step", "got feed_closed"]


@pytest.mark.parametrize(
    ("what", "name", "values"),
    [
        (StoreReachable(reachable=False, text="away"), "store_reachable", {"reachable": False, "text": "away"}),
        (
            StoreCall(call="renew", took_s=0.5, failed=True),
            "store_call",
            {"call": "renew", "took_s": 0.5, "failed": True},
        ),
        (moments.Joining(round_index=3), "joining", {"round_index": 3}),
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
    formed = StepTaken(event=m.RoundFormed(round=sample_round()), step=Step(state=Created()), at_s=2.0, entered=False)
    assert described(formed)[1]["round"] == sample_round()
