"""Plugins are found by metadata alone, imported by name alone, and what is wrong with one is said with its owner."""

import importlib.metadata
import sys
import textwrap
import zipfile

import pytest

from elastic_core.errors import ConfigError, PluginError
from elastic_core.failure.intensity import Intensity
from elastic_core.moments import Refuse, RoundJoining
from elastic_core.option_spec import OptionSpec
from elastic_core.plugins import discovery
from elastic_core.plugins.listing import list_plugins
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.rendezvous import registry as in_code
from elastic_core.rendezvous.coordinated import CoordinatedRendezvous
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.rendezvous.local import LocalRendezvous
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.types import HookSettings, PolicySettings, RendezvousSettings

BACKEND = """
    from elastic_core.api import *
    from elastic_core.api.plugins import hookimpl
    class Backend(RendezvousHandler):
        api_version = 1
        options = (OptionSpec(name="lease_ttl", type="float", default=5.0, unit="seconds"),)
        def next_rendezvous(self):
            return RendezvousInfo(rank=0, world_size=1)
"""
POLICY = """
    from elastic_core.api import *
    from elastic_core.api.plugins import hookimpl
    class Policy(FailureHandler):
        api_version = 1
        options = (OptionSpec(name="patience", type="int", default=3),)
        def decide(self, failure, history):
            return Stop(reason="enough")
"""
HOOK = """
    from elastic_core.api import *
    from elastic_core.api.plugins import hookimpl
    class Hook(AgentHook):
        api_version = 1
        powers = frozenset({Power.REFUSAL})
        def on_joining(self, event):
            return Refuse(reason="hot")
"""
HOOK_SETTINGS = HookSettings(name="", run_id="bert-7")


def rdzv_settings(backend="fake"):
    return RendezvousSettings(backend=backend, run_id="r", endpoint="", min_nodes=1, max_nodes=1, local_world_size=2)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution on a path of its own: metadata and one module."""
    before = set(sys.modules)

    def install(distribution, group, name, value, source="", *, version="1.2", more=""):
        root = tmp_path / distribution
        info = root / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n\nName: x\n")
        (info / "entry_points.txt").write_text(f"# made by hand\n[{group}]\n{name} = {value}\n{more}")
        module = value.partition(":")[0].strip()
        (root / f"{module}.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(str(root))
        return root

    yield install
    for name in set(sys.modules) - before:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def no_registrations():
    yield
    for name in in_code.registered_names():
        in_code.unregister(name)


def refused(call, *needles, error=PluginError):
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for needle in needles:
        assert needle in text
    return text


def make_backend(name="fake", conf=None, **kwargs):
    return PluginRegistry(**kwargs).make_rendezvous(name, rdzv_settings(name), conf or {})


# --- found


def test_built_ins_come_through_entry_points():
    assert isinstance(make_backend("local"), LocalRendezvous)
    policy = PluginRegistry().make_policy("intensity", PolicySettings(name="intensity"), {})
    assert type(policy) is Intensity


def test_reading_by_hand_finds_what_importlib_finds(install):
    install("fake-one", "elastic_core.hooks", "one", "mod_one:Hook [extra]", HOOK)
    install("fake-two", "elastic_core.rendezvous", "two", "mod_two", more="[console_scripts]\nx = y:z\n")
    by_hand = set(discovery._scan(sys.path))
    assert by_hand == set(discovery._ask_importlib())
    assert {entry.value for entry in by_hand} >= {"mod_one:Hook", "mod_two"}


def test_first_of_two_versions_on_the_path_counts(install, tmp_path, monkeypatch):
    install("fake-dist", "elastic_core.rendezvous", "fake", "mod_old:Backend", BACKEND)
    newer = tmp_path / "newer" / "Fake.Dist-2.0.dist-info"
    newer.mkdir(parents=True)
    (newer / "METADATA").write_text("Name: fake-dist\nVersion: 2.0\n")
    (newer / "entry_points.txt").write_text("[elastic_core.rendezvous]\nfake = mod_old:Backend\n")
    monkeypatch.syspath_prepend(str(newer.parent))
    assert [e.version for e in discovery.find_entries() if e.name == "fake"] == ["2.0"]


def test_a_process_that_keeps_entries_reads_a_path_once(install, tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "_kept", None)
    discovery.keep_entries()
    before = discovery.find_entries()
    install("fake-one", "elastic_core.hooks", "one", "mod_one:Hook", HOOK)  # extends `sys.path`
    assert {entry.name for entry in discovery.find_entries()} - {entry.name for entry in before} == {"one"}
    monkeypatch.setattr(discovery, "_scan", lambda *_: pytest.fail("it reads again"))
    assert "one" in {entry.name for entry in discovery.find_entries(discovery.HOOKS_GROUP)}
    assert {entry.group for entry in discovery.find_entries(discovery.HOOKS_GROUP)} == {discovery.HOOKS_GROUP}


def test_zip_file_on_the_path_is_left_to_importlib(tmp_path, monkeypatch):
    archive = tmp_path / "plugin.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped-3.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 3\n")
        file.writestr("zipped-3.dist-info/entry_points.txt", "[elastic_core.rendezvous]\nzipped = mod_z:B\n")
    monkeypatch.syspath_prepend(str(archive))
    assert [e.label for e in discovery.find_entries() if e.name == "zipped"] == ["zipped 3"]


def test_finder_with_distributions_of_its_own_is_left_to_importlib(monkeypatch):
    class Finder(importlib.metadata.DistributionFinder):
        def find_spec(self, *args):
            return None

        def find_distributions(self, context=None):
            return []

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert not discovery._is_ordinary([])


def test_missing_directory_on_the_path_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "gone")])
    assert "local" in {entry.name for entry in discovery.find_entries()}


def test_one_file_is_read_of_a_distribution_without_plugins(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}-1.dist-info").mkdir()
        (tmp_path / f"{name}-1.dist-info" / "METADATA").write_text(f"Name: {name}\n")
    read = []
    text_of = discovery._text
    monkeypatch.setattr(discovery, "_text", lambda path: (read.append(path), text_of(path))[1])
    assert discovery._scan([str(tmp_path)]) == []
    assert read == [f"{tmp_path}/{name}-1.dist-info/entry_points.txt" for name in ("a", "b", "c")]


def test_metadata_with_the_line_ends_of_windows_is_read(tmp_path):
    info = tmp_path / "other-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_bytes(b"Name: other\r\nVersion: 1\r\n\r\nName: of a field in its description\r\n")
    (info / "entry_points.txt").write_bytes(b"[elastic_core.hooks]\r\none = m:H\r\n")
    assert [(entry.label, entry.value) for entry in discovery._scan([str(tmp_path)])] == [("other 1", "m:H")]


def test_directory_name_stands_in_for_missing_metadata(tmp_path):
    info = tmp_path / "bare_plugin-0.9.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[elastic_core.hooks]\nbare = m:H\n")
    assert [entry.label for entry in discovery._scan([str(tmp_path)])] == ["bare_plugin 0.9"]


# --- chosen


def test_listing_and_choosing_another_imports_no_plugin(install):
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_unchosen:Backend", "raise RuntimeError('imported')")
    make_backend("local")
    infos = list_plugins(PluginRegistry(), load=False)
    assert ("fake", "rendezvous backend", "fake-rdzv", "1.2", "installed") in [
        (i.name, i.kind, i.distribution, i.version, i.status) for i in infos
    ]
    assert "mod_unchosen" not in sys.modules


def test_class_is_built_with_its_options_converted(install):
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_opts:Backend", BACKEND)
    assert make_backend().settings.options == {"lease_ttl": 5.0}
    assert make_backend(conf={"lease_ttl": "'2.5'"}).settings.options == {"lease_ttl": 2.5}
    refused(
        lambda: make_backend(conf={"lease_tll": "2"}), "'lease_tll'", "Try: --rdzv-conf lease_ttl=", error=ConfigError
    )


def test_torch_keys_warn(install):
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_warn:Backend", BACKEND)
    registry = PluginRegistry()
    registry.make_rendezvous("fake", rdzv_settings(), {"read_timeout": "60"})
    assert registry.warnings == ("--rdzv-conf read_timeout='60' has no effect with rendezvous backend 'fake'",)


def test_policy_class_and_its_options(install):
    install("fake-policy", "elastic_core.failure", "patient", "mod_policy:Policy", POLICY)
    settings = PolicySettings(name="patient", max_restarts=4)
    policy = PluginRegistry().make_policy("patient", settings, {"patience": "7"})
    assert policy.settings.max_restarts == 4
    assert policy.settings.options == {"patience": 7}
    refused(
        lambda: PluginRegistry().make_policy("patient", settings, {"patience": "long"}),
        "--policy-conf patience: 'long'; expected a whole number",
        error=ConfigError,
    )


def test_modules_with_hookimpls_make_backend_and_policy(install):
    source = (
        BACKEND
        + POLICY
        + """
    api_version = 1
    options = (OptionSpec(name="seats", type="int", default=2),)
    @hookimpl
    def elastic_make_rendezvous(settings):
        return Backend(settings)
    @hookimpl
    def elastic_make_failure_handler(settings):
        return Policy(settings)
"""
    )
    more = "[elastic_core.failure]\nboth = mod_both\n"
    install("fake-both", "elastic_core.rendezvous", "both", "mod_both", source, more=more)
    handler = make_backend("both", {"seats": "4"})
    assert handler.settings.options == {"seats": 4}
    assert handler.next_rendezvous().world_size == 1
    policy = PluginRegistry().make_policy("both", PolicySettings(name="both"), {})
    assert policy.decide(None, []).reason == "enough"


# --- missing


@pytest.mark.parametrize(
    ("name", "needles"),
    [
        ("redis", ["is not installed", "Try: pip install -r sets/redis.txt, in a checkout of elastic-core"]),
        ("etcd", ["is not installed", "Try: pip install -r sets/etcd.txt, in a checkout of elastic-core"]),
        ("etcd-v2", ["is not installed", "Try: pip install -r sets/etcd.txt"]),
        ("static", ["is not installed", "Try: pip install -r sets/torchrun.txt"]),
        ("c10d", ["is not installed", "Try: pip install -r sets/torchrun.txt"]),
        ("etcd-v3", ["is not installed", "Try: 'etcd', after pip install -r sets/etcd.txt"]),
        ("redsi", ["Try: 'redis', after pip install -r sets/redis.txt"]),
        ("locl", ["Try: 'local'"]),
        ("zookeeper", ["is not installed", "Try: pip install the distribution that provides 'zookeeper'"]),
    ],
)
def test_missing_backend_is_named_with_what_would_help(name, needles, monkeypatch):
    monkeypatch.setattr(
        "elastic_core.plugins.registry.find_entries",
        lambda: [e for e in discovery.find_entries() if e.distribution == "elastic-core"],
    )
    text = refused(lambda: make_backend(name), f"rendezvous backend {name!r} is not ", *needles)
    assert "installed: 'local' (elastic-core " in text


def test_missing_policy_names_its_distribution(monkeypatch):
    monkeypatch.setattr(
        "elastic_core.plugins.registry.find_entries",
        lambda: [e for e in discovery.find_entries() if e.distribution == "elastic-core"],
    )
    refused(
        lambda: PluginRegistry().make_policy("rules", PolicySettings(name="rules"), {}),
        "policy 'rules' is not installed",
        "'intensity' (elastic-core",
        "pip install . ./plugins/policy_rules, in a checkout of elastic-core",
    )


# --- broken


@pytest.mark.parametrize(
    ("source", "needles"),
    [
        ("import mod_broken.no_such_part", ["raised ModuleNotFoundError"]),
        ("def broken(:\n    pass", ["raised SyntaxError: "]),
        ("raise ValueError('first line\\nsecond line')", ["raised ValueError: first line second line"]),
        ("raise SystemExit(5)", ["raised SystemExit: 5"]),
        ("x = 1", ["raised AttributeError", "Backend"]),
    ],
)
def test_backend_that_raises_at_import_is_named(install, source, needles):
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_broken:Backend", source)
    text = refused(make_backend, "rendezvous backend 'fake' (fake-rdzv 1.2): importing mod_broken:Backend", *needles)
    assert "Try: install a newer fake-rdzv from where this one came" in text


def test_a_missing_dependency_is_named_by_the_hint(install):
    source = "import no_such_client.sub"
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_needy:Backend", source)
    text = refused(make_backend, "(fake-rdzv 1.2): importing mod_needy:Backend raised ModuleNotFoundError")
    assert text.endswith("Try: install what brings the module 'no_such_client', which fake-rdzv needs")


@pytest.mark.parametrize(
    ("source", "needle"),
    [
        ("options = ('x',)", "Backend has 'x' in options; expected an OptionSpec"),
        ("options = OptionSpec(name='x')", "Backend has options of type OptionSpec; expected a tuple of OptionSpec"),
        ("options = (OptionSpec(name='x', type='int', default='y'),)", "with default 'y'; expected a whole number"),
    ],
)
def test_declarations_that_dont_fit_are_refused_when_loaded(install, source, needle):
    source = BACKEND + f"        {source}\n"
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_misfit:Backend", source)
    text = refused(make_backend, "rendezvous backend 'fake' (fake-rdzv 1.2): ", needle)
    assert {info.status for info in list_plugins(PluginRegistry()) if info.name == "fake"} == {text}


def test_a_package_may_have_a_module_named_options(install):
    source = (
        "import sys\nfrom elastic_core.api import *\nfrom elastic_core.api.plugins import hookimpl\n"
        "api_version = 1\noptions = sys\n"
        "@hookimpl\ndef elastic_make_rendezvous(settings):\n    return RendezvousHandler.__new__(Made)\n"
        "class Made(RendezvousHandler):\n    def next_rendezvous(self): ...\n"
    )
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_with_options", source)
    assert type(make_backend()).__name__ == "Made"


@pytest.mark.parametrize("when", ["at import", "when built"])
def test_a_policy_that_imports_numpy_is_refused(install, monkeypatch, tmp_path, when):
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    (tmp_path / "numpy.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    late = "def __init__(self, settings): import numpy" if when == "when built" else "import numpy"
    source = POLICY + f"        {late}\n"
    install("fake-policy", "elastic_core.failure", "heavy", "mod_heavy_policy:Policy", source)
    refused(
        lambda: PluginRegistry().make_policy("heavy", PolicySettings(name="heavy"), {}),
        "policy 'heavy' (fake-policy 1.2): it imports numpy into the supervisor",
        "Try: import numpy where it is used",
    )
    if when == "at import":
        del sys.modules["numpy"], sys.modules["mod_heavy_policy"]
        assert "imports numpy" in next(i.status for i in list_plugins(PluginRegistry()) if i.name == "heavy")


@pytest.mark.parametrize("group", ["elastic_core.hook", "elastic_core.policies", "elastic_core.something_new"])
def test_a_group_that_nothing_reads_is_listed(install, group):
    install("fake-lost", group, "lost", "mod_lost:Hook", "raise RuntimeError")
    line = f"'lost' (fake-lost 1.2) is in the group {group!r}, which nothing reads. Try: one of elastic_core.commands, "
    listed = [(i.name, i.kind, i.status) for i in list_plugins(PluginRegistry()) if i.distribution == "fake-lost"]
    assert [(name, kind) for name, kind, _ in listed] == [("lost", group)]
    assert listed[0][2].startswith(line)


def test_groups_of_others_are_passed_over(install):
    install("fake-other", "elasticsearch.plugins", "lost", "mod_other:Hook", "raise RuntimeError")
    assert "lost" not in [info.name for info in list_plugins(PluginRegistry())]


def test_everything_of_ours_that_is_installed_loads():
    ours = [info for info in list_plugins(PluginRegistry()) if info.distribution.startswith("elastic-")]
    assert [(info.name, info.status) for info in ours if info.status != "loaded"] == []


@pytest.mark.parametrize(
    ("source", "needles"),
    [
        ("api_version = 1", ["Backend states no api_version of its own; expected 1"]),
        (
            "api_version = 3",
            ["states api_version 3; expected 1", "Try: pip install ., in a newer checkout of elastic-core"],
        ),
        ("api_version = 0", ["states api_version 0; expected 1", "Try: install a newer fake-rdzv from"]),
        ("api_version = '1'", ["states api_version '1'; expected 1"]),
        ("api_version = True", ["states api_version True; expected 1"]),
    ],
)
def test_api_version_is_stated_by_the_class_itself(install, source, needles):
    own = "" if source == "api_version = 1" else source
    text = f"""
        from elastic_core.api import RendezvousHandler
        class Base(RendezvousHandler):
            api_version = 1
        class Backend(Base):
            {own}
            def next_rendezvous(self): ...
    """
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_version:Backend", text)
    refused(make_backend, "(fake-rdzv 1.2)", *needles)


def test_module_states_its_api_version_too(install):
    source = BACKEND + "    elastic_make_rendezvous = hookimpl(lambda settings: None)\n"
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_unversioned", source)
    refused(make_backend, "(fake-rdzv 1.2): mod_unversioned states no api_version")


def test_abstract_methods_left_over_are_named(install):
    source = """
        from elastic_core.api import RendezvousHandler
        class Backend(RendezvousHandler):
            api_version = 1
    """
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_abstract:Backend", source)
    refused(make_backend, "(fake-rdzv 1.2): Backend does not define next_rendezvous")


@pytest.mark.parametrize(
    ("value", "needles"),
    [
        ("mod_kind:Policy", ["is the class Policy", "subclass of RendezvousHandler or CoordinationStore, or a module"]),
        ("mod_kind:made", ["is an object of dict"]),
        ("mod_kind", ["module mod_kind implements none of this group's hooks", "hookimpl"]),
    ],
)
def test_other_kinds_are_refused(install, value, needles):
    source = POLICY + "    made = {}\n    api_version = 1\n    on_failure = hookimpl(lambda event: None)\n"
    install("fake-rdzv", "elastic_core.rendezvous", "fake", value, source)
    refused(make_backend, "(fake-rdzv 1.2)", *needles)


@pytest.mark.parametrize(
    ("impl", "needle"),
    [
        ("def elastic_make_rendezvous(options): ...", "its hookimpls don't fit"),
        ("def on_faliure(event): ...", "its hookimpls don't fit"),
        (
            "def elastic_make_rendezvous(settings): return None",
            "made NoneType; expected a RendezvousHandler or CoordinationStore",
        ),
        ("def elastic_make_rendezvous(settings): return settings", "made RendezvousSettings"),
        ("def elastic_make_rendezvous(settings): raise KeyError('host')", "building it raised KeyError: 'host'"),
    ],
)
def test_hookimpls_that_dont_fit_are_refused(install, impl, needle):
    source = f"from elastic_core.api.plugins import hookimpl\napi_version = 1\n@hookimpl\n{impl}\n"
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_impl", source)
    refused(make_backend, "(fake-rdzv 1.2)", needle)


def test_constructor_errors_are_wrapped_but_the_plugins_own_words_pass(install):
    source = """
        from elastic_core.api import *
        from elastic_core.api.plugins import hookimpl
        class Backend(RendezvousHandler):
            api_version = 1
            def __init__(self, settings):
                if settings.run_id == "r":
                    raise ConfigError("no such realm 'r'", hint="another realm")
                raise OSError("no\\nroute")
            def next_rendezvous(self): ...
    """
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_ctor:Backend", source)
    assert refused(make_backend, error=ConfigError) == "no such realm 'r'. Try: another realm"
    settings = RendezvousSettings(backend="fake", run_id="x", endpoint="", min_nodes=1, max_nodes=1, local_world_size=1)
    refused(lambda: PluginRegistry().make_rendezvous("fake", settings, {}), "building it raised OSError: no route")


def test_two_distributions_with_one_name_are_both_named(install):
    install("fake-rdzv", "elastic_core.rendezvous", "local", "mod_twin:Backend", BACKEND)
    text = refused(
        lambda: make_backend("local"), "rendezvous backend 'local' comes from", "fake-rdzv 1.2", "elastic-core"
    )
    assert text.endswith("Try: pip uninstall fake-rdzv")
    assert "mod_twin" not in sys.modules


# --- hooks


def make_hooks(**kwargs):
    hooks, warnings = PluginRegistry(**kwargs).make_hooks(HOOK_SETTINGS)
    return {named.name: named for named in hooks if "fake" in named.distribution}, warnings


def test_installed_hooks_are_built_in_order_with_their_names(install):
    install("fake-b", "elastic_core.hooks", "beta", "mod_beta:Hook", HOOK)
    install("fake-a", "elastic_core.hooks", "alpha", "mod_alpha:Hook", HOOK)
    hooks, warnings = make_hooks()
    assert list(hooks) == ["alpha", "beta"]
    assert not warnings
    assert hooks["alpha"].distribution == "fake-a 1.2"
    assert hooks["alpha"].hook.settings.name == "alpha"
    assert hooks["alpha"].hook.settings.run_id == "bert-7"


def test_hookimpl_module_becomes_a_hook_that_overrides_only_its_moments(install):
    source = """
        from elastic_core.api import *
        from elastic_core.api.plugins import hookimpl
        api_version = 1
        seen = []
        @hookimpl
        def on_joining(event):
            seen.append(event)
            return Refuse(reason="hot")
    """
    install("fake-mod", "elastic_core.hooks", "gate", "mod_gate", source)
    hooks, _ = make_hooks()
    hook = hooks["gate"].hook
    assert hook.on_joining(RoundJoining(round_index=3)) == Refuse(reason="hot")
    assert sys.modules["mod_gate"].seen == [RoundJoining(round_index=3)]
    assert "on_joining" in vars(type(hook))
    assert "on_failure" not in vars(type(hook))


def test_broken_hook_is_left_out_with_a_line_and_the_others_stay(install):
    install("fake-bad", "elastic_core.hooks", "bad", "mod_bad:Hook", "raise ImportError('libfoo.so')")
    install("fake-good", "elastic_core.hooks", "good", "mod_good:Hook", HOOK)
    hooks, warnings = make_hooks()
    assert list(hooks) == ["good"]
    [line] = warnings
    assert line.startswith("left out: hook 'bad' (fake-bad 1.2): importing mod_bad:Hook raised ImportError: libfoo.so")
    assert "-p no:bad" in line


GATE = """
    from elastic_core.api import *
    from elastic_core.api.plugins import hookimpl
    class Hook(AgentHook):
        api_version = 1
        powers = frozenset({POWERS})
        fail_closed = True
        def __init__(self, settings):
            raise RuntimeError("no driver")
        def on_joining(self, event):
            return None
"""


def test_gate_that_fails_closed_and_can_not_be_built_refuses(install):
    install("fake-gate", "elastic_core.hooks", "gate", "mod_gate:Hook", GATE.replace("POWERS", "Power.REFUSAL"))
    hooks, warnings = make_hooks()
    [line] = warnings
    assert "RuntimeError: no driver" in line
    assert line.endswith("; it is a gate that fails closed")
    refusal = hooks["gate"].hook.on_joining(RoundJoining(round_index=0))
    assert refusal.reason.startswith("it could not be built: ")
    assert "RuntimeError: no driver" in refusal.reason
    assert hooks["gate"].distribution == "fake-gate 1.2"


CLOSED = {"gate": {"fail_closed": "true"}}


@pytest.mark.parametrize("source", ["import no_such_driver", "raise SystemExit(1)"])
def test_gate_that_can_not_be_imported_refuses_where_its_user_says_so(install, source):
    install("fake-gate", "elastic_core.hooks", "gate", "mod_gate:Hook", source)
    hooks, (line,) = make_hooks(hooks=CLOSED)
    assert line.endswith("; it is a gate that fails closed")
    assert hooks["gate"].hook.on_joining(RoundJoining(round_index=0)).reason.startswith("it could not be built: ")
    assert list(make_hooks()[0]) == []  # as ever


def test_user_makes_any_gate_fail_closed_and_nothing_else(install):
    install("fake-gate", "elastic_core.hooks", "gate", "mod_gate:Hook", HOOK)
    assert make_hooks(hooks=CLOSED)[0]["gate"].fail_closed
    assert not make_hooks(hooks={"gate": {"fail_closed": "no"}})[0]["gate"].fail_closed
    refused(
        lambda: make_hooks(hooks={"gate": {"fail_closed": "maybe"}}),
        "-p gate:fail_closed: 'maybe'; expected true or",
        error=ConfigError,
    )
    observer = HOOK.replace("{Power.REFUSAL}", "").replace("on_joining", "on_failure")
    install("fake-seen", "elastic_core.hooks", "seen", "mod_seen:Hook", observer)
    wanted = "-p seen:fail_closed: hook 'seen' is no health gate: it has not the power to refuse"
    refused(lambda: make_hooks(hooks={"seen": {"fail_closed": "1"}}), wanted, error=ConfigError)


def test_gate_that_fails_closed_needs_the_power_to_refuse(install):
    install("fake-gate", "elastic_core.hooks", "gate", "mod_gate:Hook", GATE.replace("POWERS", ""))
    hooks, warnings = make_hooks()
    assert not hooks
    assert "states fail_closed without the power 'refusal'" in warnings[0]


@pytest.mark.parametrize("when", ["at import", "when built"])
def test_hook_that_drags_in_numpy_is_left_out(install, monkeypatch, tmp_path, when):
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    (tmp_path / "numpy.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    late = "def __init__(self, settings): import numpy" if when == "when built" else "import numpy"
    source = f"""
        from elastic_core.api import *
        from elastic_core.api.plugins import hookimpl
        class Hook(AgentHook):
            api_version = 1
            {late}
    """
    install("fake-heavy", "elastic_core.hooks", "heavy", "mod_heavy:Hook", source)
    hooks, warnings = make_hooks()
    assert not hooks
    assert "hook 'heavy' (fake-heavy 1.2): it imports numpy into the supervisor" in warnings[0]


def test_numpy_that_was_there_before_is_no_fault_of_a_hook(install, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", sys)
    source = "import numpy\n" + textwrap.dedent(HOOK)
    install("fake-heavy", "elastic_core.hooks", "heavy", "mod_guest:Hook", source)
    hooks, warnings = make_hooks()
    assert list(hooks) == ["heavy"]
    assert not warnings


def test_disabled_hook_is_not_imported(install):
    install("fake-hook", "elastic_core.hooks", "noisy", "mod_noisy:Hook", "raise RuntimeError")
    hooks, warnings = make_hooks(disabled=["noisy"])
    assert not hooks
    assert not warnings
    assert "mod_noisy" not in sys.modules


def test_disabling_what_is_not_there_is_told(install):
    install("fake-hook", "elastic_core.hooks", "noisy", "mod_noisy2:Hook", HOOK)
    _, warnings = make_hooks(disabled=["noisi"])
    assert warnings == ["-p no:noisi has no effect: no hook of that name is installed; did you mean 'noisy'?"]


def test_two_hooks_of_one_name_are_left_out(install):
    install("fake-a", "elastic_core.hooks", "twin", "mod_twin_a:Hook", HOOK)
    install("fake-b", "elastic_core.hooks", "twin", "mod_twin_b:Hook", HOOK)
    hooks, [line] = make_hooks()
    assert not hooks
    assert "hook 'twin' comes from fake-b 1.2 and fake-a 1.2" in line


# --- in code


class Custom(RendezvousHandler):
    api_version = 1

    def next_rendezvous(self):
        return (None, 0, 1)


class Other(Custom):
    api_version = 1


@pytest.mark.usefixtures("no_registrations")
def test_class_registered_in_code_serves_under_its_name():
    in_code.register("custom", Custom)
    in_code.register("custom", Custom)
    handler = make_backend("custom")
    assert handler.next_rendezvous() == (None, 0, 1)
    assert handler.get_backend() == "custom"


@pytest.mark.usefixtures("no_registrations")
def test_function_gets_the_options_as_typed():
    in_code.register("made", lambda settings: Custom(settings))
    assert make_backend("made", {"any": "thing"}).settings.options == {"any": "thing"}


@pytest.mark.usefixtures("no_registrations")
def test_class_in_code_declares_options_like_any_other():
    in_code.register("custom", Custom)
    refused(lambda: make_backend("custom", {"any": "thing"}), "takes no --rdzv-conf options", error=ConfigError)


@pytest.mark.usefixtures("no_registrations")
def test_in_code_comes_before_installed_and_is_listed():
    in_code.register("local", Custom)
    assert type(make_backend("local")) is Custom
    assert [(i.name, i.distribution) for i in list_plugins(PluginRegistry()) if i.name == "local"] == [
        ("local", "in code"),
        ("local", "elastic-core"),
    ]
    refused(lambda: make_backend("lokal2"), "installed: 'local' (in code)")


@pytest.mark.usefixtures("no_registrations")
def test_bad_registrations_are_refused():
    in_code.register("custom", Custom)
    refused(lambda: in_code.register("custom", Other), "already registered as", "Custom", "not", "Other")
    refused(lambda: in_code.register("", Custom), "without a name")
    in_code.register("odd", lambda settings: {})
    refused(lambda: make_backend("odd"), "made dict; expected a RendezvousHandler or CoordinationStore")


# --- stores

STORE = """
    from elastic_core.api import *
    from elastic_core.api.plugins import hookimpl
    class Store(CoordinationStore):
        api_version = 1
        min_ttl_s = 2.0
        options = (OptionSpec(name="prefix", default="p"),)
        where = "nowhere"
        connect = enlist = update = renew = withdraw = members = load = swap = watch = lambda *a, **k: None
"""
SHARED = {"lease_ttl": 5.0, "last_call_timeout": None, "join_timeout": 600.0, "connect_timeout": 60.0}


@pytest.fixture
def driven(install):
    more = """
    api_version = 1
    options = Store.options
    @hookimpl
    def elastic_make_rendezvous(settings):
        return Store(settings)
"""
    install("fake-class", "elastic_core.rendezvous", "store", "mod_store:Store", STORE)
    install("fake-module", "elastic_core.rendezvous", "module", "mod_store_made", STORE + more)


@pytest.fixture
def in_code_store(driven, no_registrations):
    class Store(CoordinationStore):
        api_version = 1
        min_ttl_s = 2.0
        options = (OptionSpec(name="prefix", default="p"),)
        where = "nowhere"
        connect = enlist = update = renew = withdraw = members = load = swap = watch = lambda *a, **k: None

    in_code.register("in code", Store)


@pytest.mark.parametrize("name", ["store", "module", "in code"])
@pytest.mark.usefixtures("in_code_store")
def test_a_store_gets_the_cores_rendezvous_with_the_options_of_every_store(name):
    conf = {"lease_ttl": "2500ms", "prefix": "q", "join_timeout": "'7'"}
    handler = make_backend(name, conf)
    assert isinstance(handler, CoordinatedRendezvous)
    assert isinstance(handler.store, CoordinationStore)
    assert handler.settings.options == SHARED | {"lease_ttl": 2.5, "prefix": "q", "join_timeout": 7.0}
    assert handler.store.settings.options["prefix"] == "q"
    assert make_backend(name).settings.options == SHARED | {"prefix": "p"}


@pytest.mark.parametrize("name", ["store", "module", "in code"])
@pytest.mark.parametrize(
    ("conf", "needles"),
    [
        ({"lease_ttl": "soon"}, ["--rdzv-conf lease_ttl: 'soon'; expected seconds, more than 0, or a time as 30s"]),
        (
            {"lease_ttl": "1.5"},
            ["lease_ttl: 1.5 s; expected at least 2 s", "Try: --rdzv-conf lease_ttl=5"],
        ),
        (
            {"join_timeout": "0"},
            ["join_timeout: '0'; expected seconds, more", "Try: --rdzv-conf join_timeout=<"],
        ),
        ({"last_call_timeout": "0"}, ["last_call_timeout: '0'; expected seconds, more than 0"]),
        (
            {"last_call_timeout": "-1"},
            ["last_call_timeout: '-1'; expected seconds, more than 0, or a time as 30s, 5m or 1h"],
        ),
    ],
)
@pytest.mark.usefixtures("in_code_store")
def test_options_of_every_store_are_checked(name, conf, needles):
    refused(lambda: make_backend(name, conf), *needles, error=ConfigError)


@pytest.mark.parametrize("name", ["store", "in code"])
@pytest.mark.usefixtures("in_code_store")
def test_unknown_options_of_a_store_suggest_the_nearest_of_all(name):
    for typed, meant in (("lease_tll", "lease_ttl"), ("prefixx", "prefix")):
        refused(lambda t=typed: make_backend(name, {t: "2"}), f"Try: --rdzv-conf {meant}=", error=ConfigError)


@pytest.mark.usefixtures("driven")
def test_torchs_keys_that_a_store_has_not_warn():
    registry = PluginRegistry()
    registry.make_rendezvous("store", rdzv_settings("store"), {"timeout": "900", "last_call_timeout": "3"})
    assert registry.warnings == ("--rdzv-conf timeout='900' has no effect with rendezvous backend 'store'",)


def test_a_module_that_makes_a_handler_takes_no_options_of_stores(install):
    source = """
        from elastic_core.api import *
        from elastic_core.api.plugins import hookimpl
        api_version = 1
        class Backend(RendezvousHandler):
            def next_rendezvous(self): ...
        @hookimpl
        def elastic_make_rendezvous(settings):
            return Backend(settings)
    """
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_no_store", source)
    refused(lambda: make_backend("fake", {"lease_ttl": "5"}), "takes no --rdzv-conf options", error=ConfigError)
    registry = PluginRegistry()
    registry.make_rendezvous("fake", rdzv_settings(), {"join_timeout": "5"})  # torch's
    assert registry.warnings == ("--rdzv-conf join_timeout='5' has no effect with rendezvous backend 'fake'",)


def test_a_store_with_operations_left_over_is_refused(install):
    source = """
        from elastic_core.api import CoordinationStore
        class Store(CoordinationStore):
            api_version = 1
            where = "nowhere"
            connect = enlist = update = renew = withdraw = members = load = watch = lambda *a, **k: None
    """
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_half_store:Store", source)
    refused(make_backend, "(fake-rdzv 1.2): Store does not define swap")


def test_our_stores_load():
    loaded = {info.name: info for info in list_plugins(PluginRegistry())}
    for name, distribution in (("redis", "redis"), ("c10d", "redis"), ("etcd", "etcd"), ("etcd-v2", "etcd")):
        assert (loaded[name].distribution, loaded[name].status) == (f"elastic-rdzv-{distribution}", "loaded")


@pytest.mark.parametrize(("typed", "limit_s"), [("1500ms", 1.5), ("7", 7.0), ("2m", 120.0)])
@pytest.mark.usefixtures("driven")
def test_the_time_to_connect_is_the_time_to_be_built_however_it_is_typed(typed, limit_s):
    registry = PluginRegistry()
    registry.make_rendezvous("store", rdzv_settings("store"), {"connect_timeout": typed})
    assert registry._limit.within_s == limit_s


# --- listed


def test_list_says_loaded_disabled_or_why_not(install):
    install("fake-rdzv", "elastic_core.rendezvous", "fake", "mod_list_a:Backend", BACKEND)
    install("fake-bad", "elastic_core.failure", "bad", "mod_list_b:Policy", "import no_such_client")
    install("fake-off", "elastic_core.hooks", "off", "mod_list_c:Hook", "raise RuntimeError")
    install("fake-later", "elastic_core.something_new", "later", "mod_list_d:X")
    found = list_plugins(PluginRegistry(disabled=["off"]))
    infos = {info.name: info for info in found}
    assert infos["local"].status == "loaded"
    assert infos["intensity"].kind == "policy"
    assert infos["fake"].status == "loaded"
    assert infos["off"].status == "disabled"
    assert "raised ModuleNotFoundError" in infos["bad"].status
    kinds = [info.kind for info in found]
    order = [*discovery.KINDS.values(), "elastic_core.something_new"]
    assert kinds == sorted(kinds, key=order.index)
