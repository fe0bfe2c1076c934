"""Our options against torch's own parser, as installed: a flag that torch adds or changes fails here."""

import json
import os
import subprocess
import sys

import pytest
import torch_map

from elastic_core.cli.arguments import read_arguments
from elastic_core.options.hook_options import all_hook_options
from elastic_core.options.readers import comma_list
from elastic_core.options.table import OPTIONS
from patience import patience

LISTS = {"duplicate_stdout_filters", "duplicate_stderr_filters"}  # torch's parser splits them, ours keeps text
OTHER_HELP = {"help"}
MORE_CHOICES = {"print_completion"}  # we know more shells

TORCHS = """
import json
from torch.distributed.run import get_args_parser
rows = [
    [list(action.option_strings), action.dest, action.default, action.nargs, action.choices]
    for action in get_args_parser()._actions if action.option_strings
]
print(json.dumps(rows))
"""

PARSE = """
import json, sys
from torch.distributed.run import parse_args
print(json.dumps([vars(parse_args(words)) for words in json.loads(sys.argv[1])]))
"""

BY_DEST = {row.name: row for row in (*OPTIONS, *all_hook_options())}

LINES = [
    ["--nnode", "2", "--nproc=4", "train.py"],
    ["--redirect=3", "-t", "0:1", "-m", "pkg.mod", "x", "--", "-m", "--nnodes", "9"],
    ["-r3", "--rdzv_id=x", "--rdzv-conf", "a=b=c", "train.py", "--rdzv_id", "y"],
    ["--max-restarts", "-1", "--no-p", "prog", "-x"],
    ["--standalone", "--local_r=0,1", "--", "train.py"],
    ["--duplicate_stdout_filters", "a,,b,c d", "--duplicate-stderr-filters=loss", "--logs-specs", "x", "train.py"],
]


def ask(code, *argv):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    ended = subprocess.run(
        [sys.executable, "-c", code, *argv],
        env=clean,
        capture_output=True,
        text=True,
        timeout=patience(100),
        check=True,
    )
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def torchs():
    return {row[1]: row for row in ask(TORCHS) if row[1] not in OTHER_HELP}


def test_our_torch_options_are_exactly_torchs(torchs):
    assert set(torchs) == {row.name for row in BY_DEST.values() if row.torch and torch_map.has(f"--{row.flag}")}


def test_spellings_values_choices_and_defaults_are_torchs(torchs):
    for dest, (spellings, _, default, nargs, choices) in torchs.items():
        row = BY_DEST[dest]
        assert set(spellings) == set(row.spellings), dest
        assert (nargs == 0) == (not row.value_name), dest
        assert set(choices or ()) <= set(row.choices) if dest in MORE_CHOICES else tuple(choices or ()) == row.choices
        if dest in LISTS:
            assert tuple(default) == comma_list(row.default_text), dest
        elif row.value_name:
            assert (None if default is None else str(default)) == row.default_text, dest


def test_lines_mean_what_they_mean_to_torch():
    # One abbreviation per option: argparse of this Python takes two spellings of one option for an ambiguity.
    lines = [[word.replace("--nproc=4", "--nproc-per-n=4") for word in line] for line in LINES]
    for line, torch_says in zip(LINES, ask(PARSE, json.dumps(lines)), strict=True):
        ours = read_arguments(line)
        assert ours.script == torch_says["training_script"], line
        assert list(ours.rest) == torch_says["training_script_args"], line
        for dest, value in ours.given.items():
            if dest in LISTS:
                assert tuple(torch_says[dest]) == comma_list(value), (line, dest)
            else:
                assert str(torch_says[dest]) == str(value), (line, dest)


def test_a_separator_right_behind_the_script_is_kept_where_torch_drops_it():
    line = ["train.py", "--", "-x"]
    (torch_says,) = ask(PARSE, json.dumps([line]))
    assert torch_says["training_script_args"] == ["-x"]
    assert read_arguments(line).rest == ("--", "-x")  # the script's own words, all of them
