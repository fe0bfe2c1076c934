"""What plugins raise: the place in their own code, told once and counted, whole in a file of its owner's."""

import os
import stat

import pytest

from elastic_core import plugin_faults
from elastic_core.logger import Logger, print_line
from elastic_core.plugin_faults import FILE, PluginFaults, PluginLabel, described, place_of

ACME = PluginLabel("hook", "seats", "acme 1.0", module="acme.seats", hint="-p no:seats")


def raised_by(source, module="acme.seats", path="/site/acme/seats.py"):
    """Return what a plugin's `run` raises."""
    names = {"__name__": module}
    exec(compile(source, path, "exec"), names)
    try:
        names["run"]()
    except Exception as err:  # noqa: BLE001  # it is what the test is about
        return err
    raise AssertionError("nothing was raised")


SEAT = "def run():\n    return {}['seat']\n"


@pytest.fixture
def lines():
    return []


@pytest.fixture
def faults(tmp_path, lines):
    made = PluginFaults()
    made.begin(lambda: tmp_path, put=lambda write: write(), log=Logger(lambda *texts: lines.extend(texts)))
    return made


def test_a_line_has_the_innermost_place_in_the_plugins_own_code():
    error = raised_by("import json\ndef run():\n    json.loads('{')\n")
    assert place_of(error, ACME.module) == "seats.py:3 in run"  # not that in json's
    assert place_of(error) == "seats.py:3 in run"


def test_a_library_that_a_plugin_calls_is_not_its_own_code():
    def client():
        raise ConnectionError("no route")

    def run():
        client()

    names = {"__name__": "acme.seats", "run": run, "client": client}
    exec(compile("def call():\n    client()\n", "/site/acme/seats.py", "exec"), names)
    with pytest.raises(ConnectionError) as caught:
        names["call"]()
    assert place_of(caught.value, ACME.module) == "seats.py:2 in call"
    assert place_of(caught.value).startswith("test_plugin_faults.py:")  # nobody knows whose is what


@pytest.mark.parametrize(
    ("path", "source", "place"),
    [
        ("/site/acme/__init__.py", SEAT, "acme/__init__.py:2 in run"),
        ("/site/acme.py", "def run():\n    compile('(', 'x.py', 'exec')\n", ""),  # the text of a SyntaxError has it
    ],
)
def test_places(path, source, place):
    assert place_of(raised_by(source, path=path), ACME.module) == place


def test_even_an_exception_without_a_text_has_a_line():
    class Odd(Exception):
        def __str__(self):
            raise ValueError

    assert described(Odd()) == "Odd: (its text can't be had)"
    assert len(described(ValueError("x" * 10_000))) < 600


def test_one_that_comes_again_is_told_once_and_counted(faults):
    first, *others = [faults.raised(ACME, f"on_{index}", raised_by(SEAT)) for index in range(18)]
    assert first == ("KeyError: 'seat' (seats.py:2 in run)", False)
    assert all(other.again for other in others)
    assert not faults.again(ACME, "on_joining answered 7")
    assert faults.end() == ["hook 'seats' (acme 1.0): KeyError: 'seat' (seats.py:2 in run); 17 more until the end"]


def test_kinds_of_faults_are_bounded(faults, monkeypatch):
    monkeypatch.setattr(plugin_faults, "MOST_SEEN", 2)
    assert [faults.again(ACME, text) for text in "abcda"] == [False, False, False, True, True]
    assert faults.end() == [
        "hook 'seats' (acme 1.0): a; 1 more until the end",
        "hook 'seats' (acme 1.0): other faults; 1 more until the end",
    ]


def test_the_whole_traceback_is_in_a_file_of_its_owners(faults, lines, tmp_path):
    for _ in range(3):
        faults.raised(ACME, "on_failure", raised_by(SEAT))
    path = tmp_path / FILE
    text = path.read_text()
    assert text.count("Traceback (most recent call last):") == 1
    assert "hook 'seats' (acme 1.0): on_failure, thread MainThread" in text
    assert 'File "/site/acme/seats.py", line 2, in run' in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert lines == [f"elastic: tracebacks of plugins are in {str(path)!r}"]
    assert faults.raised_any


def test_what_comes_before_the_directory_is_written_when_it_is_there(tmp_path, lines):
    faults = PluginFaults()
    for index in range(plugin_faults.MOST_KEPT + 5):
        faults.raised(ACME, "loading", raised_by("\n" * index + SEAT))
    jobs = []
    faults.begin(lambda: tmp_path, put=jobs.append, log=Logger(lambda *texts: lines.extend(texts)))
    assert not (tmp_path / FILE).exists()
    for job in jobs:
        job()
    assert (tmp_path / FILE).read_text().count("Traceback") == plugin_faults.MOST_KEPT


def test_a_file_that_has_grown_too_large_is_set_aside(faults, tmp_path):
    (tmp_path / FILE).write_bytes(b"x" * plugin_faults.MOST_BYTES)
    faults.raised(ACME, "on_failure", raised_by(SEAT))
    assert (tmp_path / FILE).stat().st_size < 10_000
    assert (tmp_path / f"{FILE}.1").stat().st_size == plugin_faults.MOST_BYTES


def test_a_link_in_the_way_is_not_followed_and_told(faults, lines, tmp_path):
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    faults.raised(ACME, "on_failure", raised_by(SEAT))
    assert not (tmp_path / "elsewhere").exists()
    assert lines == [
        f"elastic: a plugin's traceback could not be written to {str(tmp_path / FILE)!r}: {os.strerror(40)}"
    ]


def test_a_pipe_in_the_way_holds_nobody_up(faults, lines, tmp_path):
    os.mkfifo(tmp_path / FILE)
    faults.raised(ACME, "on_failure", raised_by(SEAT))
    assert "could not be written" in lines[0]


def test_a_line_without_a_loop_steers_no_terminal(capsys):
    print_line("elastic: \x1b[2Jgone")
    assert capsys.readouterr().err == "elastic: ?[2Jgone\n"


def test_with_elastic_debug_it_is_on_stderr_too(faults, lines, monkeypatch):
    monkeypatch.setenv("ELASTIC_DEBUG", "1")
    faults.raised(ACME, "on_failure", raised_by(SEAT))
    assert "Traceback (most recent call last):" in lines
    assert lines.index("KeyError: 'seat'") < len(lines) - 1


def test_after_the_end_it_is_written_at_once(tmp_path, lines):
    faults, jobs = PluginFaults(), []
    faults.begin(lambda: tmp_path, put=jobs.append, log=Logger(lambda *texts: lines.extend(texts)))
    faults.end()
    faults.raised(ACME, "close", raised_by(SEAT))
    assert not jobs
    assert (tmp_path / FILE).exists()
