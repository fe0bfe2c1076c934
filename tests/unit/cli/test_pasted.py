"""Options that were pasted from a page with typographic dashes and blanks."""

import click
import pytest

from elastic_core.cli.pasted import pasted
from elastic_core.errors import ConfigError

PASTED = [
    ("\u2013nproc-per-node=2", "begins with an en dash (U+2013), not with hyphens", "--nproc-per-node=2"),
    ("\u2014nproc-per-node=2", "begins with an em dash (U+2014), not with hyphens", "--nproc-per-node=2"),
    ("\u2212\u2212nproc-per-node=2", "begins with a minus sign (U+2212), not with hyphens", "--nproc-per-node=2"),
    (
        "\u2011\u2011nproc-per-node=2",
        "begins with a non-breaking hyphen (U+2011), not with hyphens",
        "--nproc-per-node=2",
    ),
    ("\xa0--nproc-per-node=2", "begins with a no-break space (U+00A0)", "--nproc-per-node=2"),
    ("\u2013r", "begins with an en dash (U+2013), not with hyphens", "-r"),
    ("--nproc\u2011per\u2011node=2", "contains a non-breaking hyphen (U+2011)", "--nproc-per-node=2"),
]


@pytest.mark.parametrize(("word", "observed", "meant"), PASTED)
def test_a_word_that_an_error_is_about_is_named_with_its_code_point(word, observed, meant):
    error = ConfigError(f"script {word!r} not found in '/tmp'")
    assert str(pasted(error, ["run", word, "ok.py"])) == f"{word!r} {observed}. Try: {meant}"
    assert str(pasted(click.UsageError(f"unexpected extra argument ({word})"), ["status", word])).startswith(repr(word))


def test_a_value_keeps_the_hint_of_its_option():
    for words in (["--nnodes", "1\u20132"], ["--nnodes=1\u20132"]):
        error = ConfigError("--nnodes: '1\u20132'; expected a number of nodes or MIN:MAX", hint="--nnodes 2:4")
        assert str(pasted(error, words)) == f"{words[-1]!r} contains an en dash (U+2013). Try: --nnodes 2:4"


@pytest.mark.parametrize("words", [["run", "train.py"], ["run", "\u2013odd.py"], ["run", "train.py", "a\u2013b"]])
def test_an_error_about_another_thing_stays(words):
    assert pasted(ConfigError("--max-restarts: '-1'; expected 0 or more"), words) is None
