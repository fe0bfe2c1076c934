"""Options that hooks bring to `elastic run`: typed, explained, and nothing imported before one is given."""

import sys

import pytest

from elastic_core.cli.arguments import read_arguments
from elastic_core.cli.dry_run import describe
from elastic_core.cli.main import COMPLETE_VARIABLE, main
from elastic_core.errors import ConfigError, PluginError
from elastic_core.launcher.plan import hook_settings
from elastic_core.options.devices import Node
from elastic_core.options.resolve import resolve
from elastic_core.plugins import missing
from elastic_core.plugins.listing import list_plugins
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.types import HookSettings
from elastic_torchrun.launcher.library_options import given_from

DECLARED = """
    from elastic_core.api import RunOption
    HOOK = "acme_hook:Profile"
    PROFILE = RunOption(name="acme_profile", hook=HOOK, heading="Acme profiler", help="Profile the workers.",
                        choices=("cpu", "gpu"))
    PERIOD = RunOption(name="acme_period", type="duration", default=1.5, unit="seconds", hook=HOOK,
                       help="How often.", time_limit=True)
    COUNT = RunOption(name="acme_count", type="int", least=2, hook=HOOK, help="How many.")
    LOUD = RunOption(name="acme_loud", type="bool", hook=HOOK, help="Say more.")
"""
HOOK = """
    from elastic_core.api import *
    import acme_options
    class Profile(AgentHook):
        api_version = 1
        powers = frozenset({Power.LAUNCHES})
        options = (acme_options.PROFILE, acme_options.PERIOD, acme_options.COUNT, acme_options.LOUD)
        def on_workers_starting(self, event):
            command = ("env", str(self.settings.options["acme_profile"]))
            changes = {0: LaunchChange(command=command, environment={"ACME": "1"}, processors=frozenset({3, 4, 5, 7}))}
            return Launches(workers=changes)
"""
ENTRIES = """
[elastic_core.options]
acme-profile = acme_options:PROFILE
acme-period = acme_options:PERIOD
acme-count = acme_options:COUNT
acme-loud = acme_options:LOUD
"""


@pytest.fixture
def install(distributions):
    def install(distribution="acme-tools", entries=ENTRIES, **modules):
        distributions(distribution, entries, **modules)

    return install


@pytest.fixture
def acme(install):
    install(acme_options=DECLARED, acme_hook=HOOK)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def settle(script, *words, environ=None):
    arguments = read_arguments([*words, script])
    variables = environ or {}
    return resolve(arguments.given, arguments.script, (), environ=variables, node=Node(variables))


def test_options_are_read_and_typed(acme, script):
    words = ["--acme-profile", "cpu", "--acme_period=2", "--acme-count", "3", "--acme-loud"]
    resolution = settle(script, *words)
    expected = {"acme_profile": "cpu", "acme_period": 2.0, "acme_count": 3, "acme_loud": True}
    assert resolution.settings.hook_options == expected
    assert resolution.origins["acme_count"] == "flag --acme-count"
    assert "acme_hook" not in sys.modules


def test_limits_on_time_are_off_where_a_worker_is_debugged(acme, script):
    settled = settle(script, "--acme-period", "2.5", "--acme-count", "3", "--debug-rank", "0")
    assert settled.settings.hook_options == {"acme_period": 0.0, "acme_count": 3}
    assert "--acme-period '2.5' has no effect: --debug-rank turns time limits off" in settled.settings.notices


def test_variables_count_as_for_ours(acme, script):
    environ = {"PET_ACME_PROFILE": "gpu", "PET_ACME_COUNT": "", "PET_ACME_LOUD": "0", "PET_SOMEBODY_ELSES": "x"}
    resolution = settle(script, environ=environ)
    assert resolution.settings.hook_options == {"acme_profile": "gpu"}
    assert resolution.origins["acme_profile"] == "env PET_ACME_PROFILE"
    assert settle(script, "--acme-profile", "cpu", environ=environ).settings.hook_options == {"acme_profile": "cpu"}


def test_nothing_is_imported_where_none_is_given(acme, script):
    assert settle(script, "--nproc-per-node", "2").settings.hook_options == {}
    assert not [name for name in sys.modules if name.startswith("acme")]


def test_hooks_get_the_endpoint_without_credentials(script):
    words = ["--rdzv-backend", "redis", "--rdzv-id", "r", "--rdzv-endpoint", "rediss://me:p?w@redis:6380?db=3"]
    settings = hook_settings(settle(script, *words).settings, "")
    assert (settings.backend, settings.endpoint) == ("redis", "redis:6380")


def test_hooks_get_what_all_workers_have_in_every_round(script, monkeypatch):
    monkeypatch.setenv("ELASTIC_KEEP", "1")  # the agent's own
    monkeypatch.setenv("SEED", "7")
    settings = hook_settings(settle(script, "--nproc-per-node", "2", "--omp-threads", "3").settings, "")
    assert settings.command[1:] == ("-u", script)
    expected = {"SEED": "7", "OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    assert expected.items() <= settings.environment.items()
    assert not {"ELASTIC_KEEP", "RANK", "LOCAL_RANK"} & set(settings.environment)


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["--acme-profile", "tpu"], "--acme-profile: 'tpu'; expected one of cpu, gpu"),
        (
            ["--acme-period", "soon"],
            "--acme-period: 'soon'; expected seconds, 0 or more, or a time as 30s, 5m or 1h. Try: --acme-period 1.5",
        ),
        (["--acme-count", "1"], "--acme-count: '1'; expected a whole number, 2 or more"),
        (["--acme-loud=1"], "--acme-loud takes no value"),
        (["--acme-p", "cpu"], "option --acme-p is ambiguous: --acme-period, --acme-profile"),
    ],
)
def test_mistakes_are_one_line(acme, script, words, needed):
    with pytest.raises(ConfigError) as caught:
        settle(script, *words)
    assert str(caught.value).startswith(needed)


def test_beginnings_mean_ours_first(acme, script):
    assert settle(script, "--acme-pro", "cpu").settings.hook_options == {"acme_profile": "cpu"}
    assert settle(script, "--max-r", "3").settings.restarts.max_restarts == 3


def test_the_library_has_them_too(acme):
    assert given_from({"acme_profile": "cpu", "acme_count": 3, "acme_loud": None}) == {
        "acme_profile": "cpu",
        "acme_count": "3",
    }
    with pytest.raises(ConfigError, match=r"launch.. has no option 'acme_profil'"):
        given_from({"acme_profil": "cpu"})


def test_help_has_them_under_the_heading_of_their_plugin(acme, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    assert "\n  Acme profiler (acme-tools): --acme-" in out
    assert main(["run", "--help-all"]) == 0
    out = capsys.readouterr().out
    assert "--acme-profile cpu|gpu" in out
    headings = [out.index(f"\n{name}:\n") for name in ("Compatibility", "acme-tools", "Acme profiler", "Help")]
    assert headings == sorted(headings)
    assert "How often.  [default: 1.5; PET_ACME_PERIOD]" in out


def test_completion_knows_them(acme, capsys, monkeypatch):
    monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "elastic run --acme-profile g")
    monkeypatch.setenv("COMP_CWORD", "3")
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == ["plain,gpu"]


def test_a_dry_run_shows_what_the_hook_changes(acme, script):
    text = describe(settle(script, "--acme-profile", "cpu"), {})
    assert "  command  env cpu " in text
    assert "    ACME=1" in text
    assert "  runs on  processors 3-5,7 (--acme-profile)" in text
    assert "flag --acme-profile" in text


# --- the hook


def make(options, **registry):
    hooks, warnings = PluginRegistry(**registry).make_hooks(HookSettings(name="", local_world_size=2), options)
    return [named for named in hooks if "acme" in named.distribution], warnings


def test_a_chosen_hook_is_built_with_its_options_and_defaults(acme):
    ([named], warnings) = make({"acme_profile": "cpu", "acme_count": 3})
    assert (named.name, named.distribution, warnings) == ("acme-count", "acme-tools 1.2", [])
    assert dict(named.hook.settings.options) == {
        "acme_profile": "cpu", "acme_period": 1.5, "acme_count": 3, "acme_loud": None,
    }  # fmt: skip
    assert make({}) == ([], [])


def test_an_installed_hook_is_on_anyhow_and_has_what_was_given(install):
    install(entries=f"{ENTRIES}[elastic_core.hooks]\nacme = acme_hook:Profile\n", acme_options=DECLARED, acme_hook=HOOK)
    ([named], _) = make({})
    assert (named.name, named.hook.settings.options["acme_profile"]) == ("acme", None)
    ([named], _) = make({"acme_profile": "gpu"})
    assert (named.name, named.hook.settings.options["acme_profile"]) == ("acme", "gpu")


@pytest.mark.parametrize(
    ("hook", "error", "line"),
    [
        ("raise ImportError('libacme')", PluginError, "importing acme_hook:Profile raised ImportError: libacme"),
        (HOOK.replace("acme_options.PROFILE, ", ""), PluginError, "acme_hook:Profile has no option 'acme_profile'"),
        (
            HOOK.replace("on_workers_starting", "on_drain"),
            PluginError,
            "states the power 'launches' and has no on_work",
        ),
        (
            HOOK.replace("frozenset({Power.LAUNCHES})", "'launches'"),
            PluginError,
            "states powers 'launches'; expected a ",
        ),
    ],
)
def test_a_broken_hook_that_was_asked_for_stops_the_run(install, hook, error, line):
    install(acme_options=DECLARED, acme_hook=hook)
    with pytest.raises(error) as caught:
        make({"acme_profile": "cpu"})
    assert str(caught.value).startswith("option 'acme-profile' (acme-tools 1.2): ")
    assert line in str(caught.value)


def test_what_the_hook_says_of_its_settings_passes(install):
    refuses = "    def __init__(self, settings): raise ConfigError('no such GPU', hint='another')\n"
    install(acme_options=DECLARED, acme_hook=HOOK + "    " + refuses)
    with pytest.raises(ConfigError, match=r"^no such GPU. Try: another$"):
        make({"acme_profile": "cpu"})


def test_two_claims_and_bad_declarations_name_their_owner(install, acme):
    install(
        "acme-more", "[elastic_core.options]\nacme-loud = acme_more:LOUD\nacme-x = acme_more:X\n", acme_more="X = 5"
    )
    declared = "from elastic_core.api import RunOption\nY = RunOption(name='acme_y', help='None.')\n"
    install("acme-none", "[elastic_core.options]\nacme-y = acme_none:Y\n", acme_none=declared)
    with pytest.raises(PluginError, match=r"option 'acme-loud' comes from acme-more 1.2 and acme-tools 1.2"):
        read_arguments(["--acme-loud", "x.py"])
    with pytest.raises(PluginError, match=r"option 'acme-x' \(acme-more 1.2\): acme_more:X is int; expected a R"):
        read_arguments(["--acme-x", "x.py"])
    with pytest.raises(PluginError, match=r"acme_none:Y has no hook; expected 'package.module:Class'"):
        read_arguments(["--acme-y", "x.py"])


def test_plugins_are_listed_with_their_powers(acme):
    rows = {info.name: info for info in list_plugins(PluginRegistry()) if info.distribution == "acme-tools"}
    assert {(name, info.kind, info.status, info.powers) for name, info in rows.items()} == {
        (f"acme-{name}", "option", "loaded", ("launches",)) for name in ("profile", "period", "count", "loud")
    }


# --- torch's variables

VARIABLE = """
    from elastic_core.api import RunOption
    LIMIT = RunOption(name="acme_limit", type="int", hook="acme_hook:Limit", variable="TORCHELASTIC_ACME",
                      help="A limit.")
"""
LIMIT = """
    from elastic_core.api import *
    import acme_variable
    class Limit(AgentHook):
        api_version = 1
        options = (acme_variable.LIMIT,)
"""
ALONE = "[elastic_core.options]\nTORCHELASTIC_ACME = acme_variable:LIMIT\n"


def test_a_variable_of_torchs_gives_an_option_that_has_no_flag(install, script):
    install(entries=ALONE, acme_variable=VARIABLE, acme_hook=LIMIT)
    environ = {"TORCHELASTIC_ACME": "7", "TORCHELASTIC_RUN_ID": "outer", "TORCHELASTIC_ELSE": "1"}
    resolution = settle(script, environ=environ)
    assert resolution.settings.hook_options == {"acme_limit": 7}
    assert resolution.origins["acme_limit"] == "env TORCHELASTIC_ACME"
    (hook,) = PluginRegistry().make_chosen_hooks(HookSettings(name=""), resolution.settings.hook_options)
    assert (hook.name, hook.hook.settings.options) == ("acme-limit", {"acme_limit": 7})
    assert settle(script, environ={"TORCHELASTIC_ACME": ""}).settings.hook_options == {}
    assert settle(script, environ={"PET_ACME_LIMIT": "3"}).settings.hook_options == {}
    with pytest.raises(ConfigError, match="TORCHELASTIC_ACME: 'x'; expected a whole number"):
        settle(script, environ={"TORCHELASTIC_ACME": "x"})
    with pytest.raises(ConfigError, match="no such option: --acme-limit"):
        settle(script, "--acme-limit", "3")


def test_a_flag_comes_before_the_variable(install, script):
    install(entries=ALONE + "acme-limit = acme_variable:LIMIT\n", acme_variable=VARIABLE, acme_hook=LIMIT)
    environ = {"TORCHELASTIC_ACME": "7"}
    assert settle(script, "--acme-limit", "3", environ=environ).settings.hook_options == {"acme_limit": 3}
    assert settle(script, environ=environ).settings.hook_options == {"acme_limit": 7}


def test_a_variable_that_its_declaration_does_not_name_is_refused(install, script):
    install(entries=ALONE.replace("ACME", "OTHER"), acme_variable=VARIABLE)
    with pytest.raises(PluginError, match="has variable 'TORCHELASTIC_ACME'; expected 'TORCHELASTIC_OTHER'"):
        settle(script, environ={"TORCHELASTIC_OTHER": "1"})


# --- ours, elsewhere

COMES = "comes with elastic-acme. Try: pip install . ./plugins/acme, in a checkout of elastic-core"


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setitem(missing._KNOWN[missing.OPTIONS_GROUP], "acme-known", "elastic-acme")


@pytest.mark.parametrize("typed", ["--acme-known", "--acme_known=3", "--acme-kn"])
def test_an_option_of_ours_that_is_not_installed_says_what_to_install(known, script, typed):
    with pytest.raises(PluginError) as caught:
        settle(script, typed)
    assert str(caught.value) == f"--acme-known {COMES}"


def test_its_variable_and_the_library_say_so_too(known, script):
    with pytest.raises(PluginError, match="--acme-known comes with elastic-acme"):
        settle(script, environ={"PET_ACME_KNOWN": "1"})
    with pytest.raises(PluginError, match="--acme-known comes with elastic-acme"):
        given_from({"acme_known": True})
    assert given_from({"acme_known": None}) == {}


def test_a_variable_that_asks_for_what_is_not_installed_says_so(monkeypatch, script):
    monkeypatch.setitem(missing._VARIABLES, "TORCHELASTIC_KNOWN", ("elastic-acme", "0"))
    with pytest.raises(PluginError) as caught:
        settle(script, environ={"TORCHELASTIC_KNOWN": "1"})
    assert str(caught.value) == f"TORCHELASTIC_KNOWN {COMES}"
    assert settle(script, environ={"TORCHELASTIC_KNOWN": "0"}).settings.hook_options == {}


def test_one_may_be_given_several_times_and_say_what_is_wrong_with_a_text(install, script):
    declared = """
        from elastic_core.api import RunOption
        def fault(text):
            return "" if text.islower() else "small letters"
        TAG = RunOption(name="acme_tag", hook="acme_tags:Tags", many=True, fault=fault, hint="--acme-tag red",
                        default_note="no tags", help="A tag.")
    """
    hook = """
        from elastic_core.api import *
        import acme_tag
        class Tags(AgentHook):
            api_version = 1
            options = (acme_tag.TAG,)
            def on_agent_started(self, event):
                pass
    """
    install(entries="[elastic_core.options]\nacme-tag = acme_tag:TAG\n", acme_tag=declared, acme_tags=hook)
    options = settle(script, "--acme-tag", "red", "--acme-tag", "blue").settings.hook_options
    assert options == {"acme_tag": ("red", "blue")}
    assert settle(script, environ={"PET_ACME_TAG": "red"}).settings.hook_options == {"acme_tag": ("red",)}
    hooks, _ = PluginRegistry().make_hooks(HookSettings(name="", run_id="r"), options)
    settings = hooks[-1].hook.settings
    assert (settings.lists, settings.options) == ({"acme_tag": ("red", "blue")}, {})
    assert settings.option_list("acme_tag", str) == ("red", "blue")
    with pytest.raises(ConfigError, match=r"expected small letters. Try: --acme-tag red"):
        settle(script, "--acme-tag", "Red")


NAMED = DECLARED.replace("hook=HOOK", 'hook=HOOK, hook_name="acme"')


def built(settled, **registry):
    settings = settled.settings
    hooks, lines = PluginRegistry(**registry).make_hooks(hook_settings(settings, ""), settings.hook_options)
    return [named.name for named in hooks if "acme" in named.distribution], [line for line in lines if "no:" in line]


@pytest.mark.parametrize(("declared", "name"), [(DECLARED, "acme-count"), (NAMED, "acme")])
def test_what_a_hook_is_called_does_not_hang_on_what_was_typed_first(install, script, declared, name):
    install(acme_options=declared, acme_hook=HOOK)
    words = [["--acme-profile", "cpu"], ["--acme-count", "3"]]
    assert built(settle(script, *words[0], *words[1])) == ([name], [])
    assert built(settle(script, *words[1], *words[0])) == ([name], [])


def test_a_hook_that_an_option_chose_is_turned_off_by_its_name(install, script):
    install(acme_options=NAMED, acme_hook=HOOK)
    settled = settle(script, "--acme-profile", "cpu")
    assert built(settled, disabled=("acme",)) == ([], [])
    _, (line,) = built(settled, disabled=("acme-profile",))
    assert line.startswith("-p no:acme-profile has no effect")


def test_a_name_of_a_hook_is_a_word(install, script):
    install(acme_options=NAMED.replace('"acme"', '"two words"'), acme_hook=HOOK)
    with pytest.raises(PluginError, match="has hook_name 'two words'; expected a word, or nothing"):
        settle(script, "--acme-profile", "cpu")
