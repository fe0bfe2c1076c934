"""What can be said of observers without a thread: nobody is woken for nothing, and what they may not set."""

from types import SimpleNamespace

import pytest

from elastic_core.hooks.handler import AgentHook, Power, notices_of
from elastic_core.hooks.launches import fault_of_variable
from elastic_core.hooks.members import METHODS, MOST_LINES, NamedHook
from elastic_core.hooks.runner import HookRunner
from elastic_core.moments import AgentStopped, RoundJoining, WorkersStarting
from elastic_core.types import HookSettings, Round
from support import Lines

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


def never(*args):
    raise AssertionError("nothing to post, no timer, no line")


class Deaf(AgentHook):
    """Overrides nothing."""


@pytest.mark.parametrize(
    "hooks", [[], [NamedHook(name="deaf", distribution="d", hook=Deaf(HookSettings(name="deaf")))]]
)
def test_without_anybody_to_ask_answers_come_at_once(hooks):
    runner = HookRunner(hooks, post=never, call_later=never, log=never)
    heard = []
    runner.ask_join(RoundJoining(round_index=0), lambda *answer: heard.append(answer))
    runner.ask_start(WorkersStarting(round=ROUND, restart_count=0), lambda *answer: heard.append(answer))
    runner.observe(AgentStopped(exit_code=0, reason=""))
    runner.close()
    runner.close()
    assert heard == [(None, ""), ((), None, "")]


def test_every_method_of_a_hook_has_its_moment():
    assert {*METHODS.values(), "on_moment"} == {name for name in vars(AgentHook) if name.startswith("on_")}


@pytest.mark.parametrize(
    "name",
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "ELASTIC_X"],
)
def test_variables_that_say_what_a_worker_is_are_reserved(name):
    assert "reserved" in fault_of_variable(name, "1")


@pytest.mark.parametrize(
    ("name", "value"), [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0"), (5, "x"), ("A", 5), ("A", None)]
)
def test_what_an_environment_cant_hold_is_refused(name, value):
    assert fault_of_variable(name, value)


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "RANKS", "GROUP_OF_MINE", "CUDA_VISIBLE_DEVICES"])
def test_other_variables_are_free(name):
    assert fault_of_variable(name, "") == ""


class Slow(AgentHook):
    def on_agent_stopped(self, event):
        raise AssertionError("no thread is to be had")


def test_moments_wait_for_a_slow_hook_up_to_a_bound(monkeypatch):
    monkeypatch.setattr("elastic_core.hooks.runner.MOST_WAITING", 3)
    monkeypatch.setattr(HookRunner, "_start_thread", lambda self: None)
    lines = Lines()
    named = NamedHook(name="slow", distribution="d", hook=Slow(HookSettings(name="slow")))
    runner = HookRunner([named], post=never, call_later=lambda delay_s, callback: None, log=lines)
    for _ in range(10):
        runner.observe(AgentStopped(exit_code=0, reason=""))
    assert len(runner._tasks) == 3
    runner.close(timeout_s=0)
    assert lines == [
        "hooks slow: not notified of the end, because other hooks took too long",
        "hooks were not called for 7 moments: they were too slow",
    ]


class Late(AgentHook):
    """Speaks at the very end."""

    powers = frozenset({Power.RUN})
    api_version = 1

    def on_agent_stopped(self, event):
        self.run.notice("goodbye", named=False)


def test_a_line_that_comes_when_the_loop_has_ended_is_shown():
    lines = Lines()
    named = NamedHook(name="late", distribution="d", hook=Late(HookSettings(name="late")))
    runner = HookRunner(
        [named],
        post=lambda call: None,  # nobody makes a turn any more
        call_later=lambda delay_s, call: None,
        log=lines,
        actions=object(),
    )
    named.hook.run.notice("the end is near")
    runner.observe(AgentStopped(exit_code=0, reason=""))
    runner.close()
    assert lines == ["late: the end is near", "goodbye"]


def test_a_flood_of_lines_is_cut_and_counted():
    lines, timers, now_s = Lines(), [], [100.0]
    named = [NamedHook(name=name, distribution="d", hook=Late(HookSettings(name=name))) for name in ("flood", "calm")]
    runner = HookRunner(
        named,
        post=lambda call: call(),
        call_later=lambda delay_s, call: timers.append((delay_s, call)),
        log=lines,
        clock=SimpleNamespace(monotonic_s=lambda: now_s[0]),
        actions=object(),
    )
    flood, calm = (each.hook.run for each in named)
    for number in range(5000):
        flood.notice(f"{number}")
    calm.notice("another hook's")
    assert lines[-2:] == ["flood: 999", "calm: another hook's"]
    assert len(lines) == MOST_LINES + 1
    ((delay_s, count),) = timers
    now_s[0] += delay_s
    count()
    assert lines[MOST_LINES + 1 :] == ["hook 'flood' (d): 4000 lines were left out: more than 1000 within 10 s"]
    for number in range(MOST_LINES + 5):
        flood.notice(f"again {number}")
    runner.close()
    assert lines[-2:] == ["flood: again 999", "hook 'flood' (d): 5 lines were left out: more than 1000 within 10 s"]
    count()
    assert len(timers) == 2
    assert len(lines) == 2 * MOST_LINES + 3


@pytest.mark.parametrize(
    ("notices", "lines"),
    [
        (["a", "b"], ("a", "b")),
        ("a line", ("Late has notices 'a line'; expected a list of lines",)),
        ([5], ("Late has notices [5]; expected a list of lines",)),
        (None, ("Late has notices None; expected a list of lines",)),
    ],
)
def test_lines_for_the_user_are_lines(notices, lines):
    hook = Late(HookSettings(name="late"))
    hook.notices = notices
    assert notices_of(hook) == lines
