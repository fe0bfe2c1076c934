"""What the kit for hooks says of one that changes what workers inherit, or writes to their stdout."""

import os
import subprocess

import pytest

from elastic_core.api import AgentHook, HookSettings
from elastic_plugin_kit import AgentHookConformance


def hook_that(does):
    class Changing(AgentHook):
        api_version = 1

        def on_agent_started(self, event):
            does()

    return Changing(HookSettings(name="changing"))


def write():
    os.write(1, b"GPU 0 is well\n")


CHANGES = {
    "changed PATH": lambda: os.environ.pop("PATH"),
    "changed ACME": lambda: os.environ.update(ACME="1"),
    "changed the working directory": lambda: os.chdir("/"),
    "changed the umask": lambda: os.umask(0o123),
    "wrote 'GPU 0 is well\\n' to stdout": lambda: print("GPU 0 is well"),
    "wrote 'GPU 0 is well\\n' to": write,
    "wrote 'GPU 0 is well\\n'": lambda: subprocess.run(["echo", "GPU 0 is well"], check=True),
}


@pytest.mark.parametrize("told", CHANGES)
def test_what_is_changed_is_named_and_put_back(told, tmp_path):
    before = dict(os.environ), os.getcwd(), os.umask(0o022)
    os.umask(before[2])
    with pytest.raises(AssertionError) as caught:
        AgentHookConformance().test_it_changes_nothing_around_it(lambda _: hook_that(CHANGES[told]), tmp_path)
    assert f"on_agent_started {told}" in str(caught.value)
    after = dict(os.environ), os.getcwd(), os.umask(before[2])
    assert after == before


def test_what_is_put_back_by_the_hook_itself_is_no_change(tmp_path):
    def do():
        os.environ["ACME"] = "1"
        del os.environ["ACME"]

    AgentHookConformance().test_it_changes_nothing_around_it(lambda _: hook_that(do), tmp_path)
