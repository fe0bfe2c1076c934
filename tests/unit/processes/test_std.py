"""Stream options: whole numbers, lists with ranks of any width, and one clear line for anything else."""

import pytest

from elastic_core.errors import ConfigError
from elastic_core.processes.output.layout import Std, parse_ranks, parse_std


@pytest.mark.parametrize(("value", "std"), [("0", Std.NONE), ("1", Std.OUT), ("2", Std.ERR), (" 3 ", Std.ALL)])
def test_a_number_is_meant_for_every_rank(value, std):
    assert parse_std(value, 3) == {0: std, 1: std, 2: std}


def test_a_list_leaves_the_other_ranks_alone():
    assert parse_std("0:3, 2:1", 3) == {0: Std.ALL, 1: Std.NONE, 2: Std.OUT}


def test_ranks_may_have_several_digits():
    streams = parse_std("10:3,127:2", 128)
    assert streams[10] is Std.ALL
    assert streams[127] is Std.ERR
    assert sum(streams.values()) == 5
    assert parse_ranks("10,127", 128) == {10, 127}


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("4", "--tee: '4'; expected 0 to 3"),
        ("", "--tee: ''; expected 0 to 3"),
        ("both", "--tee: 'both'; expected 0 to 3"),
        ("0:3,", "--tee: '0:3,'; expected"),
        ("0:4", "--tee: '0:4'; expected"),
        ("0:1:2", "--tee: '0:1:2'; expected"),
        ("x:1", "--tee: 'x'; expected a local rank from 0 to 1"),
        ("-1:1", "--tee: '-1'; expected a local rank"),
        ("²:1", "--tee: '²'; expected a local rank"),
        ("2:1", "--tee: '2'; expected a local rank from 0 to 1"),
        ("9" * 5000 + ":1", f"--tee: '{'9' * 40}'; expected a local rank"),
        ("0:1,00:2", "local rank 0 is given twice"),
    ],
)
def test_what_makes_no_sense_is_refused_on_one_line(value, seen):
    with pytest.raises(ConfigError) as caught:
        parse_std(value, 2, option="--tee")
    text = str(caught.value)
    assert text.startswith("--tee")
    assert seen in text
    assert "Try: " in text
    assert "\n" not in text


def test_no_ranks_means_no_filter():
    assert parse_ranks("", 4) is None
    assert parse_ranks(" 0 , 3", 4) == {0, 3}


@pytest.mark.parametrize("value", ["4", "0,,1", "0;1", "all"])
def test_a_filter_names_ranks_that_exist(value):
    with pytest.raises(ConfigError, match="--local-ranks-filter"):
        parse_ranks(value, 4)
