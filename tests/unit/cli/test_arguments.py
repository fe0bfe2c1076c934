"""How the command line of `elastic run` is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.cli.arguments import find_option, read_arguments
from elastic_core.errors import ConfigError
from elastic_core.options.table import OPTIONS

TORCH = [row for row in OPTIONS if row.torch]


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row.name)
def test_every_spelling_means_the_option(row):
    for spelling in row.spellings:
        words = [spelling] if not row.value_name else [spelling, "value"]
        expected = True if not row.value_name else ("value",) if row.many else "value"
        assert read_arguments([*words, "train.py"]).given == {row.name: expected}


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--nnode", "2"], {"nnodes": "2"}),
        (["--redirect=3"], {"redirects": "3"}),
        (["--re=3"], {"redirects": "3"}),  # torch's options first: --restart-... does not make it ambiguous
        (["--nproc", "4"], {"nproc_per_node": "4"}),
        (["--no-", "--run-p"], {"no_python": True, "run_path": True}),
        (["--rdzv_e=h:1"], {"rdzv_endpoint": "h:1"}),
        (["-r3", "-t=1:2"], {"redirects": "3", "tee": "1:2"}),
        (["-mr", "0:1"], {"module": True, "redirects": "0:1"}),
        (["-p", "no:a", "-pno:b"], {"plugin": ("no:a", "no:b")}),
        (["--rdzv-conf", "a=b=c"], {"rdzv_conf": "a=b=c"}),
        (["--rdzv-conf=a=b=c"], {"rdzv_conf": "a=b=c"}),
        (["--max-restarts", "-1"], {"max_restarts": "-1"}),
        (["--role="], {"role": ""}),
        (["--nnodes", "1", "--nnodes", "2"], {"nnodes": "2"}),
        (["--dry"], {"dry_run": True}),
    ],
)
def test_options_are_read_as_argparse_reads_them(words, given):
    assert read_arguments([*words, "train.py"]).given == given


@given(st.lists(st.text(min_size=1)))
def test_words_after_the_script_are_untouched(words):
    arguments = read_arguments(["--nnodes", "1", "train.py", *words])
    assert (arguments.given, arguments.script, arguments.rest) == ({"nnodes": "1"}, "train.py", tuple(words))


def test_separator_ends_the_options_and_is_kept_behind_the_script():
    assert read_arguments(["--", "--odd.py", "--", "-m"]).script == "--odd.py"
    assert read_arguments(["--", "--odd.py", "--", "-m"]).rest == ("--", "-m")


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["--he"], ["--nnodes", "2", "--help"], ["-mh"]])
def test_help_is_seen_before_the_script_only(words):
    assert read_arguments(words).help
    assert not read_arguments(["train.py", *words]).help


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--nproc-per-nodes", "2"], "no such option: --nproc-per-nodes. Try: --nproc-per-node"),
        (["--max_restart=3x", "--bogus=1"], "no such option: --bogus. Try: elastic run --help"),
        (["-x"], "no such option: -x. Try: elastic run --help"),
        (["-mx"], "no such option: -x in '-mx'. Try: elastic run --help"),
        (["--rdzv", "x"], "option --rdzv is ambiguous: --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf"),
        (["--restart-", "x"], "option --restart- is ambiguous: --restart-window, --restart-backoff"),
        (["--standalone=1"], "--standalone takes no value: '--standalone=1'"),
        (["--nnodes"], "--nnodes needs a value: the command line ends. Try: --nnodes=N|MIN:MAX"),
        (["--rdzv-id", "--standalone"], "--rdzv-id needs a value: '--standalone' follows"),
        (["-r", "-m"], "-r needs a value: '-m' follows"),
    ],
)
def test_bad_options_are_named_with_a_way_out(words, text):
    with pytest.raises(ConfigError) as raised:
        read_arguments([*words, "train.py"] if "ends" not in text else words)
    assert str(raised.value).startswith(text)
    assert "\n" not in str(raised.value)


def test_every_beginning_that_torchrun_accepts_is_accepted():
    for row in TORCH:
        for length in range(1, len(row.flag)):
            start = row.flag[:length]
            if sum(other.name.startswith(start) for other in TORCH) == 1 and not "help".startswith(start):
                assert find_option(f"--{start}") == row
