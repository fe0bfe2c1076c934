"""The kit for commands: our own pass it, and it names what is wrong with others."""

import importlib

import pytest

from elastic_plugin_kit import CommandConformance


class TestStatus(CommandConformance):
    entry_point = "elastic_ops.status.command:command"


class TestIncidents(CommandConformance):
    entry_point = "elastic_ops.incidents.command:command"


class TestCtl(CommandConformance):
    entry_point = "elastic_ops.ctl.command:command"


class TestPolicy(CommandConformance):
    entry_point = "elastic_policy_rules.trial.command:command"


SOUND = '''"""Greet somebody."""
import click
api_version = 1
class Greet(click.Command):
    pass
command = Greet("greet", callback=lambda: 0)
'''
BROKEN = {
    "test_the_module_states_its_api_version": ("api_version = 1", "api_version = 99"),
    "test_the_module_begins_with_a_line_of_help": ("Greet somebody.", "Greet " + "somebody " * 20),
    "test_help_can_be_shown": ("pass", "get_help = None"),
}


@pytest.mark.parametrize("test", sorted(BROKEN))
def test_what_is_wrong_is_found(tmp_path, monkeypatch, test):
    monkeypatch.syspath_prepend(str(tmp_path))

    def ask(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        kit = type("TestGreeting", (CommandConformance,), {"entry_point": f"{name}:command"})()
        getattr(kit, test)(importlib.import_module(name).command)

    ask(f"sound_{test}", SOUND)
    with pytest.raises(AssertionError):
        ask(f"broken_{test}", SOUND.replace(*BROKEN[test]))
