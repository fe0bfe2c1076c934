"""What hooks have taken is given back at the end, once, by those that may."""

from elastic_core.hooks.closing import close_hooks
from elastic_core.hooks.handler import AgentHook
from elastic_core.hooks.runner import NamedHook
from elastic_core.types import HookSettings


class Newer(AgentHook):
    api_version = 2

    def __init__(self, settings):
        super().__init__(settings)
        self.calls = []

    def close(self):
        self.calls.append("close")
        raise ValueError("closed twice")


class Older(Newer):
    api_version = 1


def named(hook):
    return NamedHook(name="x", distribution="x 1", hook=hook)


def test_each_is_closed_whatever_another_raises():
    hooks = [Newer(HookSettings(name="x")) for _ in range(2)]
    close_hooks([named(hook) for hook in hooks])
    assert [hook.calls for hook in hooks] == [["close"], ["close"]]


def test_a_hook_of_version_1_has_no_such_end():
    hook = Older(HookSettings(name="x"))
    close_hooks([named(hook), named(AgentHook(HookSettings(name="x")))])
    assert hook.calls == []
