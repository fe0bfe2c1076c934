"""torch's interface to the layout of logs: our default, what a class's answer means, and how one is found."""

import os
import sys
import textwrap

import pytest

from elastic_core.compat.elastic import multiprocessing
from elastic_core.compat.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs, Std, to_map
from elastic_core.errors import ConfigError, PluginError
from elastic_core.processes.spec import StreamPlan
from elastic_torchrun.processes.chosen_logs_specs import make_logs_specs
from elastic_torchrun.processes.logs_specs import plan_of


def envs(count=2, *, restarts=0, **more):
    env = {"TORCHELASTIC_RUN_ID": "team/job", "TORCHELASTIC_RESTART_COUNT": str(restarts)} | more
    return {rank: dict(env) for rank in range(count)}


# --- Std


@pytest.mark.parametrize(
    ("typed", "streams"), [("0", Std.NONE), ("3", Std.ALL), ("0:3,12:1", {0: Std.ALL, 12: Std.OUT})]
)
def test_streams_are_read_as_torch_reads_them(typed, streams):
    assert Std.from_str(typed) == streams


@pytest.mark.parametrize("typed", ["", "4", "0:4", "0:", "a:1", "0:1,", "-1:1"])
def test_streams_that_are_none_are_refused(typed):
    with pytest.raises(ValueError, match="expected 0 to 3, or RANK:STD"):
        Std.from_str(typed)


def test_one_value_counts_for_all_and_no_value_is_none():
    assert to_map(Std.OUT, 2) == {0: Std.OUT, 1: Std.OUT}
    assert to_map({1: Std.ERR, 7: Std.ALL}, 2) == {0: Std.NONE, 1: Std.ERR}


# --- the default


def test_the_default_has_torchs_layout_and_fields(tmp_path):
    given = envs(3)
    specs = DefaultLogsSpecs(
        str(tmp_path), redirects={0: Std.OUT}, tee={1: Std.ALL, 2: Std.ERR}, local_ranks_filter={0, 1}
    )
    dest = specs.reify(given)
    (root,) = tmp_path.iterdir()
    assert root.name.startswith("team%2Fjob_")
    attempt = root / "attempt_0"
    assert dest == LogsDest(
        stdouts={0: str(attempt / "0/stdout.log"), 1: str(attempt / "1/stdout.log"), 2: os.devnull},
        stderrs={0: "", 1: str(attempt / "1/stderr.log"), 2: str(attempt / "2/stderr.log")},
        tee_stdouts={1: str(attempt / "1/stdout.log")},
        tee_stderrs={1: str(attempt / "1/stderr.log")},
        error_files={rank: str(attempt / f"{rank}/error.json") for rank in range(3)},
        filtered_stdout=str(attempt / "filtered_stdout.log"),
        filtered_stderr=str(attempt / "filtered_stderr.log"),
    )
    assert {rank: env["TORCHELASTIC_ERROR_FILE"] for rank, env in given.items()} == dest.error_files
    assert specs.root_log_dir == str(tmp_path)


def test_each_attempt_has_a_directory_and_none_is_wiped(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), tee=Std.OUT)
    first = specs.reify(envs()).stdouts[1]
    with open(first, "w") as file:
        file.write("kept")
    second = specs.reify(envs(restarts=1)).stdouts[1]
    assert second == first.replace("attempt_0", "attempt_1")
    assert specs.reify(envs(restarts=1, ELASTIC_ROUND="4")).stdouts[1] == first.replace("attempt_0", "attempt_4")
    assert specs.reify(envs()).stdouts[1] == first
    with open(first) as file:
        assert file.read() == "kept"


def test_without_a_directory_one_is_made_when_it_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    specs = DefaultLogsSpecs(redirects=Std.OUT)
    assert list(tmp_path.iterdir()) == []
    assert specs.reify(envs()).stdouts[0].startswith(f"{tmp_path}/elastic_logs_")
    assert len(list(tmp_path.iterdir())) == 1


def test_the_null_device_means_no_files():
    given = envs(3)
    specs = DefaultLogsSpecs(
        os.devnull, redirects={0: Std.OUT}, tee={1: Std.OUT, 2: Std.OUT}, local_ranks_filter={0, 1}
    )
    dest = specs.reify(given)
    assert dest.stdouts == {0: os.devnull, 1: os.devnull, 2: os.devnull}
    assert dest.stderrs == {0: "", 1: "", 2: os.devnull}
    assert dest.tee_stdouts == {1: os.devnull}
    assert (dest.filtered_stdout, dest.filtered_stderr) == ("", "")
    assert set(dest.error_files.values()) == {os.devnull}
    assert given[0]["TORCHELASTIC_ERROR_FILE"] == ""
    assert specs.root_log_dir == os.devnull


def test_a_file_is_no_log_directory(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        DefaultLogsSpecs(str(tmp_path / "file"))


def test_equal_choices_are_equal():
    assert DefaultLogsSpecs("x", tee=Std.OUT) == DefaultLogsSpecs("x", Std.NONE, Std.OUT)
    assert DefaultLogsSpecs("x") != DefaultLogsSpecs("y")
    assert len({DefaultLogsSpecs("x"), DefaultLogsSpecs("x")}) == 1
    assert "log_dir='x'" in repr(DefaultLogsSpecs("x"))


def test_names_are_fetched_when_used():
    assert multiprocessing.LogsSpecs is LogsSpecs
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        multiprocessing.Missing  # noqa: B018  # to ask for it is the test


# --- what an answer means


@pytest.mark.parametrize(
    ("file", "tee", "plan"),
    [
        ("", None, StreamPlan()),
        ("f", None, StreamPlan(file="f", inherit=False)),
        (os.devnull, None, StreamPlan(inherit=False)),
        ("f", "f", StreamPlan(file="f", console=True, inherit=False, prefix="p")),
        ("", "f", StreamPlan(file="f", console=True, inherit=False, prefix="p")),
        (os.devnull, os.devnull, StreamPlan(console=True, inherit=False, prefix="p")),
        ("", os.devnull, StreamPlan()),  # what torch's default answers to --log-dir /dev/null
    ],
)
def test_an_entry_says_where_a_stream_goes(file, tee, plan):
    assert plan_of(file, tee, prefix="p") == plan


# --- finding


GOOD = """
    from elastic_core.compat.elastic.multiprocessing import LogsDest, LogsSpecs
    class Mine(LogsSpecs):
        def reify(self, envs):
            envs[0]["SEEN"] = f"{self._root_log_dir} {self._redirects!r} {self._tee!r} {self._local_ranks_filter}"
            return LogsDest(stdouts={rank: "" for rank in envs}, stderrs={rank: None for rank in envs})
        @property
        def root_log_dir(self):
            return ""
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution with one class on a path of its own, and choose it."""
    before = set(sys.modules)

    def install(source, *, name="mine", value="", distribution="acme-logs"):
        module = distribution.replace("-", "_")
        root = tmp_path / distribution
        info = root / f"{module}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n\n")
        (info / "entry_points.txt").write_text(f"[torchrun.logs_specs]\n{name} = {value or module + ':Mine'}\n")
        (root / f"{module}.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(str(root))

    yield install
    for name in set(sys.modules) - before:
        if name.startswith("acme"):
            del sys.modules[name]


def make(name="mine", **more):
    given = {"log_dir": None, "redirects": "3", "tee": "1:2", "local_ranks": frozenset({1})} | more
    return make_logs_specs(name, **given)


def test_a_class_gets_what_the_user_chose_and_its_answer_is_read(install):
    install(GOOD)
    given = envs()
    dest = make(log_dir="/some").reify(given)
    assert given[0]["SEEN"] == "/some <Std.ALL: 3> {1: <Std.ERR: 2>} {1}"
    assert (dest.stdouts, dest.stderrs, dest.filtered_stdout) == ({0: "", 1: ""}, {0: "", 1: ""}, "")


def test_the_default_is_ours_and_imports_nothing():
    assert make("default") is None


def test_a_name_that_nothing_has_names_those_that_are_there(install):
    install(GOOD)
    with pytest.raises(ConfigError) as caught:
        make("mime")
    assert str(caught.value).startswith(
        "--logs-specs 'mime' is not installed; entry points of group torchrun.logs_specs: "
    )
    assert "'mine' (acme-logs 1.2)" in str(caught.value)
    assert str(caught.value).endswith("Try: --logs-specs mine")


def test_two_claims_on_a_name_are_refused(install):
    install(GOOD)
    install(GOOD, distribution="acme-other")
    with pytest.raises(PluginError, match=r"'mine' comes from acme-\w+ 1\.2 and acme-\w+ 1\.2\. Try: pip uninstall"):
        make()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nowhere_at_all", "importing acme_logs:Mine raised ModuleNotFoundError: No module named"),
        ("x = 1", "importing acme_logs:Mine raised AttributeError"),
        ("Mine = 1", "acme_logs:Mine is no class with a method 'reify'"),
        ("class Mine: pass", "acme_logs:Mine is no class with a method 'reify'"),
        ("class Mine:\n    def reify(self, envs): ...", "Mine raised TypeError: Mine() takes no arguments"),
        (
            GOOD.replace("def reify", "def other"),
            "Mine is no class with a method|Mine raised TypeError: Can't instantiate",
        ),
    ],
)
def test_a_broken_class_is_told_with_its_distribution(install, source, said):
    install(source)
    with pytest.raises(
        PluginError, match=rf"^logs specs 'mine' \(acme-logs 1\.2\): .*({said.replace('(', '.').replace(')', '.')})"
    ):
        make()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('SLURM_JOB_ID')", "reify raised KeyError: 'SLURM_JOB_ID'"),
        ("return None", "reify gave no entry of stdouts for local rank 0"),
        ("return LogsDest({0: '', 1: ''}, {0: ''})", "reify gave no entry of stderrs for local rank 1"),
        ("return LogsDest(stdouts='x')", "reify gave LogsDest with stdouts of str; expected a dict"),
    ],
)
def test_a_broken_answer_is_told_with_its_distribution(install, body, said):
    head, _, tail = GOOD.partition("            envs[0]")
    install(f"{head}            {body}\n{tail[tail.index('        @property') :]}")
    with pytest.raises(PluginError) as caught:
        make().reify(envs())
    assert str(caught.value).startswith(f"logs specs 'mine' (acme-logs 1.2): {said}")
