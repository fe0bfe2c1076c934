"""Commands of distributions: found by metadata alone, imported when used, and what is wrong with one is one line."""

import sys
import textwrap
import threading

import pytest

from elastic_core.cli import group
from elastic_core.cli.main import COMPLETE_VARIABLE, main
from elastic_core.cli.plugins_command import command as plugins
from elastic_core.plugins import commands, missing
from elastic_core.plugins.commands import CORE_COMMANDS, CORE_GROUPS
from elastic_core.plugins.listing import list_plugins
from elastic_core.plugins.registry import PluginRegistry

GREET = '''
    """Greet somebody who trains."""

    import click

    api_version = 1

    def greet(name, loud):
        click.get_current_context()
        print(f"hello {name}{'!' if loud else ''}")
        return 7

    command = click.Command(
        "greet", callback=greet, params=[click.Argument(["name"]), click.Option(["--loud"], is_flag=True)]
    )
'''
RAISES = GREET.replace("return 7", "raise ValueError('no\\nvoice')")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution with one command on a path of its own."""
    before = set(sys.modules)

    def install(name, source=GREET, *, distribution="greetings", module="greetings_command", attribute=":command"):
        root = tmp_path / distribution
        info = root / f"{distribution}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[elastic_core.commands]\n{name} = {module}{attribute}\n")
        (root / f"{module}.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(str(root))

    yield install
    for name in set(sys.modules) - before:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def error_of(capsys, argv, code):
    assert main(argv) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error.removeprefix("elastic: error: ").rstrip("\n")


def status_of(name):
    return next(info.status for info in list_plugins(PluginRegistry()) if info.name == name and info.kind == "command")


def test_the_names_of_the_core_are_those_that_are_reserved():
    below = {f"plugins {name}" for name in plugins.commands_of}
    assert {*group._COMMANDS, *below} == set(CORE_COMMANDS)
    assert {"plugins"} == set(CORE_GROUPS)


def test_a_command_is_listed_without_being_imported_and_runs_as_one_of_ours(install, capsys):
    install("greet")
    assert main(["--help"]) == 0
    assert "  greet       Greet somebody who trains.\n" in capsys.readouterr().out
    assert "greetings_command" not in sys.modules
    assert main(["greet", "--loud", "Ada"]) == 7
    assert capsys.readouterr().out == "hello Ada!\n"
    assert status_of("greet") == "loaded"


def test_a_command_below_one_of_ours(install, capsys):
    install('"plugins greet"'.strip('"'))
    assert main(["plugins", "--help"]) == 0
    assert "greet  Greet somebody who trains." in capsys.readouterr().out
    assert main(["plugins", "greet", "Ada"]) == 7
    assert "'greet'" in error_of(capsys, ["greet"], 2)


def test_the_help_line_of_a_module_without_a_docstring_names_the_distribution(install, capsys):
    install("greet", "import nowhere\n")
    assert main(["--help"]) == 0
    assert "A command of greetings." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"), [("elastic gr", {"greet"}), ("elastic greet --l", {"--loud"}), ("elastic bro x --", set())]
)
def test_completion(install, monkeypatch, capsys, words, expected):
    install("greet")
    install("bro", "1 / 0\n", distribution="broken", module="broken_command")
    monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit):
        main([])
    assert {line.partition(",")[2] for line in capsys.readouterr().out.split()} >= expected
    assert ("greetings_command" in sys.modules) == ("greet" in words)


@pytest.mark.parametrize(
    ("source", "attribute", "what"),
    [
        (
            "import nowhere",
            ":command",
            "importing greetings_command:command raised ModuleNotFoundError: No module named",
        ),
        (
            "raise SystemExit(0)",
            ":command",
            "importing greetings_command:command raised SystemExit: 0 (greetings_command.py:1).",
        ),
        (GREET, "", "greetings_command is module; expected a click.Command"),
        (GREET, ":click.Command", "greetings_command:click.Command is the class Command; expected a click.Command"),
        (
            GREET.replace("api_version = 1", ""),
            ":command",
            "greetings_command states no api_version of its own; expected 1",
        ),
        (
            GREET.replace("api_version = 1", "api_version = 9"),
            ":command",
            "greetings_command states api_version 9; expected 1",
        ),
    ],
)
def test_a_broken_command_is_one_line_with_its_distribution(install, capsys, source, attribute, what):
    install("greet", source, attribute=attribute)
    error = error_of(capsys, ["greet", "Ada"], 3)
    assert error.startswith(f"command 'greet' (greetings 1.2): {what}")
    assert status_of("greet") == error


def test_a_command_whose_import_hangs_is_given_up(install, capsys, monkeypatch):
    monkeypatch.setattr(commands, "IMPORT_LIMIT_S", 0.05)
    held = threading.Event()
    monkeypatch.setattr(threading, "held_import", held.wait, raising=False)
    install("greet", "import threading\nthreading.held_import()\n", module="hung_command")
    error = error_of(capsys, ["greet"], 3)
    assert error.startswith("command 'greet' (greetings 1.2): importing hung_command:command takes longer than")
    held.set()
    for thread in threading.enumerate():
        if thread.name == "import greet":
            thread.join()


def test_what_a_command_raises_names_its_distribution(install, capsys):
    install("greet", RAISES)
    error = error_of(capsys, ["greet", "Ada"], 3)
    assert error == (
        "command 'greet' (greetings 1.2): it raised ValueError: no voice (greetings_command.py:11 in greet). "
        "Try: ELASTIC_DEBUG=1 shows where; report it to the authors of greetings"
    )


NESTED = '''
    """Look after a garden."""

    import click

    api_version = 1

    @click.group("garden", help="Look after a garden.")
    def command():
        pass

    @command.group("bed", help="One bed of it.")
    def bed():
        pass

    @bed.command("water", help="Water it.", no_args_is_help=True)
    @click.argument("litres")
    def water(litres):
        pass
'''


@pytest.mark.parametrize("words", [[], ["garden"], ["garden", "bed"], ["garden", "bed", "water"]])
def test_a_group_without_a_command_prints_its_help_as_it_is(install, capsys, words):
    install("garden", NESTED)
    assert main([*words, "--help"]) == 0
    helped = capsys.readouterr().out
    assert main(words) == 2
    assert capsys.readouterr() == ("", helped)
    assert len(helped.splitlines()) > 4


def test_its_own_errors_are_told_as_ours_are(install, capsys):
    source = "from elastic_core.api import ConfigError\n" + textwrap.dedent(GREET)
    install("greet", source.replace("return 7", "raise ConfigError('too early', hint='later')"))
    assert error_of(capsys, ["greet", "Ada"], 2) == "too early. Try: later"
    assert error_of(capsys, ["greet", "--quiet"], 2).startswith("elastic greet: no such option")


def test_two_distributions_with_one_command_are_both_named(install, capsys):
    install("greet")
    install("greet", distribution="salutes", module="salutes_command")
    error = error_of(capsys, ["greet", "Ada"], 3)
    assert error == "command 'greet' comes from salutes 1.2 and greetings 1.2. Try: pip uninstall salutes or greetings"
    assert status_of("greet") == error
    assert main(["--help"]) == 0
    assert "(two distributions have it: elastic plugins)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("plugins", "the core has a command of that name"),
        ("run", "the core has a command of that name"),
        ("--version", "that can't be a command's name"),
        ("run greet", "below 'run' no other distribution can put one"),
    ],
)
def test_names_that_nobody_can_take(install, capsys, name, what):
    install(name)
    assert main(["--help"]) == 0
    assert "greetings_command" not in sys.modules
    assert "Greet" not in capsys.readouterr().out
    assert status_of(name).startswith(f"command {name!r} (greetings 1.2): {what}")


def test_a_command_of_ours_that_is_not_installed_says_what_brings_it(monkeypatch, capsys):
    monkeypatch.setitem(missing._KNOWN, missing.COMMANDS_GROUP, {"greet": "elastic-greetings"})
    error = error_of(capsys, ["greet", "Ada"], 3)
    needed = "pip install . ./plugins/greetings, in a checkout of elastic-core"
    assert error == f"`elastic greet` comes with elastic-greetings. Try: {needed}"
    assert error_of(capsys, ["gret"], 2) == "no such command: 'gret'. Try: elastic greet"
