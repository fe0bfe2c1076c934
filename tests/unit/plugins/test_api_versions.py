"""A plugin of an older version of the interfaces goes on working, with a line before it no longer will."""

import sys
import textwrap

import pytest

from elastic_core.errors import PluginError
from elastic_core.plugins import declaration_faults
from elastic_core.plugins.declaration_faults import SERVED, ServedVersions
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.types import API_VERSION, HookSettings, PolicySettings, RendezvousSettings

LATER = ServedVersions(oldest=2, newest=3, leaving={2: "0.5"})
SOURCE = """
    from elastic_core.api import *
    class Backend(RendezvousHandler):
        api_version = {version}
        def next_rendezvous(self): ...
    class Policy(FailureHandler):
        api_version = {version}
        def decide(self, failure, history): ...
    class Hook(AgentHook):
        api_version = {version}
"""
ENTRY_POINTS = """
[elastic_core.rendezvous]
old = old_plugins:Backend
[elastic_core.failure]
old = old_plugins:Policy
[elastic_core.hooks]
old = old_plugins:Hook
"""


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """Return a registry of a later core, which finds plugins that state the given version."""

    def make(version):
        info = tmp_path / "old_plugins-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: old-plugins\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(ENTRY_POINTS)
        (tmp_path / "old_plugins.py").write_text(textwrap.dedent(SOURCE).format(version=version))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(declaration_faults, "SERVED", LATER)
        of_now = ("agent-store", "control", "planned-stops", "recorder", "training")
        return PluginRegistry(disabled=of_now)  # which are of the current version

    yield make
    sys.modules.pop("old_plugins", None)


def make_all(registry):
    settings = RendezvousSettings(backend="old", run_id="r", endpoint="", min_nodes=1, max_nodes=1, local_world_size=1)
    registry.make_rendezvous("old", settings, {})
    registry.make_policy("old", PolicySettings(name="old"), {})
    return registry.make_hooks(HookSettings(name=""))


def test_todays_core_serves_its_own_version_and_drops_none():
    assert API_VERSION in SERVED
    assert ServedVersions(oldest=1, newest=API_VERSION) == SERVED  # where that changes, so does stability.md


def test_what_is_deprecated_is_still_served():
    assert set(SERVED.leaving) <= set(range(SERVED.oldest, SERVED.newest))


@pytest.mark.parametrize(
    ("version", "served"), [(1, False), (2, True), (3, True), (4, False), ("2", False), (True, False), (2.0, False)]
)
def test_versions_are_whole_numbers_of_the_range(version, served):
    assert (version in LATER) == served


def test_a_current_plugin_loads_without_a_word(registry):
    current = registry(3)
    assert make_all(current)[1] == []
    assert current.warnings == ()


def test_a_deprecated_version_works_and_each_plugin_has_one_line(registry):
    old = registry(2)
    hooks, warnings = make_all(old)
    assert ([hook.name for hook in hooks], warnings) == (["old"], [])
    assert old.warnings == tuple(
        f"{kind} 'old' (old-plugins 1.2): {name} states api_version 2, which release 0.5 of the core drops; 3 is "
        "current. Try: install a newer old-plugins from where this one came, or report it to its authors" + off
        for kind, name, off in [
            ("rendezvous backend", "Backend", ""),
            ("policy", "Policy", ""),
            ("hook", "Hook", ", or turn it off: -p no:old"),
        ]
    )


def test_the_list_says_what_is_deprecated(registry):
    infos = [info for info in registry(2).list_plugins() if info.name == "old"]
    assert len(infos) == 3
    assert all(info.status.startswith("loaded; deprecated: ") for info in infos)


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        (1, "install a newer old-plugins from where this one came"),
        (4, "pip install ., in a newer checkout of elastic-core"),
    ],
)
def test_a_version_outside_is_refused_with_one_line(registry, version, remedy):
    with pytest.raises(PluginError) as caught:
        make_all(registry(version))
    assert str(caught.value) == (
        f"rendezvous backend 'old' (old-plugins 1.2): Backend states api_version {version}; 2 to 3 is needed. "
        f"Try: {remedy}"
    )


def test_a_hook_of_a_version_outside_is_left_out(registry):
    hooks, warnings = registry(4).make_hooks(HookSettings(name=""))
    assert hooks == []
    (line,) = warnings
    assert line.startswith("left out: hook 'old' (old-plugins 1.2): Hook states api_version 4; 2 to 3 is needed")
