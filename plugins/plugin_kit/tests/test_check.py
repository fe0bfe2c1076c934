"""`elastic plugins check`: verdict, rows and exit code, as people and programs get them."""

import os
import subprocess
import sys

import pytest

from elastic_core.cli.main import main
from elastic_core.plugins.discovery import COMMANDS_GROUP, find_entries
from patience import patience

PLUGINS = """
import threading
from elastic_core.api import AgentHook, CoordinationStore, FailureHandler, OptionSpec, Restart, Stop
from elastic_core.api import Environment, Proposal
from elastic_plugin_kit import MemoryServer, MemoryStore

SERVER = MemoryServer()


class Negative(FailureHandler):
    api_version = 1
    options = (OptionSpec(name="pause", type="float", default=-1.0, help="the pause"),)

    def decide(self, failure, history):
        if len(history) >= self.settings.max_restarts:
            return Stop(reason="enough")
        return Restart(delay_s=self.settings.options["pause"])


class Leaky(AgentHook):
    api_version = 1

    def on_round_joined(self, event):
        threading.Thread(target=threading.Event().wait, daemon=True, name="leak").start()


class Moody(Negative):
    api_version = 1

    def decide(self, failure, history):
        return Restart(delay_s=len(history) + isinstance(history, tuple))


class Sleepy(Negative):
    api_version = 1

    def __init__(self, settings):
        threading.Event().wait()


class Deaf(MemoryStore):
    api_version = 1

    def __init__(self, settings):
        super().__init__(settings, server=SERVER)

    def members(self, *, wait):
        threading.Event().wait()


class NoPlugin:
    pass


class Signature(FailureHandler):
    api_version = 1

    def decide(self, failure):
        return Stop(reason="enough")


class Raising(Negative):
    api_version = 1

    def decide(self, failure, history):
        return {}["who"]


class Diary(AgentHook):
    api_version = 1
    options = (OptionSpec(name="path", required=True, help="the file"),)

    def on_round_joined(self, event):
        assert self.settings.option("path", str)


class Acme(Environment):
    api_version = 1
    title = "Acme"

    def propose(self, given):
        with open("/proc/self/status"):
            nodes = str(int(self.variables["ACME_NODES"]))
        return [Proposal(option="nnodes", value=nodes, reason="ACME_NODES"),
                Proposal(option="tomorrow", value=nodes, reason="ACME_NODES")]


class Exits(AgentHook):
    api_version = 1

    def on_workers_started(self, event):
        import os
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        os._exit(0)


class Misspelt(AgentHook):
    api_version = 1

    def on_worker_start(self, event):
        pass
"""


@pytest.fixture
def check(tmp_path):
    """Type `elastic plugins check …` in a folder with some plugins; return exit code, output and errors."""
    (tmp_path / "mine.py").write_text(PLUGINS)
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PET_", "ELASTIC_"))}

    def typed(*given, start=("-m", "elastic_core"), words=("plugins", "check")):
        line = [sys.executable, *start, *words, *given]
        done = subprocess.run(
            line,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience(120),
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return typed


def rows(out):
    """Return the outcome of each check, by its name."""
    found = [line.split() for line in out.splitlines() if "::test_" in line and line.endswith("%]")]
    return {row[0].partition("::test_")[2]: row[1] for row in found}


def failed(out):
    return sorted(name for name, outcome in rows(out).items() if outcome == "FAILED")


def test_a_policy_that_keeps_its_promises(check):
    code, out, err = check("intensity")
    assert (code, err) == (0, "")
    assert set(rows(out).values()) == {"PASSED"}
    assert next(iter(rows(out))) == "a_run_loads_it"
    *_, verdict, counts = out.splitlines()
    assert verdict.startswith("policy 'intensity' (elastic-core ")
    assert verdict.endswith(") keeps every promise that could be checked")
    assert f" {len(rows(out))} passed in " in counts


def test_settings_of_the_folder_do_not_count(check, tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --nonsense\n")
    (tmp_path / "conftest.py").write_text("1 / 0\n")
    assert check("intensity", "--", "-k", "api_version")[0] == 0


def test_a_broken_one_is_named_check_by_check_with_exit_code_1(check):
    code, out, _ = check("mine:Negative")
    assert code == 1
    assert failed(out) == ["decisions_can_be_followed"]
    assert "delay_s is -1.0" in out
    assert "docs/plugin_authors/policy.md" in out  # the rules
    assert "policy 'mine:Negative' does not keep its promises" in out


def test_an_environment_is_asked_with_the_variables_that_are_given(check):
    given = ("mine:Acme", "--variable", "ACME_JOB=7", "--variable", "ACME_NODES=0")
    code, out, err = check(*given)
    assert (code, err) == (1, "")
    assert failed(out) == ["a_run_takes_what_is_proposed", "it_asks_nobody", "odd_values_end_well"]
    assert "without ACME_NODES, propose raised KeyError; expected an ElasticError" in out
    assert "--nnodes: '0' by Acme: ACME_NODES; expected" in out
    assert "propose did ['open']; expected no I/O (or set `reads_files`)" in out
    assert rows(out)["options_are_known"] == "SKIPPED"
    assert "no installed distribution has tomorrow" in out
    code, out, _ = check(*given[:3], "--variable", "ACME_NODES=2", "--reads-files", "--", "-k", "odd or asks or takes")
    assert (code, failed(out)) == (1, ["odd_values_end_well"])


def test_an_environment_shows_by_its_variable(check):
    code, _, err = check("mine:Acme")
    assert code == 2
    hint = "--variable NAME=VALUE first, then the others, as they are where it does"
    assert err == f"elastic: error: nothing says which variable shows it. Try: {hint}\n"


def test_a_failed_comparison_is_shown_with_its_promise(check):
    code, out, _ = check("mine:Moody", "--", "-k", "any_sequence")
    assert code == 1
    assert '"""A list or a tuple; it is left as it is."""' in out
    assert "assert Restart(" in out


def test_options_are_given_as_to_a_run_and_converted(check):
    assert check("mine:Negative", "--policy-conf", "pause=1")[0] == 0
    code, _, err = check("mine:Negative", "--policy-conf", "paus=1")
    assert code == 2
    assert "policy 'mine:Negative' has no option 'paus' in --policy-conf" in err


def test_a_hook_has_the_options_that_are_given_behind_its_name(check):
    code, out, _ = check("mine:Diary", "--hook-conf", "path=/tmp/diary")
    assert (code, failed(out)) == (0, [])
    code, out, err = check("mine:Diary")
    assert (code, out) == (2, "")
    assert err.endswith("needs the option 'path' in --hook-conf. Try: --hook-conf path=<text>\n")


def test_a_misspelt_moment_is_a_warning(check):
    _, out, _ = check("mine:Misspelt", "--", "-k", "loads")
    assert "nothing calls Misspelt.on_worker_start: AgentHook has no such method. Try: on_workers_start" in out


def test_a_plugin_that_ends_the_process_does_not_end_the_check(check):
    code, out, _ = check("mine:Exits", "--", "-k", "every_moment")
    assert (code, len(failed(out))) == (1, 2)
    assert "it called os._exit(0), which would end the agent without a result" in out
    assert "hook 'mine:Exits' does not keep its promises" in out


def test_a_module_that_ends_the_process_does_not_end_the_check(check, tmp_path):
    (tmp_path / "gone.py").write_text("import os\nos._exit(0)\n")
    code, _, err = check("gone:Hook")
    assert code == 3
    assert "it called os._exit(0), which would end the agent without a result" in err


def test_what_a_run_would_refuse_comes_first(check):
    code, out, _ = check("mine:Signature")
    assert (code, failed(out)[0]) == (1, "a_run_loads_it")
    assert "Signature has decide(self, failure); expected decide(self, failure, history)" in out


def test_an_exception_of_the_plugins_has_its_place(check):
    (line,) = (at for at, text in enumerate(PLUGINS.splitlines(), 1) if '["who"]' in text)
    code, out, _ = check("mine:Raising", "--", "-k", "every_failure_is_decided")
    assert code == 1
    assert f"mine.py:{line}: KeyError" in out


def test_the_verdict_is_about_the_selected_checks(check):
    code, out, _ = check("intensity", "--", "-k", "api_version")
    assert code == 0
    assert out.splitlines()[-2].endswith("keeps the selected promises")


def test_options_of_pytest_follow_two_dashes(check, tmp_path):
    code, _, _ = check("mine:Leaky", "--", "--junitxml=check.xml", "-k", "leaves_nothing or api_version")
    report = (tmp_path / "check.xml").read_text()
    assert code == 1
    assert 'failures="1" skipped="0" tests="2"' in report
    assert "the hook left the threads [&#x27;leak&#x27;, " in report or "the hook left the threads ['leak', " in report
    assert check("mine:Leaky", "--", "--nonsense")[0] == 2


def test_pytest_itself_runs_the_suite(check, tmp_path):
    pytest_alone = ("-m", "pytest", "-p", "no:cacheprovider", "--pyargs", "elastic_plugin_kit.suites")
    own = ("-k", "seat or loads")
    store = ("--elastic-plugin=elastic_plugin_kit.file_store:FileStore", f"--elastic-endpoint={tmp_path / 'runs'}")
    code, out, err = check(*store, *own, start=pytest_alone, words=())
    assert (code, err) == (0, "")
    assert "keeps the selected promises" in out
    code, _, err = check("--elastic-plugin=mine:Missing", *own, start=pytest_alone, words=())
    assert (code, err.count("\n")) == (4, 2)
    assert "has no attribute 'Missing'" in err
    code, out, err = check(*own, start=pytest_alone, words=())
    assert (code, "Try: --elastic-plugin NAME" in out) == (4, True), err


def test_a_store_is_asked_at_its_server_and_what_needs_the_authors_fixtures_is_skipped(check, tmp_path):
    store = "elastic_plugin_kit.file_store:FileStore"
    code, out, err = check(store, "--rdzv-endpoint", str(tmp_path / "runs"), "--", "-k", "paused")
    assert code == 1, out + err  # nothing was asked
    assert set(rows(out).values()) == {"SKIPPED"}
    assert "needs the fixture `pause_server` of the plugin's own tests" in out


def test_a_store_keeps_what_can_be_asked_of_any(check, tmp_path):
    store = "elastic_plugin_kit.file_store:FileStore"
    code, out, err = check(store, "--rdzv-endpoint", str(tmp_path / "runs"), "--", "-k", "seat")
    assert code == 0, out + err
    assert rows(out)["a_seat_number_is_never_used_again"] == "PASSED"


IMPATIENT = """
import sys
from elastic_core.cli.main import main
from elastic_plugin_kit.checking import pytest_plugin, subject
subject.CALL_S, pytest_plugin.CHECK_S = float(sys.argv.pop(1)), float(sys.argv.pop(1))
sys.exit(main())
"""
CALL_S = round(patience(1))
"""What a call of a plugin may take, and in which its module is imported."""


def test_a_plugin_that_hangs_when_it_is_built_is_named_and_waited_for_once(check):
    code, out, _ = check("mine:Sleepy", start=("-c", IMPATIENT, f"{CALL_S}", "60"))
    assert code == 1
    assert len(failed(out)) > 3  # each without a wait of its own
    said = f"CallHangs: policy 'mine:Sleepy' (not installed): building it takes longer than {CALL_S} s"
    assert out.count(said) >= len(failed(out))


def test_a_check_in_which_a_call_hangs_ends_and_after_some_no_more_are_asked(check):
    words = ("--kind", "rendezvous", "--", "-k", "members")
    limit_s = CALL_S + 1
    code, out, _ = check("mine:Deaf", *words, start=("-c", IMPATIENT, f"{CALL_S}", f"{limit_s}"))
    assert code == 1
    place = next(number for number, line in enumerate(PLUGINS.splitlines(), 1) if "def members" in line) + 1
    assert f"mine.py:{place}: " in out
    assert f"Failed: the check is still running after {limit_s} s" in out
    assert len(failed(out)) == 3
    assert "3 checks have not ended" in out


def test_an_import_that_never_ends_is_named_without_a_guess_at_its_kind(monkeypatch, capsys, tmp_path):
    (tmp_path / "stuck.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr("elastic_plugin_kit.checking.subject.CALL_S", 0.1)
    assert main(["plugins", "check", "stuck:Hook"]) == 3
    said = "'stuck:Hook' (not installed): importing stuck:Hook takes longer than 0.1 s"
    cure = "Try: mend stuck:Hook, then elastic plugins check stuck:Hook"
    assert capsys.readouterr().err == f"elastic: error: {said}. {cure}\n"


@pytest.mark.parametrize(
    ("words", "code", "what", "hint"),
    [
        (["intensty"], 2, "no plugin 'intensty' is installed", "Try: elastic plugins check intensity"),
        (
            ["intensity", "--kind", "hook"],
            2,
            "no plugin of kind 'hook' 'intensity' is installed",
            "Try: elastic plugins",
        ),
        (["intensity", "--kind", "policy"], 2, "'policy'; expected one of rendezvous, failure", "Try: --kind"),
        (["mine:NoPlugin"], 3, "is the class NoPlugin; the kits are for classes", ""),
        (["mine:Missing"], 3, "has no attribute 'Missing'", ""),
        (["redis", "--rdzv-endpoint", "127.0.0.1:9"], 4, "no server to check backend 'redis'", "Try: --rdzv-endpoint"),
        (["intensity", "--policy-conf", "pause"], 2, "'pause'; expected KEY=VALUE", "Try: pause=VALUE"),
    ],
)
def test_what_is_wrong_is_one_line(check, words, code, what, hint):
    ended, out, err = check(*words)
    assert (ended, out, err.count("\n")) == (code, "", 1), err
    assert what in err
    assert hint in err


def test_without_the_kit_a_line_says_what_to_install(monkeypatch, capsys):
    commands = [entry for entry in find_entries(COMMANDS_GROUP) if entry.distribution != "elastic-plugin-kit"]
    monkeypatch.setattr("elastic_core.plugins.commands.find_entries", lambda _: commands)
    assert main(["plugins", "check", "intensity"]) == 3
    assert "`elastic plugins check` comes with elastic-plugin-kit. Try: " in capsys.readouterr().err
