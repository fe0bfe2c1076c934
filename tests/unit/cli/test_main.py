"""How the command line ends: one line per error, exit codes, help, completion."""

import json
import re
import sys
import types

import pytest

from elastic_core._version import __version__
from elastic_core.cli.main import COMPLETE_VARIABLE, main
from elastic_core.errors import PluginError, RendezvousError, WorkerError
from elastic_core.options import hook_options
from elastic_core.options.choices import Section
from elastic_core.options.table import OPTIONS
from elastic_core.plugins.hook_flags import HookOptions
from elastic_core.plugins.listing import PluginInfo
from elastic_core.run import main as run_main


@pytest.fixture
def job(monkeypatch):
    """Replace the job: it keeps its settings, and does what the test says."""
    module = types.ModuleType("elastic_core.launcher.job")
    module.seen = []
    module.outcome = 0

    def run_job(settings, *, began, origins):
        module.seen.append(settings)
        if isinstance(module.outcome, BaseException):
            raise module.outcome
        return module.outcome

    module.run_job = run_job
    monkeypatch.setitem(sys.modules, "elastic_core.launcher.job", module)
    return module


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_the_jobs_exit_code_is_ours(job, script):
    job.outcome = 42
    assert main(["run", "--max-restarts", "2", script, "--max-restarts", "9"]) == 42
    (settings,) = job.seen
    assert settings.restarts.max_restarts == 2
    assert settings.entrypoint.argv[-2:] == ("--max-restarts", "9")
    assert run_main([script]) == 42


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (WorkerError("worker 3 broke", hint="again"), 1, "worker 3 broke. Try: again"),
        (PluginError("plugin 'x' of x-dist is broken"), 3, "plugin 'x' of x-dist is broken"),
        (RendezvousError("nobody came"), 4, "nobody came"),
        (RendezvousError("redis://me:hunter2@host is\naway"), 4, "redis://me:***@host is away"),
        (OSError(28, "No space left on device"), 1, "the system refused: [Errno 28] No space left on device"),
        (RuntimeError("odd\nthing"), 1, "this is a defect of elastic-core: RuntimeError: odd thing"),
    ],
)
def test_errors_are_one_line(job, script, capsys, monkeypatch, error, code, text):
    monkeypatch.delenv("ELASTIC_DEBUG", raising=False)
    job.outcome = error
    assert main(["run", script]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"elastic: error: {text}")
    assert captured.err.count("\n") == 1


def test_debug_shows_the_traceback(job, script, capsys, monkeypatch):
    monkeypatch.setenv("ELASTIC_DEBUG", "1")
    job.outcome = RuntimeError("odd")
    assert main(["run", script]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_before_the_job_is_quiet(job, script, capsys):
    job.outcome = KeyboardInterrupt()
    assert main(["run", script]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["rum"], "no such command: 'rum'. Try: elastic run"),
        (["train.py"], "no such command: 'train.py'. Try: elastic run train.py"),
        (["--bogus"], "elastic: no such option"),
        (["runs", "1", "2"], "elastic runs: got unexpected extra argument (2). Try: elastic runs --help"),
        (["logs", "--tail", "-3"], "--tail: -3; expected x>=0. Try: elastic logs --help"),
        (["drain"], "elastic drain: missing argument '[RUN] NODE...'. Try: elastic drain --help"),
        (["completion"], "; expected one of bash, zsh, fish, tcsh. Try: elastic completion --help"),
        (["run"], "no script given. Try: elastic run [OPTIONS] SCRIPT [ARGS...]"),
        (["run", "--nproc-per-nod", "x.py"], "no script given: 'x.py' is the value of --nproc-per-node. Try: "),
        (["run", "--standby", "--rdzv-id=x.py"], "no script given: 'x.py' is the value of --rdzv-id. Try: "),
        (["run", "--bogus", "x.py"], "no such option: --bogus"),
        (["run", "--nnodes", "two", "{script}"], "--nnodes: 'two'; expected a number of nodes or MIN:MAX"),
        (["run", "nothere.py"], "script 'nothere.py' not found"),
        (["plugins", "--jsn"], "elastic plugins: no such option"),
        (["completion", "csh"], "'csh'"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(job, script, capsys, argv, text):
    assert main([word.format(script=script) for word in argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("elastic: error: ")
    assert text in error
    assert error.count("\n") == 1
    assert job.seen == []


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"elastic-core {__version__}\n"


@pytest.mark.parametrize("argv", [["--help"], ["-h"]])
def test_help_lists_the_commands(capsys, argv):
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("run", "plugins", "completion"))


def test_help_of_run_is_grouped_and_complete(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["run", "--help-all"]) == 0
    out = capsys.readouterr().out
    positions = [out.index(f"\n{section.value}:\n") for section in Section]
    assert positions == sorted(positions)
    for row in OPTIONS:
        assert f"--{row.flag}" in out
        assert row.env_name in out
    assert out.isascii()


def test_help_ends_with_the_options_of_distributions_that_are_not_installed(capsys, monkeypatch):
    assert main(["run", "--help"]) == 0
    assert "not installed" not in capsys.readouterr().out
    monkeypatch.setattr(hook_options, "installed_options", lambda: HookOptions([]))
    assert main(["run", "--help"]) == 0
    section = (
        capsys.readouterr().out.partition("\nWith distributions that are not installed:\n")[2].partition("\n\n")[0]
    )
    assert re.search(r"^  elastic-numa: --numa-binding$", section, re.M)


def test_help_after_the_script_belongs_to_it(job, script):
    assert main(["run", script, "--help"]) == 0
    assert job.seen[0].entrypoint.argv[-1] == "--help"


def test_plugins_are_listed_with_what_is_wrong(monkeypatch, capsys):
    names = ("name", "kind", "distribution", "version", "status")
    rows = [
        ("local", "rendezvous", "elastic-core", "0.1", "loaded"),
        ("bad", "hooks", "x", "2", "broken: ImportError: no y"),
        ("status", "command", "x", "2", "loaded"),
        ("log-it", "option", "x", "2", "loaded"),
    ]
    plugins = [PluginInfo(**dict(zip(names, row, strict=True)), title=f"Does {row[0]}") for row in rows]
    monkeypatch.setattr("elastic_core.plugins.listing.list_plugins", lambda registry: plugins)
    assert main(["plugins"]) == 0
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "elastic-core 0.1",
        "local (rendezvous) Does local",
        "",
        "x 2",
        "bad (hooks) broken: ImportError: no y",
        "elastic status Does status",
        "--log-it Does log-it",
    ]
    assert main(["plugins", "-v"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=4) for line in lines] == [[name.upper() for name in names], *map(list, rows)]
    assert main(["plugins", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(capsys, shell, monkeypatch):
    monkeypatch.setattr("click.shell_completion.BashComplete._check_version", staticmethod(lambda: None))
    assert main(["completion", shell]) == 0
    assert f"{COMPLETE_VARIABLE}={shell}_complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("elastic pl", {"plugins"}),
        ("elastic run --max-r", {"--max-restarts"}),
        ("elastic run --nnodes 2 --start-method f", {"fork", "forkserver"}),
        ("elastic run --nproc_per_node 2 --numa-binding so", {"socket"}),
    ],
)
def test_completion_answers(monkeypatch, capsys, words, expected):
    monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    assert {line.partition(",")[2] for line in capsys.readouterr().out.split()} == expected
