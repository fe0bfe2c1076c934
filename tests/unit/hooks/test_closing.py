"""What hooks have taken is given back at the end, once, by those that may."""

import threading

import pytest

from elastic_core.hooks.handler import AgentHook
from elastic_core.hooks.members import NamedHook, close_hooks
from elastic_core.types import HookSettings
from support import Lines


class Closes(AgentHook):
    api_version = 1

    def __init__(self, settings):
        super().__init__(settings)
        self.calls = []

    def close(self):
        self.calls.append("close")
        raise ValueError("closed twice")


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


def named(hook):
    return NamedHook(name="x", distribution="x 1", hook=hook)


def test_each_is_closed_whatever_another_raises():
    hooks, lines = [Closes(HookSettings(name="x")) for _ in range(2)], Lines()
    close_hooks([named(hook) for hook in hooks], log=lines)
    assert [hook.calls for hook in hooks] == [["close"], ["close"]]
    assert all(line.startswith("hook 'x' (x 1): close raised ValueError: closed twice (test_closing") for line in lines)


def test_one_that_does_not_return_is_named_and_left(release):
    class Hangs(Closes):
        def close(self):
            release.wait(60)

    lines = Lines()
    close_hooks([named(Hangs(HookSettings(name="x")))], log=lines, within_s=0.01)
    assert lines == ["hook 'x' (x 1): close has not returned after 0.01 s; the run ends without it"]
