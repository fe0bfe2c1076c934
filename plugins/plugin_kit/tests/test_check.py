"""`elastic plugins check`: verdict, table and exit code, as people and programs get them."""

import json
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
from elastic_core.testing import MemoryServer, MemoryStore

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

    def typed(*words, start=("-m", "elastic_core"), **more):
        line = [sys.executable, *start, "plugins", "check", *words]
        done = subprocess.run(
            line,
            cwd=tmp_path,
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=patience(120),
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return typed


def test_a_policy_that_keeps_its_promises(check):
    code, out, err = check("intensity", PYTEST_ADDOPTS="--nonsense")  # of somebody's own tests
    assert (code, err) == (0, "")
    first, *rows, verdict = out.splitlines()
    assert first.startswith("policy 'intensity' (elastic-core ")
    assert first.endswith(f": {len(rows)} checks")
    assert {row.split()[0] for row in rows} == {"passed"}
    assert verdict.endswith(f"keeps every promise that could be asked: {len(rows)} passed")


def test_a_broken_one_is_named_check_by_check_with_exit_code_1(check):
    code, out, _ = check("mine:Negative")
    assert code == 1
    failed = [line for line in out.splitlines() if line.startswith("failed")]
    assert len(failed) == 1
    assert failed[0].split(None, 1)[1].startswith("decisions can be followed")
    assert "delay_s is -1.0" in failed[0]
    assert out.splitlines()[-1].startswith("policy 'mine:Negative' does not keep its promises: ")


def test_an_environment_is_asked_with_the_variables_that_are_given(check):
    given = ("mine:Acme", "--variable", "ACME_JOB=7", "--variable", "ACME_NODES=0")
    code, out, err = check(*given)
    assert (code, err) == (1, "")
    rows = {row[9:].rstrip(): row.split()[0] for row in out.splitlines()[1:-1]}
    (odd,) = [row for row in rows if row.startswith("odd values")]
    assert "without ACME_NODES, KeyError is raised, no ElasticError" in odd
    (run,) = [row for row in rows if row.startswith("a run takes")]
    assert "--nnodes '0' by Acme: ACME_NODES: needed" in run
    (asks,) = [row for row in rows if row.startswith("it asks nobody")]
    assert "proposals did ['open']; set `reads_files`" in asks
    (known,) = [row for row in rows if row.startswith("options are known")]
    assert rows[known] == "skipped"
    assert "nothing installed here has tomorrow" in known
    assert sorted(row for row in rows if rows[row] == "failed") == sorted([odd, run, asks])
    code, out, _ = check(*given[:3], "--variable", "ACME_NODES=2", "--reads-files", "--only", "s")
    assert code == 1
    assert [row.split("  ")[1].strip() for row in out.splitlines() if row.startswith("failed")] == [
        "odd values end well"
    ]


def test_an_environment_shows_by_its_variable(check):
    code, _, err = check("mine:Acme")
    assert code == 2
    hint = "--variable NAME=VALUE first, then the others, as they are where it does"
    assert err == f"elastic: error: nothing says which variable shows it. Try: {hint}\n"


def test_a_comparison_without_words_is_told_with_its_promise(check):
    code, out, _ = check("mine:Moody", "--only", "any sequence")
    assert code == 1
    (failed,) = [line for line in out.splitlines() if line.startswith("failed")]
    assert "A list or a tuple; it is left as it is. assert Restart(" in failed


def test_options_are_given_as_to_a_run_and_converted(check):
    assert check("mine:Negative", "--policy-conf", "pause=1")[0] == 0
    code, _, err = check("mine:Negative", "--policy-conf", "paus=1")
    assert code == 2
    assert "policy 'mine:Negative' has no option 'paus' in --policy-conf" in err


def test_a_hook_has_the_options_that_are_given_behind_its_name(check):
    code, out, _ = check("mine:Diary", "--hook-conf", "path=/tmp/diary")
    assert (code, out.splitlines()[0]) == (0, f"hook 'mine:Diary': {len(out.splitlines()) - 2} checks")
    code, out, err = check("mine:Diary")
    assert (code, out) == (2, "")
    assert err.endswith("needs the option 'path' in --hook-conf. Try: --hook-conf path=<text>\n")


def test_a_misspelt_moment_is_named_as_in_a_run(check):
    _, _, err = check("mine:Misspelt", "--only", "api version")
    assert "nothing calls Misspelt.on_worker_start: AgentHook has no such method. Try: on_workers_start" in err


def test_a_plugin_that_ends_the_process_does_not_end_the_check(check):
    code, out, _ = check("mine:Exits", "--only", "every moment")
    assert code == 1
    assert "failed   every moment is taken  it called os._exit(0), which ends an agent without a verdict" in out
    assert "hook 'mine:Exits' does not keep its promises: 2 failed" in out


def test_what_a_run_would_refuse_comes_first(check):
    code, out, _ = check("mine:Signature")
    first, row = out.splitlines()[:2]
    assert (code, first) == (1, f"policy 'mine:Signature': {len(out.splitlines()) - 2} checks")
    assert row.split(None, 1)[0] == "failed"
    assert row.endswith("Signature has decide(self, failure); expected decide(self, failure, history)")
    assert "a run loads it" in row


def test_an_exception_of_the_plugins_has_its_place(check):
    (line,) = (at for at, text in enumerate(PLUGINS.splitlines(), 1) if '["who"]' in text)
    code, out, _ = check("mine:Raising", "--only", "every failure is decided")
    assert code == 1
    assert out.splitlines()[1].endswith(f"KeyError: 'who' (mine.py:{line})")


def test_of_some_checks_no_more_is_said_than_was_asked(check):
    code, out, _ = check("intensity", "--only", "the api version is stated")
    assert code == 0
    assert ": 1 check\n" in out
    assert out.splitlines()[-1].endswith("keeps what was asked: 1 passed")


def test_an_import_that_never_ends_is_named_without_a_guess_at_its_kind(monkeypatch, capsys, tmp_path):
    (tmp_path / "stuck.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr("elastic_plugin_kit.checking.subject.CALL_S", 0.1)
    assert main(["plugins", "check", "stuck:Hook"]) == 3
    said = "'stuck:Hook' (not installed): importing stuck:Hook takes longer than 0.1 s"
    cure = "Try: mend stuck:Hook, then elastic plugins check stuck:Hook"
    assert capsys.readouterr().err == f"elastic: error: {said}. {cure}\n"


def test_programs_get_json(check):
    code, out, _ = check("mine:Leaky", "--json")
    told = json.loads(out)
    assert (code, told["plugin"], told["kind"], told["kept"], told["failed"]) == (1, "mine:Leaky", "hook", False, 1)
    (leak,) = [one for one in told["checks"] if one["outcome"] == "failed"]
    assert leak["name"] == "it leaves nothing"
    assert "the hook left the threads ['leak', " in leak["detail"]
    assert leak["promise"].startswith("Threads, sockets and files")


def test_a_store_is_asked_at_its_server_and_what_needs_the_authors_fixtures_is_skipped(check, tmp_path):
    store = "elastic_plugin_kit.file_store:FileStore"
    code, out, err = check(store, "--rdzv-endpoint", str(tmp_path / "runs"), "--only", "paused")
    assert code == 1, out + err  # nothing was asked
    rows = [line.split(None, 1) for line in out.splitlines()[1:-1]]
    assert rows
    assert {kind for kind, _ in rows} == {"skipped"}
    assert all(text.endswith("needs the fixture `pause_server` of the plugin's own tests") for _, text in rows)


def test_a_store_keeps_what_can_be_asked_of_any(check, tmp_path):
    store = "elastic_plugin_kit.file_store:FileStore"
    code, out, err = check(store, "--rdzv-endpoint", str(tmp_path / "runs"), "--only", "seat")
    assert code == 0, out + err
    assert "passed   a seat number is never used again\n" in out


IMPATIENT = """
import sys
from elastic_core.cli.main import main
from elastic_plugin_kit.checking import session, subject
subject.CALL_S, session.CHECK_S = 1.0, float(sys.argv.pop(1))
sys.exit(main())
"""


def test_a_plugin_that_hangs_when_it_is_built_is_named_and_waited_for_once(check):
    code, out, _ = check("mine:Sleepy", start=("-c", IMPATIENT, "60"))
    assert code == 1
    failed = [line for line in out.splitlines() if line.startswith("failed")]
    assert len(failed) > 3  # each without a wait of its own
    assert all("policy 'mine:Sleepy' (not installed): building it takes longer than 1 s" in line for line in failed), (
        out
    )


def test_a_check_in_which_a_call_hangs_ends_and_after_some_no_more_are_asked(check):
    code, out, _ = check("mine:Deaf", "--kind", "rendezvous", "--only", "members", start=("-c", IMPATIENT, "2"))
    assert code == 1
    *_, last, verdict = out.splitlines()
    place = next(number for number, line in enumerate(PLUGINS.splitlines(), 1) if "def members" in line) + 1
    assert last.startswith("failed")
    assert f"has not ended within 2 s: mine.py:{place} in members" in last
    assert " 3 failed" in verdict
    assert verdict.endswith(" not asked: too many have not ended")


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
        (["intensity", "--kind", "policy"], 2, "'policy' is none of rendezvous, failure", "Try: --kind"),
        (["mine:NoPlugin"], 3, "is the class NoPlugin; the kits are for classes", ""),
        (["mine:Missing"], 3, "has no attribute 'Missing'", ""),
        (["redis", "--rdzv-endpoint", "127.0.0.1:9"], 4, "no server to check backend 'redis'", "Try: --rdzv-endpoint"),
        (["intensity", "--policy-conf", "pause"], 2, "'pause' is no KEY=VALUE", "Try: pause=VALUE"),
    ],
)
def test_what_is_wrong_is_one_line(check, words, code, what, hint):
    ended, out, err = check(*words)
    assert (ended, out, err.count("\n")) == (code, "", 1), err
    assert what in err
    assert hint in err


def test_without_pytest_a_line_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "elastic_plugin_kit.checking.session", None)
    monkeypatch.delitem(sys.modules, "elastic_plugin_kit.checking.session")
    monkeypatch.setitem(sys.modules, "pytest", None)
    assert main(["plugins", "check", "intensity"]) == 2
    assert "the kit runs by pytest, which is not installed. Try: pip install 'pytest>=8'" in capsys.readouterr().err


def test_without_the_kit_a_line_says_what_to_install(monkeypatch, capsys):
    commands = [entry for entry in find_entries(COMMANDS_GROUP) if entry.distribution != "elastic-plugin-kit"]
    monkeypatch.setattr("elastic_core.plugins.commands.find_entries", lambda _: commands)
    assert main(["plugins", "check", "intensity"]) == 3
    assert "`elastic plugins check` comes with elastic-plugin-kit. Try: " in capsys.readouterr().err
