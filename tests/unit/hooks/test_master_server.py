"""Servers that hooks host at MASTER_PORT: which is asked, and that whatever they do a round gets its answer."""

import pytest

from elastic_core.api import AgentHook, HookSettings, Power
from elastic_core.api.starters import MasterServer
from elastic_core.api.stores import BackendUnavailableError
from elastic_core.hooks.master_server import ANSWER_S, MasterServers
from elastic_core.hooks.members import NamedHook
from elastic_core.plugin_faults import LOOP_S


class Timer:
    cancelled = False

    def cancel(self):
        self.cancelled = True


class Loop:
    """As much of an agent's loop as is needed here."""

    own_process = True

    def __init__(self):
        self.lines, self.later, self.posted = [], [], []
        self.notice, self.post = self.lines.append, self.posted.append

    def call_later(self, delay_s, call):
        timer = Timer()
        self.later.append((delay_s, call, timer))
        return timer


class Clock:
    """A clock that a server moves on."""

    now_s = 0.0

    def monotonic_s(self):
        return self.now_s


class Server(MasterServer):
    """Notes what it is asked for; answers at once, or when the test has it."""

    def __init__(self, answer=True):
        self.answer = answer
        self.asked, self.waiting = [], []

    def prepare(self):
        self.asked.append("prepare")

    def unused(self, reason):
        self.asked.append(reason)

    def open(self, port, done):
        self.asked.append(port)
        self._answer(done)

    def shut(self, done):
        self.asked.append("shut")
        self._answer(done)

    def _answer(self, done):
        if self.answer is True:
            done(None)
        else:
            self.waiting.append(done)

    def pids(self):
        return {7}

    def close(self):
        self.asked.append("close")


class Hook(AgentHook):
    """Hosts with the server that it is given."""

    api_version = 1
    powers = frozenset({Power.HOSTS})

    def __init__(self, server, *, hosting=True):
        super().__init__(HookSettings(name="acme"))
        self.server = server
        self.hosting = hosting

    def master_server(self, loop):
        if isinstance(self.server, Exception):
            raise self.server
        return self.server


def named(hook, name="acme"):
    return NamedHook(name=name, distribution="acme 1.0", hook=hook)


@pytest.fixture
def loop():
    return Loop()


def servers(loop, *hooks, **more):
    return MasterServers([named(hook) for hook in hooks], loop, **more)


def test_the_first_that_hosts_is_asked(loop):
    idle, first, second = Server(), Server(), Server()
    made = servers(loop, Hook(idle, hosting=False), Hook(first), Hook(second))
    answers = []
    made.prepare()
    made.shut(answers.append)
    made.open(5, answers.append)
    assert (idle.asked, first.asked, second.asked) == ([], ["prepare", "shut", 5], [])
    assert (answers, made.hosting, made.pids()) == ([None, None], True, {7})
    assert all(timer.cancelled for _, _, timer in loop.later)


def test_a_hook_may_begin_to_host_while_the_run_goes_on(loop):
    hook, answers = Hook(Server(), hosting=False), []
    made = servers(loop, hook)
    made.open(5, answers.append)
    assert (answers, made.hosting, hook.server.asked) == ([None], False, [])
    hook.hosting = True
    made.open(6, answers.append)
    assert (answers, made.hosting, hook.server.asked) == ([None, None], True, [6])


def test_an_answer_is_waited_for_and_counts_once(loop):
    hook, answers = Hook(Server(answer=False)), []
    servers(loop, hook).open(5, answers.append)
    assert answers == []
    error = BackendUnavailableError("port taken")
    hook.server.waiting[0](error)
    hook.server.waiting[0](None)
    assert answers == [error]


def test_one_that_never_answers_ends_the_wait_with_its_name(loop):
    answers = []
    servers(loop, Hook(Server(answer=False))).open(5, answers.append)
    [(delay_s, call, _)] = loop.later
    assert delay_s == ANSWER_S
    call()
    assert str(answers[0]) == "hook 'acme' (acme 1.0): open has not answered within 300 s"


class Raises(Server):
    """Breaks when a round begins."""

    def open(self, port, done):
        raise KeyError("port")


def test_one_that_raises_is_off_and_the_round_goes_on_without(loop):
    hook, answers = Hook(Raises()), []
    made = servers(loop, hook)
    made.open(5, answers.append)
    assert answers == [None]
    assert not made.hosting
    assert hook.server.asked == ["close"]
    [line] = loop.lines
    assert line.startswith("hook 'acme' (acme 1.0): open raised KeyError: 'port'")
    assert line.endswith("; rank 0's worker hosts what workers meet at")


def test_what_follows_an_answer_is_no_call_of_the_hooks(loop):
    def go_on(error):
        raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        servers(loop, Hook(Server())).open(5, go_on)
    assert loop.lines == []


def test_one_that_holds_the_agent_up_is_off(loop):
    clock = Clock()

    class Slow(Server):
        """Takes its time."""

        def prepare(self):
            clock.now_s += LOOP_S

    made = servers(loop, Hook(Slow()), clock=clock)
    made.prepare()
    assert not made.hosting
    assert "prepare held the agent up for 5.0 s" in loop.lines[0]


@pytest.mark.parametrize(
    ("given", "fault"),
    [(ValueError("no"), "raised ValueError: no"), (7, "answered int; expected a MasterServer or None")],
)
def test_a_hook_that_gives_none_is_off(loop, given, fault):
    made = servers(loop, Hook(given))
    assert not made.hosting
    assert f"master_server {fault}" in loop.lines[0]


def test_a_rendezvous_with_a_store_of_its_own_leaves_all_alone(loop):
    hook, answers = Hook(Server()), []
    made = servers(loop, hook)
    made.leave("'c10d' has a store of its own")
    made.open(5, answers.append)
    assert (answers, hook.server.asked, made.hosting) == ([None], ["'c10d' has a store of its own"], False)


def test_a_hook_that_cant_say_whether_it_hosts_does_not(loop):
    class Raises(Hook):
        hosting = property(lambda self: 1 / 0, lambda self, value: None)

    made = servers(loop, Raises(Server()))
    assert made.hosting is False
    assert len(loop.lines) == 1
    assert "hosting raised ZeroDivisionError: division by zero" in loop.lines[0]
