"""Whichever way a plugin comes, a defect is refused with the same words behind the plugin's name."""

import re
import sys
import textwrap
import types

import pytest

from elastic_core.errors import PluginError
from elastic_core.plugins import hosted
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.rendezvous import registry as in_code
from elastic_core.types import HookSettings, RendezvousSettings

BACKEND = """
    from elastic_core.api import OptionSpec, RendezvousHandler
    class Plugin(RendezvousHandler):
        api_version = 1
        options = ()
        def next_rendezvous(self):
            return (None, 0, 1)
"""
MODULE = """
    from elastic_core.api import OptionSpec
    from elastic_core.api.plugins import hookimpl
    from defects_class import Plugin
    api_version = 1
    options = ()
    @hookimpl
    def elastic_make_rendezvous(settings):
        return Plugin(settings)
"""
HOOK = """
    from elastic_core.api import AgentHook, OptionSpec, Power
    class Plugin(AgentHook):
        api_version = 1
        options = ()
        powers = frozenset({Power.REFUSAL})
        def on_joining(self, event):
            return None
"""
HOOK_MODULE = """
    from elastic_core.api import OptionSpec, Power
    from elastic_core.api.plugins import hookimpl
    api_version = 1
    options = ()
    powers = frozenset({Power.REFUSAL})
    @hookimpl
    def on_joining(event):
        return None
"""
WAYS = ("entry point", "place", "in code", "module")

DECLARED = {
    "no version": ("api_version = 1", "pass", "NAME states no api_version of its own; expected 1"),
    "a later version": ("api_version = 1", "api_version = 2", "NAME states api_version 2; expected 1"),
    "no number": ("api_version = 1", "api_version = '1'", "NAME states api_version '1'; expected 1"),
    "options of another type": ("options = ()", "options = 'seats'", "NAME has options of type str; expected a tuple"),
    "an option of no type": (
        "options = ()",
        "options = (OptionSpec(name='seats', type='seat'),)",
        "NAME has an option 'seats' with type 'seat'; expected one of int, ",
    ),
}
"""By what is wrong: what of the source becomes what, and how the line about it begins."""
POWERS = {
    "powers of no kind": (
        "powers = frozenset({Power.REFUSAL})",
        "powers = {'refusal'}",
        "NAME states powers {'refusal'}; expected a set of elastic_core.api.Power",
    ),
    "a power without its method": (
        "Power.REFUSAL",
        "Power.FEED",
        "NAME states the power 'feed' and has no on_run_event",
    ),
}
RAISES = (
    "    def next_rendezvous",
    "    def __init__(self, settings): raise KeyError('seat')\n        def next_rendezvous",
    "building it raised KeyError: 'seat' (",
)


@pytest.fixture
def bring(tmp_path, monkeypatch):
    """Return a function that brings a plugin one way, and returns the name that a user types for it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)

    def bring(way, group, source):
        made = "defects_module" if way == "module" else "defects_class"
        path = tmp_path / f"{made}.py"
        path.write_text(textwrap.dedent(source))
        if way == "place":
            return f"{made}:Plugin"
        if way == "in code":
            module = types.ModuleType(made)
            exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
            in_code.register("mine", module.Plugin)
            return "mine"
        install(tmp_path, f"elastic_core.{group}", made if way == "module" else f"{made}:Plugin")
        return "mine"

    yield bring
    in_code.unregister("mine")
    for name in set(sys.modules) - before:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def install(folder, group, value):
    info = folder / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nmine = {value}\n")


def fault_of(way, line):
    """Return what a line says is wrong, without the plugin's name before it and the advice behind it."""
    owner = {"place": "not installed", "in code": "in code"}.get(way, "acme 1.0")
    match = re.fullmatch(rf"(?:rendezvous backend|hook) '[^']+' \({owner}\): (.*)\. Try: \S.*", line)
    assert match, line
    return match[1]


def broken(source, defect):
    old, new, _ = defect
    assert old in source
    return source.replace(old, new)


def wanted(way, defect):
    return defect[2].replace("NAME", "defects_module" if way == "module" else "Plugin")


def backend_fault(way, name):
    with pytest.raises(PluginError) as caught:
        PluginRegistry().make_rendezvous(name, RendezvousSettings(run_id="r", backend=name), {})
    return fault_of(way, str(caught.value))


@pytest.mark.parametrize("defect", DECLARED.values(), ids=DECLARED)
@pytest.mark.parametrize("way", WAYS)
def test_what_a_backend_declares(bring, tmp_path, way, defect):
    (tmp_path / "defects_class.py").write_text(textwrap.dedent(BACKEND))  # which the module imports
    name = bring(way, "rendezvous", broken(MODULE if way == "module" else BACKEND, defect))
    assert backend_fault(way, name).startswith(wanted(way, defect))


@pytest.mark.parametrize("way", WAYS)
def test_how_a_backend_is_built(bring, tmp_path, way):
    source = broken(BACKEND, RAISES)
    (tmp_path / "defects_class.py").write_text(textwrap.dedent(source))
    name = bring(way, "rendezvous", MODULE if way == "module" else source)
    assert backend_fault(way, name).startswith(RAISES[2])


@pytest.mark.parametrize("way", ["entry point", "place", "in code"])
def test_of_which_kind_a_backend_is(bring, way):
    name = bring(way, "rendezvous", BACKEND.replace("(RendezvousHandler)", ""))
    needed = "a subclass of RendezvousHandler or CoordinationStore, or a module with hookimpls"
    assert backend_fault(way, name) == f"defects_class:Plugin is the class Plugin; expected {needed}"


@pytest.mark.parametrize("defect", (DECLARED | POWERS).values(), ids=DECLARED | POWERS)
@pytest.mark.parametrize("way", ["entry point", "place", "module"])
def test_what_a_hook_declares(bring, way, defect):
    name = bring(way, "hooks", broken(HOOK_MODULE if way == "module" else HOOK, defect))
    plugins = PluginRegistry(hooks={name: {}} if way == "place" else {})
    settings = HookSettings(name="", run_id="r")
    if way == "place":
        with pytest.raises(PluginError) as caught:
            plugins.make_hooks(settings)
        line = str(caught.value)
    else:
        (line,) = [text.removeprefix("left out: ") for text in plugins.make_hooks(settings)[1] if "'mine'" in text]
    assert fault_of(way, line).startswith(wanted(way, defect))


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        ("importing", "importing the handlers for torch of acme 1.0 raised KeyError: 'seat'"),
        ("building", "building it raised KeyError: 'seat'"),
    ],
)
def test_a_handler_for_torch(tmp_path, monkeypatch, broken, fault):
    def make(settings):
        raise KeyError("seat")

    begin = {"importing": lambda entry: lambda: make(None), "building": lambda entry: lambda: make}[broken]
    monkeypatch.setattr(hosted, "torch_part", lambda name, needed_by: begin)
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "torchrun.handlers", "defects_torch:make")
    assert backend_fault("torch", "mine").startswith(fault)
