"""Where log files are, and where streams go."""

import os
import socket
import stat
from pathlib import Path

import pytest

from elastic_core.errors import ConfigError
from elastic_core.processes.output.layout import LogLayout, Std, line_prefix, parse_std, quote_id, stream_plans
from elastic_core.processes.spec import StreamPlan


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    return path


def files_below(path):
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


def test_a_log_dir_has_torchs_layout(tmp_path, run_dir):
    layout = LogLayout(log_dir=str(tmp_path / "logs"), run_dir=run_dir, run_id="bert-7")
    paths = layout.prepare(2, 11)
    assert os.path.dirname(paths.error_file) == str(layout.root / "attempt_2" / "11")
    assert layout.root.parent == tmp_path / "logs"
    assert layout.root.name.startswith("bert-7_")
    assert [os.path.basename(p) for p in (paths.stdout, paths.stderr, paths.error_file)] == [
        "stdout.log",
        "stderr.log",
        "error.json",
    ]
    assert files_below(run_dir) == []


def test_nothing_is_made_before_it_is_needed(tmp_path, run_dir):
    layout = LogLayout(log_dir=str(tmp_path / "logs"), run_dir=run_dir, run_id="bert-7")
    assert layout.root is None
    assert not (tmp_path / "logs").exists()
    LogLayout(log_dir=None, run_dir=run_dir, run_id="bert-7").open()
    assert files_below(run_dir) == []


def test_without_a_log_dir_files_are_in_the_run_directory(run_dir):
    paths = LogLayout(log_dir=None, run_dir=run_dir, run_id="x").prepare(0, 3)
    assert paths.stdout == str(run_dir / "attempt_0" / "3" / "stdout.log")
    assert files_below(run_dir) == ["attempt_0", "attempt_0/3"]


def test_without_log_files_all_workers_of_a_round_share_one_directory(run_dir):
    layout = LogLayout(log_dir=os.devnull, run_dir=run_dir, run_id="x")
    every = [layout.prepare(0, rank) for rank in range(12)]
    assert {(paths.stdout, paths.stderr) for paths in every} == {(None, None)}
    assert every[3].error_file == str(run_dir / "attempt_0" / "error_3.json")
    assert every[3].fault_file == str(run_dir / "attempt_0" / "fault_3.log")
    assert len({path for paths in every for path in (paths.error_file, paths.fault_file)}) == 24
    assert files_below(run_dir) == ["attempt_0"]
    Path(every[1].error_file).write_text("earlier")
    assert layout.prepare(0, 1).error_file == str(run_dir / "attempt_0" / "error_1_1.json")


@pytest.mark.parametrize("run_id", ["team/job", "..", "a b\nc", "ü", "x" * 5000, "", "100%"])
def test_any_run_id_names_one_directory(tmp_path, run_dir, run_id):
    layout = LogLayout(log_dir=str(tmp_path / "logs"), run_dir=run_dir, run_id=run_id)
    layout.prepare(0, 0)
    (only,) = (tmp_path / "logs").iterdir()
    assert only == layout.root


def test_quoting_tells_ids_apart():
    assert quote_id("team/job") == "team%2Fjob"
    assert quote_id("team%2Fjob") == "team%252Fjob"


def test_two_runs_of_one_id_share_nothing(tmp_path, run_dir):
    layouts = [LogLayout(log_dir=str(tmp_path / "logs"), run_dir=run_dir, run_id="x") for _ in range(2)]
    assert layouts[0].open() != layouts[1].open()


def test_what_an_earlier_run_left_is_kept_and_not_taken_for_ours(run_dir):
    earlier = LogLayout(log_dir=None, run_dir=run_dir, run_id="x").prepare(0, 0)
    for path in (earlier.stdout, earlier.error_file):
        Path(path).write_text("earlier")
    paths = LogLayout(log_dir=None, run_dir=run_dir, run_id="x").prepare(0, 0)
    assert paths.error_file != earlier.error_file
    assert Path(earlier.error_file).read_text() == Path(paths.stdout).read_text() == "earlier"


def test_a_log_dir_that_is_a_file_is_named_on_one_line(tmp_path, run_dir):
    file = tmp_path / "file"
    file.touch()
    for log_dir in (file, file / "below"):
        with pytest.raises(ConfigError) as caught:
            LogLayout(log_dir=str(log_dir), run_dir=run_dir, run_id="x").open()
        assert str(caught.value).startswith(f"--log-dir '{log_dir}' is a file")
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_log_dir_is_named(tmp_path, run_dir):
    log_dir = tmp_path / "logs"
    log_dir.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(ConfigError, match="permission denied"):
        LogLayout(log_dir=str(log_dir), run_dir=run_dir, run_id="x").open()


@pytest.mark.parametrize(("number", "seen"), [(28, "full disk"), (30, "read-only"), (13, "permission"), (122, "quota")])
def test_other_reasons_are_named_too(tmp_path, run_dir, monkeypatch, number, seen):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    layout = LogLayout(log_dir=str(tmp_path / "logs"), run_dir=run_dir, run_id="x")
    monkeypatch.setattr("os.mkdir", refuse)
    with pytest.raises(ConfigError, match=seen):
        layout.prepare(0, 0)


# --- stream plans


def plans(run_dir, *, log_dir=None, redirects="0", tee="0", ranks=None, local_rank=1, nproc=2, **more):
    paths = LogLayout(log_dir=log_dir, run_dir=run_dir, run_id="x").prepare(0, local_rank)
    out, err = stream_plans(
        paths,
        redirects=parse_std(redirects, nproc),
        tee=parse_std(tee, nproc),
        ranks_filter=ranks,
        **more,
    )
    return paths, out, err


def test_by_default_workers_have_our_streams(run_dir):
    _, out, err = plans(run_dir)
    assert out == err == StreamPlan(inherit=True)


def test_a_redirected_stream_goes_to_its_file_alone(run_dir):
    paths, out, err = plans(run_dir, redirects="1:2")
    assert out.inherit
    assert err == StreamPlan(file=paths.stderr, inherit=False)


def test_a_teed_stream_goes_to_file_and_console_whether_redirected_or_not(run_dir):
    for redirects in "03":
        paths, out, err = plans(run_dir, tee="1", redirects=redirects)
        assert out == StreamPlan(file=paths.stdout, console=True, inherit=False, prefix="[default1]:")
        assert err.file == (paths.stderr if redirects == "3" else None)


def test_ranks_outside_the_filter_never_reach_the_console(run_dir):
    _, out, _ = plans(run_dir, ranks=frozenset({0}))
    assert out == StreamPlan(inherit=False)
    paths, out, _ = plans(run_dir, ranks=frozenset({0}), tee="3")
    assert (out.file, out.console, out.inherit) == (paths.stdout, False, False)
    paths, out, _ = plans(run_dir, ranks=frozenset({0}), redirects="3")
    assert (out.file, out.console, out.inherit) == (paths.stdout, False, False)
    _, out, _ = plans(run_dir, ranks=frozenset({1}), tee="3")
    assert out.console


def test_redirected_without_log_files_means_discarded_not_printed(run_dir):
    _, out, err = plans(run_dir, log_dir=os.devnull, redirects="3")
    assert out == err == StreamPlan(inherit=False)


def test_teed_without_log_files_still_has_its_prefix(run_dir):
    _, out, _ = plans(run_dir, log_dir=os.devnull, tee="3")
    assert out == StreamPlan(console=True, inherit=False, prefix="[default1]:")


def test_the_prefix_template_knows_role_and_ranks():
    assert line_prefix(None, role="trainer", local_rank=12, global_rank=44) == "[trainer12]:"
    filled = line_prefix("${role_name}-$local_rank/$rank $other $$", role="trainer", local_rank=12, global_rank=44)
    assert filled == "trainer-12/44 $other $"
    where = line_prefix("${hostname}|$hostnames", role="r", local_rank=0, global_rank=0)
    assert where == f"{socket.gethostname()}|$hostnames"
    assert line_prefix("a\nb\r", role="r", local_rank=0, global_rank=0) == "a b "


def test_streams_are_torchs_numbers():
    assert [int(std) for std in (Std.NONE, Std.OUT, Std.ERR, Std.ALL)] == [0, 1, 2, 3]


def test_only_an_unused_log_directory_is_discarded(tmp_path):
    unused = LogLayout(log_dir=str(tmp_path / "logs"), run_dir=tmp_path, run_id="a")
    unused.prepare(0, 0)
    unused.prepare(0, 1)
    used = LogLayout(log_dir=str(tmp_path / "logs"), run_dir=tmp_path, run_id="b")
    Path(used.prepare(0, 1).error_file).touch()
    used.prepare(0, 0)
    for layout in (unused, used, LogLayout(log_dir=None, run_dir=tmp_path, run_id="c")):
        layout.discard_empty()
    assert tmp_path.is_dir()
    assert [entry.name[0] for entry in (tmp_path / "logs").iterdir()] == ["b"]
    assert [entry.name for entry in (tmp_path / "logs").glob("*/*/*")] == ["1"]


def test_a_prefix_never_ends_a_line():
    assert line_prefix(None, role="a\nb\r", local_rank=1, global_rank=2) == "[a b 1]:"
