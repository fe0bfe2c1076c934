"""`elastic run --help`, `--help-all` and `elastic help`: what they show, and how long they are."""

import click
import pytest

from elastic_core.cli.group import elastic
from elastic_core.cli.main import main
from elastic_core.cli.option_help import USUAL
from elastic_core.cli.run_command import command as run_command
from elastic_core.options.hook_options import all_hook_options
from elastic_core.options.table import BY_DEST, OPTIONS

EVERY = [*OPTIONS, *all_hook_options()]


@pytest.fixture
def shown(capsys, monkeypatch):
    """Return what a line prints, on a terminal so wide."""

    def shown(*words, columns=80):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(list(words)) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return shown


def test_help_of_run_has_at_most_120_lines_and_names_every_option(shown):
    text = shown("run", "--help")
    assert len(text.splitlines()) <= 120
    assert len(USUAL) == 20
    assert set(BY_DEST) >= USUAL
    words = set(text.replace(",", " ").split())
    assert [option.flag for option in EVERY if f"--{option.flag}" not in words] == []
    assert "--help-all" in words


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(shown, columns):
    options = [
        line for line in shown("run", "--help", columns=columns).splitlines() if not line.startswith("    elastic")
    ]
    assert max(map(len, options)) <= columns
    assert max(map(len, shown("help", "hang-timeout", columns=columns).splitlines())) <= columns


@pytest.mark.parametrize("typed", ["--help-all", "--help-a", "--help_all"])
def test_all_options_are_explained_on_request(shown, typed):
    text = " ".join(shown("run", typed).split())
    assert [option.name for option in EVERY if " ".join(option.help.split()) not in text.replace("- ", "-")] == []
    assert "PET_STORE_OUTAGE_GRACE" in text


@pytest.mark.parametrize("option", EVERY, ids=lambda option: option.name)
def test_each_option_is_explained_by_each_of_its_names(shown, option):
    names = [*option.spellings, option.name, option.flag, *([option.env_name] if option.env_name else [])]
    own = set(elastic.list_commands(click.Context(elastic)))  # `policy` is a command too, which comes first
    (text,) = {shown("help", name) for name in names if name not in own}
    assert f"--{option.flag} {option.value_name}".strip() in text.splitlines()[0]
    assert (option.env_name or "none") in text
    assert "docs/reference/run.md" in text
    assert ("elastic-core" in text.partition("Distribution")[2].splitlines()[0]) == (option.name in BY_DEST)


def test_a_beginning_will_do(shown):
    assert shown("help", "hang") == shown("help", "--hang-timeout") == shown("help", "run", "--hang")


def test_help_of_a_command_is_that_of_its_own_option(shown):
    assert shown("help") == shown("--help")
    assert shown("help", "run") == shown("run", "--help")
    assert shown("help", "runs") == shown("runs", "--help")
    assert shown("help", "help") == shown("help", "--help")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--hang-timeot"], "elastic help --hang-timeot: no such command or option. Try: elastic help hang-timeout"),
        (["rus"], "elastic help rus: no such command or option. Try: elastic help run"),
        (["q!"], "elastic help q!: no such command or option. Try: elastic help"),
        (["--re-"], "elastic help --re-: no such command or option. Try: elastic help"),
        ([""], "elastic help '': no such command or option. Try: elastic help"),
        (["-"], "elastic help -: no such command or option. Try: elastic help"),
        (["--", "--"], "elastic help --: no such command or option. Try: elastic help"),
        (["PET_"], "elastic help PET_: no such command or option. Try: elastic help"),
        (["run", ""], "elastic help '': no such command or option. Try: elastic help"),
        (
            ["runs", "--json"],
            "elastic help runs --json: it explains single options of elastic run only. Try: elastic runs --help",
        ),
        (["plugins", "nosuch"], "elastic plugins has no command 'nosuch'; it has "),
    ],
)
def test_what_is_unknown_is_one_line_with_a_suggestion(capsys, words, error):
    assert main(["help", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"elastic: error: {error}")
    assert err.count("\n") == 1


def test_verbose_goes_with_a_dry_run(capsys):
    assert main(["run", "-v", "train.py"]) == 2
    assert "--verbose: given without --dry-run" in capsys.readouterr().err


def test_a_slip_in_an_option_of_a_plugin_has_a_suggestion(capsys):
    assert main(["run", "--hang-timeot", "5", "train.py"]) == 2
    assert capsys.readouterr().err == "elastic: error: no such option: --hang-timeot. Try: --hang-timeout\n"


def test_completion_offers_the_help_of_all_options():
    names = [name for param in run_command.get_params(click.Context(run_command)) for name in param.opts]
    assert "--help-all" in names


def commands(command, words=(), parent=None):
    """Yield each command with the words that call it."""
    context = click.Context(command, info_name=words[-1] if words else "elastic", parent=parent)
    if words:
        yield words, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*words, name), context)


CALLS = {
    "doctor": ["--quiet"],
    "drain": ["node3"],
    "incidents": ["bert-7"],
    "k8s render": ["bert-7", "--image", "i", "--nnodes", "2", "--", "train.py"],
    "logs": ["bert-7"],
    "plugins check": ["none-such"],
    "report": ["bert-7"],
    "run": ["--nnodes", "2", __file__],
    "status": ["bert-7"],
    "stop": ["bert-7"],
}
"""A call of each command that has options of the rendezvous."""


def test_every_command_with_options_of_the_rendezvous_is_called_below():
    having = {
        " ".join(words)
        for words, command in commands(elastic)
        for option in command.params
        if option.name in ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf")
    }
    assert having == set(CALLS)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_variables_give_the_rendezvous_of_every_command(monkeypatch, capsys, name):
    for option, text in (("BACKEND", "none-such"), ("ENDPOINT", "far.example:1"), ("ID", "bert-7"), ("CONF", "a=b")):
        monkeypatch.setenv(f"PET_RDZV_{option}", text)
    assert main(name.split() + CALLS[name]) != 0 or name == "k8s render"
    out, err = capsys.readouterr()
    assert "none-such" in out + err
    if name == "k8s render":
        assert "far.example:1" in out
