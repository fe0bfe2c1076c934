"""`elastic plugins show`: what a plugin is, for people and for programs."""

import json
import sys
import textwrap

import pytest

from elastic_core.cli.main import main

SOURCE = """
    from elastic_core.api import *

    class Base(AgentHook):
        '''Not this one's.'''

    class Diary(Base):
        '''Keeps a diary.

        And more.
        '''
        api_version = 1
        powers = frozenset({Power.REFUSAL, Power.RUN})
        options = (
            OptionSpec(name="path", required=True, help="where it is"),
            OptionSpec(name="every", type="duration", default=2, least=1),
            OptionSpec(name="ranks", type="int", least=0, most=7, many=True),
            OptionSpec(name="mode", choices=("a", "b"), default="a"),
        )
        def on_joining(self, event): ...
        def on_failure(self, event): ...
        def helper(self): ...

    class Patient(FailureHandler):
        api_version = 1
        def decide(self, failure, history): ...

    class Acme(Environment):
        api_version = 1
        title = "Acme"
        def propose(self, given): ...

    class Bad(Patient):
        api_version = 1
        options = ("x",)
"""
POINTS = """
[elastic_core.hooks]
diary = acme_shown:Diary
both = acme_shown:Base
[elastic_core.environments]
ACME_JOB = acme_shown:Acme
[elastic_core.failure]
both = acme_shown:Patient
bad = acme_shown:Bad
broken = acme_broken:Policy
"""


@pytest.fixture
def show(tmp_path, monkeypatch, capsys):
    """Type `elastic plugins show …`; return exit code, output and errors."""
    info = tmp_path / "acme-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: acme\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(POINTS)
    (tmp_path / "acme_shown.py").write_text(textwrap.dedent(SOURCE))
    (tmp_path / "acme_broken.py").write_text("import no_such_client")
    monkeypatch.syspath_prepend(str(tmp_path))

    def typed(*words):
        code = main(["plugins", "show", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    yield typed
    sys.modules.pop("acme_shown", None)


def test_a_hook_with_all_that_it_declares(show, tmp_path):
    code, out, err = show("diary")
    line = 1 + textwrap.dedent(SOURCE).splitlines().index("class Diary(Base):")
    assert (code, err) == (0, "")
    assert out == (
        "hook 'diary' (acme 1.2): Keeps a diary.\n"
        "  entry point  elastic_core.hooks: acme_shown:Diary\n"
        f"  file         {tmp_path}/acme_shown.py:{line}\n"
        "  api_version  1\n"
        "  interface    AgentHook\n"
        "  moments      on_joining, on_failure\n"
        "  powers       refusal, run\n"
        "  options      -p diary:path=VALUE   str; required\n"
        "                                     where it is\n"
        "               -p diary:every=VALUE  duration, 1 or more; default 2\n"
        "               -p diary:ranks=VALUE  list of int, 0 to 7\n"
        "               -p diary:mode=VALUE   a|b; default a\n"
    )


def test_a_name_of_several_kinds_shows_all(show):
    code, out, _ = show("both")
    policy, hook = out.split("\n\n")
    assert (code, policy.splitlines()[0]) == (0, "policy 'both' (acme 1.2)")
    assert hook.splitlines()[0] == "hook 'both' (acme 1.2): Not this one's."
    assert "  methods      decide" in policy


def test_an_environment_is_shown_by_its_variable_with_its_title(show):
    code, out, _ = show("ACME_JOB")
    assert (code, out.splitlines()[0]) == (0, "environment 'ACME_JOB' (acme 1.2)")
    assert "  interface    Environment\n  title        Acme\n  methods      propose\n" in out


def test_a_class_that_is_not_installed(show):
    code, out, _ = show("acme_shown:Patient")
    assert (code, out.splitlines()[0]) == (0, "policy 'acme_shown:Patient' (not installed)")


def test_for_programs(show):
    code, out, _ = show("diary", "--json")
    (shown,) = json.loads(out)
    assert code == 0
    kept = ("name", "kind", "distribution", "version", "api_version", "moments", "powers", "fault", "summary")
    assert {name: shown.get(name) for name in kept} == {
        "name": "diary",
        "kind": "hook",
        "distribution": "acme",
        "version": "1.2",
        "api_version": 1,
        "moments": None,
        "powers": ["refusal", "run"],
        "fault": "",
        "summary": "Keeps a diary.",
    }
    assert shown["methods"] == ["on_joining", "on_failure"]
    assert shown["options"][2] == {
        **{"name": "ranks", "type": "int", "default": None, "required": False, "unit": "", "help": ""},
        **{"choices": [], "least": 0, "above": None, "most": 7, "many": True, "words": []},
    }


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("broken", "importing acme_broken:Policy raised ModuleNotFoundError: No module named 'no_such_client'"),
        ("bad", "options is ('x',), no tuple of OptionSpec"),
    ],
)
def test_what_is_wrong_is_shown_with_the_rest(show, name, fault):
    code, out, err = show(name)
    assert (code, err) == (3, "")
    assert f"policy {name!r} (acme 1.2)" in out
    assert fault in out


def test_an_option_of_a_run_and_a_command_and_a_store(show):
    assert "  options      --hang-timeout  duration, seconds, or auto; default 0.0\n" in show("hang-timeout")[1]
    assert "  api_version  " in show("status")[1]
    code, out, _ = show("redis")
    assert code == 0
    assert "--rdzv-conf insecure=VALUE" in out
    assert "lease_ttl, join_timeout, last_call_timeout, connect_timeout: of every store" in out


def test_an_unknown_name_is_refused_with_the_nearest(show):
    code, _, err = show("diery")
    assert (code, err) == (2, "elastic: error: no plugin 'diery' is installed. Try: elastic plugins show 'diary'\n")
