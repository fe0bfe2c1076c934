"""Hooks that start workers: whatever they do, workers start."""

import os
import subprocess
import sys

import pytest

from elastic_core.api import AgentHook, HookSettings, Power
from elastic_core.api.starters import StartedProcess, WorkerStart, WorkerStarter
from elastic_core.hooks.members import NamedHook
from elastic_core.hooks.starting import HookStarter, fault_of_process, hook_starters
from elastic_core.plugin_faults import LOOP_S, PluginLabel

WORKER = WorkerStart(local_rank=0, global_rank=0, argv=("x",), environment={})


class Loop:
    """As much of an agent's loop as is needed here."""

    own_process = True

    def __init__(self):
        self.lines = []
        self.notice = self.lines.append
        self.posted = []
        self.post = self.posted.append
        self.timers = []

    def call_later(self, delay_s, call):
        self.timers.append(Timer(delay_s, call))
        return self.timers[-1]


class Timer:
    """A call that a test makes."""

    def __init__(self, delay_s, call):
        self.delay_s = delay_s
        self.call = call
        self.cancelled = False

    def cancel(self):
        self.cancelled = True


class Clock:
    """A clock that a starter moves on."""

    now_s = 0.0

    def monotonic_s(self):
        return self.now_s


class Forks(WorkerStarter):
    """Starts a sleeping process, in a session of its own or not."""

    def __init__(self, *, session=True):
        self.session = session
        self.closed = False

    def start(self, worker):
        self.child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=self.session
        )
        return StartedProcess(pid=self.child.pid)

    def close(self):
        self.closed = True


def starter_of(made, clock=None):
    loop = Loop()
    starter = HookStarter(PluginLabel("hook", "acme"), loop, **({} if clock is None else {"clock": clock}))
    assert starter.make(lambda _: made)
    return starter, loop.lines


@pytest.fixture
def forks():
    made = []

    def make(**more):
        made.append(Forks(**more))
        return made[-1]

    yield make
    for one in made:
        one.child.kill()
        one.child.communicate()


def hook_of(starter, powers=frozenset({Power.STARTS})):
    members = {"api_version": 1, "powers": powers, "worker_starter": lambda self, loop: starter}
    return NamedHook(
        name="acme", distribution="acme 1", hook=type("Acme", (AgentHook,), members)(HookSettings(name=""))
    )


def test_only_hooks_with_the_power_start_workers():
    loop = Loop()
    hooks = [hook_of(WorkerStarter()), hook_of(WorkerStarter(), frozenset()), hook_of(None)]
    assert len(hook_starters(hooks, loop)) == 1
    assert not loop.lines


@pytest.mark.parametrize(
    ("made", "fault"), [(7, "answered int; expected a WorkerStarter or None"), ("raise", "raised ZeroDivisionError")]
)
def test_what_is_no_starter_is_left_alone_with_a_line(made, fault):
    loop = Loop()
    hook = hook_of(made)
    if made == "raise":
        type(hook.hook).worker_starter = lambda self, loop: 1 / 0
    assert hook_starters([hook], loop) == []
    (line,) = loop.lines
    assert line.startswith(f"hook 'acme' (acme 1): worker_starter {fault}")


def test_a_process_that_can_be_a_worker_is_taken(forks):
    forking = forks()
    starter, lines = starter_of(forking)
    started = starter.start(WORKER)
    assert started.pid == forking.child.pid
    assert not lines


def test_one_in_our_own_session_is_ended_and_the_starter_off(forks):
    forking = forks(session=False)
    starter, lines = starter_of(forking)
    assert starter.start(WORKER) is None
    pid = forking.child.pid
    fault = f"start gave process {pid}, which leads no session of its own"
    assert lines == [f"hook 'acme': {fault}; workers are started without it from now on"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert starter.start(WORKER) is None
    assert len(lines) == 1
    starter.close()
    assert forking.closed


@pytest.mark.parametrize(
    ("started", "fault"),
    [
        (7, "gave int; expected a StartedProcess or None"),
        (StartedProcess(pid=0), "gave 0 for a process"),
        (StartedProcess(pid="7"), "gave '7' for a process"),
        (StartedProcess(pid=os.getpid()), "which is no child of the agent"),
        (StartedProcess(pid=1 << 30, reap=lambda: None), "which is not there"),
    ],
)
def test_what_can_be_no_worker_is_told(started, fault):
    assert fault in fault_of_process(started, terminal=False)


def test_one_that_keeps_the_terminal_leads_no_session(forks):
    forking = forks(session=False)
    assert fault_of_process(forking.start(WORKER), terminal=True) == ""


class Prepares(WorkerStarter):
    """Keeps what it is to call."""

    def prepare(self, count, done):
        self.count = count
        self.done = done


def test_workers_wait_for_a_starter_that_prepares():
    loop, made, done = Loop(), Prepares(), []
    starter = HookStarter(PluginLabel("hook", "acme"), loop)
    starter.make(lambda _: made)
    starter.prepare(8, lambda: done.append(1))
    assert made.count == 8
    assert not loop.posted
    made.done()
    made.done()
    (call,) = loop.posted  # the agent's own code is not called by the hook
    call()
    assert done == [1]
    (timer,) = loop.timers
    assert timer.cancelled


def test_but_no_longer_than_five_minutes():
    loop, made, done = Loop(), Prepares(), []
    starter = HookStarter(PluginLabel("hook", "acme"), loop)
    starter.make(lambda _: made)
    starter.prepare(8, lambda: done.append(1))
    (timer,) = loop.timers
    assert timer.delay_s == 300
    timer.call()
    made.done()
    (call,) = loop.posted
    call()
    assert done == [1]
    fault = "prepare was not done within 300 s; workers are started without it from now on"
    assert loop.lines == [f"hook 'acme': {fault}"]


def test_nor_for_one_that_is_off_or_does_not_prepare():
    loop, done = Loop(), []
    starter = HookStarter(PluginLabel("hook", "acme"), loop)
    starter.make(lambda _: WorkerStarter())
    starter.prepare(1, lambda: done.append(1))
    starter.make(lambda _: 1 / 0)
    starter.prepare(1, lambda: done.append(2))
    for call in loop.posted:
        call()
    assert done == [1, 2]
    assert all(timer.cancelled for timer in loop.timers)


@pytest.mark.parametrize(
    "method", ["prepare", "start", "round_started", "round_stopping", "worker_ended", "pids", "close"]
)
@pytest.mark.parametrize("how", ["raises", "is late"])
def test_one_that_fails_in_whichever_call_is_off(method, how):
    clock = Clock()

    def call(self, *args):
        if how == "raises":
            raise OSError("no such image")
        clock.now_s += LOOP_S
        return () if method == "pids" else None

    starter, lines = starter_of(type("Fails", (WorkerStarter,), {method: call})(), clock)
    args = {"prepare": (1, list), "start": (WORKER,), "worker_ended": (os.getpid(),)}.get(method, ())
    answer = getattr(starter, method)(*args)
    assert answer == (frozenset() if method == "pids" else None)
    fault = "raised OSError: no such image" if how == "raises" else "held the agent up for 5.0 s"
    place = f" (test_starting.py:{call.__code__.co_firstlineno + 2} in call)" if how == "raises" else ""
    assert lines[0] == f"hook 'acme': {method} {fault}{place}; workers are started without it from now on"
    assert starter.start(WORKER) is None


# --- workers that leave a round


class Keeps(WorkerStarter):
    def __init__(self, answer=True):
        self.answer = answer

    def keep(self, worker, *, within_s, planned):
        self.asked = worker, within_s, planned
        return self.answer


def test_a_starter_that_keeps_workers_is_called_before_others():
    class Hook(AgentHook):
        api_version = 1
        powers = frozenset({Power.STARTS})

        def __init__(self, starter):
            self.starter = starter

        def worker_starter(self, loop):
            return self.starter

    hooks = [
        NamedHook(name=name, distribution="acme 1", hook=Hook(starter))
        for name, starter in (("a", Forks()), ("warm", Keeps()))
    ]
    assert [starter.keeps for starter in hook_starters(hooks, Loop())] == [True, False]


def test_its_answer_counts_unless_it_is_off():
    made = Keeps()
    starter, lines = starter_of(made)
    assert starter.keep("worker", within_s=1.0, planned=False)
    assert made.asked == ("worker", 1.0, False)
    made.answer = "yes"
    assert not starter.keep("worker", within_s=1.0, planned=False)
    assert lines == [
        "hook 'acme': keep answered str; expected True or False; workers are started without it from now on"
    ]
    made.answer = True
    assert not starter.keep("worker", within_s=1.0, planned=False)


def test_one_whose_keep_raises_is_off():
    starter, lines = starter_of(Keeps())
    starter._starter.keep = lambda *args, **more: 1 / 0
    assert not starter.keep("worker", within_s=1.0, planned=False)
    assert "keep raised ZeroDivisionError" in lines[0]
