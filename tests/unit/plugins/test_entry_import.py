"""Plugins that are named by where their class is, and options of hooks on the command line."""

import sys
import textwrap

import pytest

from elastic_core.errors import ConfigError, PluginError
from elastic_core.plugins.discovery import FAILURE_GROUP, HOOKS_GROUP, RENDEZVOUS_GROUP
from elastic_core.plugins.entry_import import entry_at
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.types import HookSettings, PolicySettings, RendezvousSettings

SOURCE = """
    from elastic_core.api import *
    class Policy(FailureHandler):
        api_version = 1
        options = (OptionSpec(name="pause", type="duration", default=1),)
        def decide(self, failure, history):
            return Stop(reason="enough")
    class Old(FailureHandler):
        api_version = 99
        def decide(self, failure, history): ...
    class Ancient(Old):
        api_version = 0
    class Solo(RendezvousHandler):
        api_version = 1
        def next_rendezvous(self):
            return RendezvousInfo(rank=0, world_size=1)
    class Diary(AgentHook):
        api_version = 1
        options = (
            OptionSpec(name="path", required=True),
            OptionSpec(name="every", type="duration", default=2, least=1),
            OptionSpec(name="ranks", type="int", many=True),
        )
        class Inner(AgentHook):
            api_version = 1
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_here.py").write_text(textwrap.dedent(SOURCE))
    yield tmp_path
    sys.modules.pop("mine_here", None)


def make_policy(name, conf=None):
    return PluginRegistry().make_policy(name, PolicySettings(name=name), conf or {})


def test_a_policy_is_found_in_the_working_directory_with_its_options(here):
    policy = make_policy("mine_here:Policy", {"pause": "2m"})
    assert policy.settings.option("pause", float) == 120.0
    assert sys.path[0] == str(here)
    make_policy("mine_here:Policy")
    assert sys.path.count(str(here)) == 1


def test_a_backend_too():
    settings = RendezvousSettings(run_id="r", backend="mine_here:Solo")
    registry = PluginRegistry()
    handler = registry.make_rendezvous("mine_here:Solo", settings, {})
    assert handler.get_backend() == "mine_here:Solo"
    assert registry.label(RENDEZVOUS_GROUP, "mine_here:Solo").distribution == "not installed"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("mine_here:Old", "(not installed): Old states api_version 99; expected 1"),
        ("mine_here:Ancient", "expected 1. Try: mend mine_here:Ancient, then elastic plugins check mine_here:A"),
        ("mine_here:Solo", "(not installed): mine_here:Solo is the class Solo; expected a subclass of FailureHandler"),
        ("mine_here:Nix", "importing mine_here:Nix raised AttributeError"),
        ("nix_here:Nix", "Try: the directory that has nix_here, or put it on PYTHONPATH"),
    ],
)
def test_what_is_wrong_there_is_one_line(name, what):
    with pytest.raises(PluginError) as caught:
        make_policy(name)
    assert str(caught.value).startswith(f"policy {name!r} (not installed): ")
    assert what in str(caught.value)


@pytest.mark.parametrize("text", ["name", "redis:6379", ":Class", "module:", "a b:C", "a:b:c", "a..b:C", "./a:b"])
def test_what_is_no_place_is_none(text):
    assert entry_at(FAILURE_GROUP, text) is None


def test_a_place_may_have_packages_and_inner_classes():
    assert entry_at(HOOKS_GROUP, "a.b:C.D").value == "a.b:C.D"


# --- hooks


def make_hooks(hooks, **kwargs):
    made, lines = PluginRegistry(hooks=hooks, **kwargs).make_hooks(HookSettings(name="", run_id="r"))
    return {named.name: named for named in made}, lines


def test_a_hook_is_on_by_being_named_and_takes_options():
    hooks, lines = make_hooks({"mine_here:Diary": {"path": "/x", "ranks": "0:2"}, "mine_here:Diary.Inner": {}})
    named = hooks["mine_here:Diary"]
    assert (named.distribution, lines) == ("not installed", [])
    assert "no:" not in named.hint
    settings = named.hook.settings
    assert (settings.name, settings.option("path", str), settings.option("every", float)) == (named.name, "/x", 2.0)
    assert settings.option_list("ranks", int) == (0, 2)
    assert "mine_here:Diary.Inner" in hooks


@pytest.mark.parametrize(
    ("conf", "text"),
    [
        (
            {},
            "hook 'mine_here:Diary' needs the option 'path' in -p mine_here:Diary. Try: -p mine_here:Diary:path=<text>",
        ),
        ({"path": "x", "evry": "2"}, "has no option 'evry' in -p mine_here:Diary; it has every, path, ranks"),
        ({"path": "x", "every": "0.5"}, "-p mine_here:Diary:every: '0.5'; expected seconds"),
    ],
)
def test_options_of_a_named_hook_are_checked(conf, text):
    with pytest.raises(ConfigError) as caught:
        make_hooks({"mine_here:Diary": conf})
    assert text in str(caught.value)


def test_a_hook_that_nobody_has_is_refused():
    with pytest.raises(PluginError, match=r"^hook 'contrl' is not installed; installed: .*Try: 'control'$"):
        make_hooks({"contrl": {"x": "1"}})


@pytest.fixture
def installed(here):
    info = here / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[elastic_core.hooks]\ndiary = mine_here:Diary\n")
    sys.path.insert(0, str(here))


@pytest.mark.usefixtures("installed")
def test_options_of_an_installed_hook():
    hooks, lines = make_hooks({})
    assert "diary" not in hooks
    assert lines == ["left out: hook 'diary' needs the option 'path' in -p diary. Try: -p diary:path=<text>"]
    for name in ("diary", "mine_here:Diary"):
        hooks, lines = make_hooks({name: {"path": "/y"}})
        assert [each for each in hooks if "iary" in each] == ["diary"]
        assert (hooks["diary"].hook.settings.option("path", str), lines) == ("/y", [])
    with pytest.raises(ConfigError, match="-p diary:every: 'x'; expected seconds"):
        make_hooks({"diary": {"path": "/y", "every": "x"}})


@pytest.mark.usefixtures("installed")
def test_a_dry_run_builds_those_that_were_named():
    registry = PluginRegistry(hooks={"diary": {"path": "/y"}, "mine_here:Diary.Inner": {}})
    made = registry.make_chosen_hooks(HookSettings(name="", dry_run=True), {})
    assert [named.name for named in made] == ["diary", "mine_here:Diary.Inner"]
    assert PluginRegistry().make_chosen_hooks(HookSettings(name="", dry_run=True), {}) == []
