"""Commands that name a run: which of this host's agents, or which store, they are about."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

import elastic_ops.control_plane.client as client
from elastic_core.api import ConfigError, Failure, FailureClass, Restart, encode_json
from elastic_core.api.tools import AgentIdentity, replace_file
from elastic_core.cli.main import main
from elastic_core.failure.incident import build_incident, write_incident
from elastic_core.rundir.directory import RunDirectory
from elastic_core.rundir.run_records import RunEntry
from elastic_ops import jobs, run_directories
from elastic_ops.ctl import command as ctl
from elastic_ops.ending.drain import _read_words
from elastic_ops.run_directories import runs_named
from elastic_ops.run_target import is_here, run_of, store_asked
from elastic_ops.status.document import STATUS_FILE, AgentStatus, EndStatus

VARIABLES = {"PET_RDZV_BACKEND": "redis", "PET_RDZV_ENDPOINT": "r:6379"}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    for variable in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(variable, str(runtime))
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def agent():
    """Leave the run directory of an agent, which this process is; return it."""
    kept = []

    def leave(run_id, node_id="a", *, backend="redis", end=None, control=""):
        kept.append(RunDirectory(None, run_id))
        status = AgentStatus(
            run_id=run_id,
            node_id=node_id,
            agent=AgentIdentity.own(host="h", started_ns=len(kept)),
            backend=backend,
            state="running" if end is None else "ended",
            end=end,
            control=control,
        )
        replace_file(kept[-1].path / STATUS_FILE, encode_json(status))
        RunEntry.begin(run_id=run_id, node_id=node_id, script="train.py", run_dir=str(kept[-1].path))
        return kept[-1].path

    return leave


@pytest.fixture
def remembered(monkeypatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def asked(target, **options):
    with click.Context(click.Command("status")):
        choice = store_asked(options, target)
    return None if choice is None else (choice.backend, choice.endpoint, choice.run_id)


# --- a store by variables


def test_a_named_run_is_read_from_the_store_of_the_variables(remembered, agent):
    assert asked("bert-7") == ("redis", "r:6379", "bert-7")
    agent("bert-7")  # also where a node of it is
    assert asked("bert-7") == ("redis", "r:6379", "bert-7")
    assert asked("bert-7", rdzv_endpoint="other:1") == ("redis", "other:1", "bert-7")
    assert asked("bert-7", rdzv_backend="etcd") == ("etcd", "r:6379", "bert-7")


def test_the_name_overrides_the_id_of_the_variables(remembered, monkeypatch):
    monkeypatch.setenv("PET_RDZV_ID", "gpt")
    assert asked("bert-7") == ("redis", "r:6379", "bert-7")
    assert asked(None) == ("redis", "r:6379", "gpt")


def test_a_path_and_a_run_of_another_backend_are_on_this_host(remembered, agent):
    path = agent("alone", backend="local")
    assert asked(str(path)) is None
    assert asked("alone") is None


@pytest.mark.parametrize("backend", ["", "local", "static"])
def test_variables_without_a_store_name_none(monkeypatch, backend):
    monkeypatch.setenv("PET_RDZV_BACKEND", backend)
    assert asked("bert-7") is None


def test_an_option_that_lacks_a_backend_or_names_another_run_is_one_line():
    with pytest.raises(ConfigError, match="no rendezvous backend is named; expected"):
        asked("bert-7", rdzv_endpoint="r:6379")
    with pytest.raises(click.UsageError, match="RUN 'bert-7' and --rdzv-id 'gpt' name two runs; expected one"):
        asked("bert-7", rdzv_backend="redis", rdzv_id="gpt")
    assert asked("bert-7", rdzv_backend="redis", rdzv_id="bert-7") == ("redis", "", "bert-7")


def test_what_the_store_forgot_is_read_here(remembered, agent):
    assert not is_here({}, "bert-7")
    agent("bert-7", end=EndStatus(outcome="failed", exit_code=7, reason="exit code 7"))
    assert is_here({"rdzv_backend": None}, "bert-7")
    assert not is_here({"rdzv_backend": "redis"}, "bert-7")  # typed: that store alone is meant


# --- a folder of the run's name


def test_a_folder_that_is_named_as_the_run_does_not_hide_it(agent, tmp_path):
    (tmp_path / "work" / "bert-7").mkdir()
    with pytest.raises(ConfigError, match="is not a run directory"):
        runs_named("bert-7")
    path = agent("bert-7")
    assert [run.path for run in runs_named("bert-7")] == [str(path)]
    with pytest.raises(ConfigError, match="is not a run directory"):
        runs_named("./bert-7")


def test_the_first_status_of_an_agent_that_has_just_started_is_waited_for(agent, monkeypatch):
    path = agent("bert-7")
    (path / STATUS_FILE).rename(path / "later")
    looks = []

    def passes(*_):
        looks.append(1)
        if len(looks) == 3:
            (path / "later").rename(path / STATUS_FILE)

    monkeypatch.setattr(run_directories, "_STARTING_S", 600.0)  # it stays young, however slow this machine is
    monkeypatch.setattr(run_directories.WaitBudget, "sleep", passes)
    assert [run.path for run in runs_named("bert-7")] == [str(path)]
    assert len(looks) == 3
    with pytest.raises(ConfigError, match="no run directory 'bert-8'"):
        runs_named("bert-8")
    assert len(looks) == 3


def test_an_agent_that_writes_no_status_is_named_once_it_is_not_young(agent, monkeypatch):
    path = agent("bert-7")
    (path / STATUS_FILE).unlink()
    monkeypatch.setattr(run_directories, "_STARTING_S", 0.0)
    with pytest.raises(ConfigError, match=f"'bert-7' runs here .agent process {os.getpid()}., but .* no status"):
        runs_named("bert-7")


def test_an_agent_that_has_run_for_a_while_is_not_waited_for(agent, monkeypatch):
    path = agent("bert-7")
    (path / STATUS_FILE).unlink()
    later_ns = run_directories.SYSTEM_CLOCK.wall_ns() + 3 * 10**9
    monkeypatch.setattr(run_directories, "SYSTEM_CLOCK", SimpleNamespace(wall_ns=lambda: later_ns, monotonic_s=float))
    monkeypatch.setattr(run_directories.WaitBudget, "sleep", lambda *_: pytest.fail("it waits"))
    with pytest.raises(ConfigError, match="'bert-7' runs here"):
        runs_named("bert-7")


def test_an_empty_word_is_not_the_run_of_the_working_directory(agent, monkeypatch):
    monkeypatch.chdir(agent("bert-7"))
    with pytest.raises(ConfigError, match=r"^RUN: ''; expected a run id or a run directory\. Try: elastic status"):
        runs_named("")


# --- two agents of a run


def test_status_shows_each_agent_of_a_named_run_in_full(agent, capsys):
    paths = [agent("bert-7", node) for node in "ab"]
    assert main(["status", "bert-7"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("run ")] == [
        line for path in paths for line in ("run 'bert-7': running", f"run directory: {path}")
    ]
    assert "One in full" not in out
    assert main(["status"]) == 0
    assert "One in full: elastic status RUN" in capsys.readouterr().out


@pytest.fixture
def answers(monkeypatch):
    """Have sockets answer with their own path."""
    calls = []

    def call(path, command, params=None, **_):
        calls.append((path, command))
        return SimpleNamespace(
            ok=True, status=200, text=f"{command} at {path}", content_type="text/plain", is_json=False
        )

    monkeypatch.setattr(client, "call", call)
    return calls


def test_ctl_asks_each_agent_of_a_named_run(agent, answers, capsys):
    for node in "ab":
        agent("bert-7", node, control=f"/s/{node}")
    assert main(["ctl", "--run", "bert-7", "state"]) == 0
    assert capsys.readouterr().out.splitlines() == ["node a:", "state at /s/a", "node b:", "state at /s/b"]
    assert main(["ctl", "--json", "--run", "bert-7", "state"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ['"node_id":"a"' in lines[0], '"node_id":"b"' in lines[1]] == [True, True]


def test_ctl_has_one_agent_alone_change_something(agent, answers, capsys):
    assert set(ctl._QUESTIONS).isdisjoint(("drain", "restart"))
    paths = [agent("bert-7", node, control=f"/s/{node}") for node in "ab"]
    assert main(["ctl", "--run", "bert-7", "drain"]) == 2
    line = capsys.readouterr().err
    assert "drain: run 'bert-7' has 2 agents on this host; expected one. Try: one of these as RUN: '" in line
    assert all(repr(str(path)) in line for path in paths)
    assert answers == []
    assert main(["ctl", "--run", str(paths[1]), "drain"]) == 0
    assert answers == [("/s/b", "drain")]


# --- the words of `elastic ctl`


@pytest.mark.parametrize(
    ("words", "run", "found"),
    [
        ((), None, (None, ())),
        (("state",), None, (None, ("state",))),
        (("drain", "deadline=5"), None, (None, ("drain", "deadline=5"))),
        (("bert-7",), None, ("bert-7", ())),
        (("bert-7", "state"), None, ("bert-7", ("state",))),
        (("gone", "drain", "deadline=5"), None, ("gone", ("drain", "deadline=5"))),
        (("ended", "state"), None, ("ended", ("state",))),
        (("step",), None, (None, ("step",))),
        (("drain", "soon"), None, (None, ("drain", "soon"))),
        (("state", "reason=x"), "bert-7", ("bert-7", ("state", "reason=x"))),
        (("bert-7",), "gpt", ("gpt", ("bert-7",))),
    ],
)
def test_ctl_takes_the_run_as_the_other_commands_do(agent, words, run, found):
    agent("bert-7")
    agent("ended", end=EndStatus(outcome="failed", exit_code=7, reason="exit code 7"))
    assert ctl._read_words(words, run) == found


def test_ctl_takes_a_run_named_as_a_command_where_both_are_given(agent, answers, capsys):
    agent("state", control="/s/a")
    assert main(["ctl", "state"]) == 2
    line = capsys.readouterr().err
    assert "ctl 'state': a run of this host and a command have that name. Try: elastic ctl RUN state, or" in line
    assert line.count("\n") == 1
    assert main(["ctl", "state", "ping"]) == 0
    assert main(["ctl", "--run", "state", "ping"]) == 0
    assert main(["ctl", "--rdzv-id", "state", "state"]) == 0
    assert answers == [("/s/a", "ping"), ("/s/a", "ping"), ("/s/a", "state")]


def test_ctl_without_a_run_is_about_the_only_one_of_this_host(agent, answers, capsys):
    for node in "ab":
        agent("bert-7", node, control=f"/s/{node}")
    assert main(["ctl", "ping"]) == 0
    assert answers == [("/s/a", "ping"), ("/s/b", "ping")]
    assert main(["ctl", "drain"]) == 2
    agent("gpt", "c", control="/s/c")
    capsys.readouterr()
    assert main(["ctl", "ping"]) == 2
    line = "elastic: error: RUN: 2 runs are on this host ('bert-7', 'gpt'); expected one. Try: elastic ctl RUN …\n"
    assert capsys.readouterr().err == line
    assert main(["ctl", "gpt", "ping"]) == 0
    assert main(["ctl", "drain", "soon"]) == 2


# --- a run by an option


@pytest.mark.parametrize("command", ["status", "stop", "logs", "incidents"])
@pytest.mark.parametrize("option", ["--run", "--rdzv-id"])
def test_a_run_by_an_option_is_the_run_of_this_host_by_that_name(agent, capsys, command, option):
    agent("bert-7", backend="local")
    args = ["--timeout", "1"] if command == "stop" else []
    forms = (["bert-7"], [option, "bert-7"], ["bert-7", option, "bert-7"])
    results = [(main([command, *args, *words]), capsys.readouterr()) for words in forms]
    assert results[0] == results[1] == results[2]
    assert main([command, "gpt", option, "bert-7"]) == 2
    assert f"RUN 'gpt' and {option} 'bert-7' name two runs; expected one" in capsys.readouterr().err


def test_an_id_is_read_in_the_store_that_a_variable_names(remembered):
    with click.Context(click.Command("status")):
        options = {"rdzv_id": "team/bert", "rdzv_backend": None}
        assert (run_of(None, None, options), options["rdzv_id"]) == (None, "team/bert")


# --- the words of `elastic drain`

REDIS = {"rdzv_backend": "redis", "rdzv_endpoint": "r:6379"}


@pytest.mark.parametrize(
    ("words", "run", "options", "variables", "found"),
    [
        (("gpt", "a"), None, REDIS, {}, ("gpt", ("a",))),
        (("gpt", "a", "b"), None, REDIS, {}, ("gpt", ("a", "b"))),
        (("a", "b"), "gpt", REDIS, {}, ("gpt", ("a", "b"))),
        (("a", "b"), None, REDIS | {"rdzv_id": "gpt"}, {}, (None, ("a", "b"))),
        (("gpt", "b"), None, {}, VARIABLES, ("gpt", ("b",))),
        (("a", "b"), None, {}, VARIABLES | {"PET_RDZV_ID": "gpt"}, (None, ("a", "b"))),
        (("gpt", "b"), None, {}, VARIABLES | {"PET_RDZV_ID": "gpt"}, ("gpt", ("b",))),
        (("gpt",), None, {}, VARIABLES | {"PET_RDZV_ID": "gpt"}, (None, ("gpt",))),
        (("bert-7", "here"), None, {}, {}, ("bert-7", ("here",))),
        (("here", "b"), None, {}, {}, (None, ("here", "b"))),
        (("here", "b"), None, {}, VARIABLES, (None, ("here", "b"))),
        (("here",), None, {}, VARIABLES, (None, ("here",))),
        (("x", "y"), None, {}, {}, (None, ("x", "y"))),
    ],
)
def test_drain_takes_the_run_as_the_other_commands_do(agent, monkeypatch, words, run, options, variables, found):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    agent("bert-7", "here")
    assert _read_words(words, run, options) == found


def test_drain_says_what_is_missing_or_ambiguous(agent, capsys):
    assert main(["drain", "--rdzv-backend", "redis", "--rdzv-endpoint", "r:6379", "c"]) == 2
    line = "elastic: error: drain 'c': expected RUN and NODE. Try: elastic drain RUN c\n"
    assert capsys.readouterr().err == line
    agent("bert-7", "a")
    assert main(["drain", "bert-7"]) == 2
    assert (
        "node 'bert-7': not on this host, which has a of run 'bert-7'. Try: elastic drain bert-7 a"
        in capsys.readouterr().err
    )
    agent("same", "same")
    assert main(["drain", "same", "b"]) == 2
    assert (
        "drain 'same': a run and a node of this host have that name. Try: elastic drain --run RUN same b"
        in capsys.readouterr().err
    )


def test_the_hint_of_drain_is_of_the_run_that_may_be_meant(agent, capsys):
    agent("lone", "a", backend="local")  # it has no other host on which the command could be given
    assert main(["drain", "c"]) == 2
    assert capsys.readouterr().err.endswith("has a of run 'lone'. Try: elastic drain lone a\n")
    agent("bert-7", "b")
    assert main(["drain", "c"]) == 2
    hint = "elastic drain RUN c, with --rdzv-backend and --rdzv-endpoint of a run on other hosts"
    assert capsys.readouterr().err.endswith(f"b of run 'bert-7'. Try: {hint}\n")


def test_a_second_word_of_incidents_is_a_number(capsys):
    assert main(["incidents", "bert-7", "last"]) == 2
    assert capsys.readouterr().err.startswith("elastic: error: N: 'last'; expected the number of an incident. Try: ")


# --- a run by the number of a scheduler's job


OF_JOB = {"rdzv_backend": "c10d", "rdzv_endpoint": "n1:21031", "rdzv_id": "4711.0", "rdzv_conf": "is_host=false"}


@pytest.fixture
def scheduler(monkeypatch):
    """Install a scheduler that has job 4711; return the numbers that it was asked for."""
    asked_for = []

    def run_of_job(name):
        asked_for.append(name)
        if name != "4711":
            raise ConfigError(f"job {name}: there is none", hint="squeue")
        return OF_JOB

    entry = SimpleNamespace(group="elastic_ops.jobs", name="slurm", value="m:f", label="slurm 1")
    monkeypatch.setattr(jobs, "find_entries", lambda group: [entry])
    monkeypatch.setattr(jobs, "import_entry", lambda entry: run_of_job)
    return asked_for


def test_the_number_of_a_job_names_the_store_of_its_run(scheduler):
    assert asked("4711") == ("c10d", "n1:21031", "4711.0")
    assert asked("4711", rdzv_id="bert-7") == ("c10d", "n1:21031", "bert-7")
    with pytest.raises(ConfigError, match="job 4712: there is none"):
        asked("4712")


@pytest.mark.parametrize("name", ["bert-7", "a4711", "4711-a", "./4711"])
def test_other_names_are_no_jobs(scheduler, name):
    asked(name)
    assert not scheduler


def test_a_store_that_is_named_overrides_the_job(scheduler, monkeypatch):
    assert asked("4711", rdzv_backend="redis", rdzv_endpoint="r:1") == ("redis", "r:1", "4711")
    monkeypatch.setenv("PET_RDZV_BACKEND", "redis")
    assert asked("4711") == ("redis", "", "4711")
    assert not scheduler


def test_a_run_here_is_found_whose_job_is_over(scheduler, agent):
    agent("4712.0", end=EndStatus(outcome="failed", exit_code=1, reason=""))
    assert asked("4712.0") is None


def test_a_scheduler_that_is_not_on_this_host_knows_nothing(scheduler, monkeypatch):
    monkeypatch.setattr(jobs, "import_entry", lambda entry: lambda name: None)
    assert asked("4711") is None


def test_the_first_word_of_drain_may_be_a_job(scheduler):
    assert _read_words(("4711", "n3", "n4"), None, {}) == ("4711", ("n3", "n4"))
    assert _read_words(("4711", "n3"), "4711", {"rdzv_id": "bert-7"}) == ("4711", ("4711", "n3"))
    assert _read_words(("4711",), None, {}) == (None, ("4711",))


# --- incidents of runs whose directories are gone


def incident(run_id, summary, at_ns):
    failure = Failure(
        failure_class=FailureClass.EXIT, summary=summary, node_id="a", round_index=0, at_s=1.0, uptime_s=1.0
    )
    return build_incident(failure, run_id=run_id, host="h", at_ns=at_ns, decision=Restart())


def test_incidents_of_a_run_that_removed_its_directory_are_listed_as_long_as_they_are_kept(tmp_path, capsys):
    gone = RunEntry.begin(run_id="gone", node_id="a", script="train.py", run_dir=str(tmp_path / "gone"))
    (tmp_path / "there").mkdir()
    there = RunEntry.begin(run_id="there", node_id="a", script="train.py", run_dir=str(tmp_path / "there"))
    write_incident(Path(gone.make_files()) / "incident-lost-0.json", incident("gone", "b was lost", 1))
    write_incident(tmp_path / "there" / "incident.json", incident("there", "exit code 7", 2))
    write_incident(Path(there.make_files()) / "incident.json", incident("there", "not read", 3))

    def listed(*words):
        assert main(["incidents", "--json", *words]) == 0
        found = json.loads(capsys.readouterr().out)["incidents"]
        return [(one["number"], one["incident"]["summary"]) for one in found]

    assert listed() == [(1, "b was lost"), (2, "exit code 7")]
    assert listed("gone") == [(1, "b was lost")]
    assert listed(str(tmp_path / "there")) == [(1, "exit code 7")]
    assert main(["incidents", "other"]) == 2
