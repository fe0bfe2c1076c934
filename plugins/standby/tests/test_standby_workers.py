"""Standby workers: a spare that takes over is the worker that a fresh start would have been."""

import json
import os
import signal
import textwrap
from pathlib import Path

import pytest

from elastic_core.processes.spec import ROUND_VARIABLES
from elastic_standby.pool import MAX_DEATHS
from group_kit import all_closed_since, open_fds
from proc_kit import command_line, state_of
from standby_kit import ENDS, MARK, Bench, kill_a_worker, lay_out, recorded
from support import processes_with, wait_for


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = open_fds()
    bench = Bench(tmp_path)
    yield bench
    bench.close()
    all_closed_since(before)
    assert wait_for(lambda: not processes_with(f"MARK={MARK}"), what="the end of every spare")


@pytest.mark.parametrize("kind", ["script", "relative", "link", "folder", "archive", "module", "package"])
def test_a_program_sees_no_difference(bench, kind, tmp_path):
    (code, out, err), warm = bench.both(*lay_out(kind, tmp_path), "--lr", "1e-3", "a b", "")
    assert code == 0
    assert json.loads(warm[1]) == json.loads(out)
    assert (warm[0], warm[2]) == (code, err)


@pytest.mark.parametrize(
    "variables", [{"PYTHONSAFEPATH": "1"}, {"PYTHONFAULTHANDLER": "1", "LANG": "C", "X": "a=b\nc"}]
)
def test_nor_with_other_settings_and_without_hooks(bench, variables, tmp_path):
    cold, warm = bench.both(*lay_out("script", tmp_path), hooks=False, **variables)
    assert cold[0] == 0
    assert warm == cold


@pytest.mark.parametrize("as_module", [False, True], ids=["script", "module"])
@pytest.mark.parametrize("how", ENDS)
def test_it_ends_with_the_same_words_code_and_record(bench, how, as_module, tmp_path):
    source = textwrap.dedent(ENDS[how])
    (tmp_path / "train.py").write_bytes(source.encode("utf-8", "surrogateescape"))
    words = ["-m", "train"] if as_module else ["train.py"]
    bench.stand_by(bench.launch(*words, round_=7))
    _, end = bench.take(bench.launch(*words))
    warm, warm_record = end(), recorded(tmp_path)
    cold = bench.cold(bench.launch(*words))
    assert warm == cold
    assert warm_record == recorded(tmp_path)


def test_a_script_that_is_gone_or_compiled_is_left_to_the_interpreter(bench, tmp_path):
    import py_compile

    (tmp_path / "train.py").write_text("print(__file__, __loader__)")
    py_compile.compile("train.py", cfile="train.pyc")
    assert bench.both("train.pyc")[0][0] == 0
    cold, warm = bench.both("nowhere.py")
    assert cold[0] == 2
    assert warm == cold


def test_what_the_scripts_folder_hides_is_hidden_from_the_imports(bench, tmp_path):
    bench.close()
    bench.__init__(tmp_path, ["seen", "not_installed"])
    for folder in ("here", "below"):
        (tmp_path / folder).mkdir()
    (tmp_path / "seen.py").write_text("text = 'the working directory'")
    (tmp_path / "below" / "seen.py").write_text(
        "import os\ntext = f'beside the script, rank {os.environ.get(\"RANK\")}'"
    )
    (tmp_path / "below" / "train.py").write_text("import sys; print(sys.modules['seen'].text)")
    bench.stand_by(bench.launch("below/train.py", round_=7))
    _, end = bench.take(bench.launch("below/train.py"))
    assert end() == (0, "beside the script, rank None\n", "")


def test_what_imports_do_to_the_environment_stays(bench, tmp_path):
    bench.close()
    bench.__init__(tmp_path, ["changes"])
    (tmp_path / "changes.py").write_text("import os\nos.environ['ADDED'] = 'x'\nos.environ.pop('GONE', None)")
    (tmp_path / "train.py").write_text("import changes, json, os; print(json.dumps(dict(os.environ)))")
    cold, warm = bench.both("train.py", hooks=False, GONE="1")
    assert "ADDED" in cold[1]
    assert "GONE" not in cold[1]
    assert json.loads(warm[1]) == json.loads(cold[1])


# --- the pool


def test_orders_wait_for_a_spare_that_is_not_ready(bench, lines, tmp_path):
    bench.close()
    bench.__init__(tmp_path, ["slow"])
    (tmp_path / "slow.py").write_text("import time, os\nwhile not os.path.exists('go'): time.sleep(0.01)")
    bench.pool.stand_by([bench.launch(lines, round_=7)])
    bench.turn_until(bench.pool.pids)
    assert bench.pool.ready_count == 0
    process, end = bench.take(bench.launch(lines))
    assert process is not None
    assert not bench.pool.pids()
    (tmp_path / "go").write_text("")
    assert end() == (0, "0\n", "")


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_an_environment_of_any_size_arrives(bench, tmp_path, size):
    (tmp_path / "train.py").write_text("import os; print(sum(map(len, os.environ.values())))")
    big = {f"BIG{n}": "x" * 100_000 for n in range(size // 100_000)}
    cold, warm = bench.both("train.py", hooks=False, **big)
    assert cold[0] == 0
    assert warm == cold


@pytest.mark.parametrize(
    ("words", "variables", "named"),
    [
        (["train.py"], {"OMP_NUM_THREADS": "3"}, "OMP_NUM_THREADS"),
        (["train.py", "--more"], {}, "the command"),
    ],
)
def test_a_spare_that_might_differ_is_not_used_but_replaced(bench, lines, words, variables, named):
    bench.stand_by(bench.launch(lines))
    (before,) = bench.pool.pids()
    other = bench.launch(*words, **variables)
    assert bench.pool.take(other) is None
    assert f"{named} changed since the last round" in bench.notices[0]
    bench.stand_by(other)
    assert bench.pool.pids() != {before}


def test_nor_one_in_another_folder_nor_for_the_worker_with_the_terminal(bench, lines, tmp_path, monkeypatch):
    launch = bench.launch(lines)
    bench.stand_by(launch)
    assert bench.pool.take(bench.launch(lines, rank=1)) is None
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert bench.pool.take(launch) is None
    assert "the working directory" in bench.notices[0]


def test_spares_are_started_one_by_one_and_one_that_dies_is_replaced(bench, lines):
    launches = [bench.launch(lines, rank=rank) for rank in range(3)]
    bench.pool.stand_by(launches)
    seen = []
    bench.turn_until(
        lambda: seen.append(len(bench.pool.pids()) - bench.pool.ready_count) or bench.pool.ready_count == 3
    )
    assert max(seen) == 1
    before = bench.pool.pids()
    os.kill(min(before), signal.SIGKILL)
    bench.turn_until(lambda: bench.pool.ready_count == 3 and bench.pool.pids() != before)
    assert len(bench.pool.pids() & before) == 2


def test_spares_that_keep_dying_are_given_up(bench, lines):
    bench.pool.stand_by([bench.launch(lines)])
    for _ in range(MAX_DEATHS):
        bench.turn_until(bench.pool.pids)
        (pid,) = bench.pool.pids()
        os.kill(pid, signal.SIGKILL)
        bench.turn_until(lambda pid=pid: pid not in bench.pool.pids())
    assert bench.notices == [
        "no standby workers any more: 3 ended by themselves, the last with signal 9; restarts start fresh interpreters"
    ]
    bench.pool.stand_by([bench.launch(lines)])
    bench.reactor.turn(0.05)
    assert not bench.pool.pids()


def test_an_import_that_fails_is_told_and_a_worker_is_started_afresh_all_the_same(bench, lines, tmp_path):
    bench.close()
    bench.__init__(tmp_path, ["broken"])
    (tmp_path / "broken.py").write_text("import os\nwhile not os.path.exists('go'): pass\nraise OSError('no such lib')")
    bench.pool.stand_by([bench.launch(lines, round_=7)])
    bench.turn_until(bench.pool.pids)
    _, end = bench.take(bench.launch(lines))
    (tmp_path / "go").write_text("")
    assert end() == (0, "0\n", "")
    bench.pool.stand_by([bench.launch(lines)])
    bench.turn_until(lambda: bench.notices)
    assert "import broken: OSError: no such lib" in bench.notices[0]
    assert not bench.pool.pids()


def test_what_a_spare_has_started_ends_with_it(bench, lines, tmp_path):
    bench.close()
    bench.__init__(tmp_path, ["starts"])
    (tmp_path / "starts.py").write_text("import subprocess\nsubprocess.Popen(['sleep', '600'])\n")
    bench.stand_by(bench.launch(lines))
    mark = f"MARK={MARK}"
    wait_for(lambda: len(processes_with(mark)) == 2, what="the spare and its child")  # which has its variables late
    bench.pool.close()
    try:
        wait_for(lambda: not processes_with(mark), within_s=5.0, what="the end of the spare's child")
    finally:
        for pid in processes_with(mark):
            os.kill(pid, signal.SIGKILL)


def test_a_spare_that_died_unseen_is_no_loss(bench, lines):
    bench.stand_by(bench.launch(lines, round_=7))
    (pid,) = bench.pool.pids()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: state_of(pid) == "Z")
    assert bench.pool.take(bench.launch(lines)) is None
    assert not bench.pool.pids()


def test_what_a_spare_starts_with_names_no_round(bench, lines):
    bench.stand_by(bench.launch(lines))
    (pid,) = bench.pool.pids()
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    names = {entry.partition("=")[0] for entry in entries}
    assert "MARK" in names
    assert not names & ROUND_VARIABLES
    assert Path(f"/proc/{pid}/cmdline").read_text().split("\0")[-2:] == [lines, ""]


# --- the whole launcher

WORKER = """
import json, os, sys, time
before = {"MARKED": "spare" if "marker" in sys.modules else "fresh"}
sys.stdout.write(json.dumps(before | {"rank": os.environ["RANK"], "round": os.environ["ELASTIC_ROUND"],
    "pid": os.getpid()}) + os.linesep)
sys.stdout.flush()
if os.environ["ELASTIC_ROUND"] == "0":
    time.sleep(600)
exec(sys.argv[1])
"""


@pytest.fixture
def standby(elastic, script, tmp_path):
    """Start two workers that sleep in their first round, and wait for their spares."""
    (tmp_path / "marker.py").write_text("")

    def start(then, *options, imports="marker", env=None):
        agent = elastic(
            *(
                "--standby",
                "--standby-start",
                "spawn",
                "--standby-imports",
                imports,
                "--nproc-per-node",
                "2",
                "--max-restarts",
                "1",
                *options,
            ),
            *(script(WORKER), then),
            env={"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"} | (env or {}),
        )
        wait_for(lambda: agent.out.count('"fresh"') == 2, what="the workers")
        wait_for(lambda: len(spares_of(agent)) == 2, what=f"the spares\n{agent.err}")
        return agent

    return start


def spares_of(agent):
    return [pid for pid in agent.survivors() if b"elastic_standby/spare.py" in command_line(pid)]


def test_a_restart_takes_the_spares_and_the_end_leaves_nothing(standby):
    agent = standby("pass")
    spares = set(spares_of(agent))
    kill_a_worker(agent)
    assert agent.wait() == 0
    assert wait_for(lambda: not agent.survivors())
    restarted = [line for line in agent.lines() if line["round"] == "1"]
    assert {line["pid"] for line in restarted} == spares
    assert [line["MARKED"] for line in agent.lines()] == ["fresh", "fresh", "spare", "spare"]


def test_spares_are_filled_up_for_the_next_restart(standby):
    agent = standby("time.sleep(600)")
    before = set(spares_of(agent))
    kill_a_worker(agent)
    wait_for(lambda: len(agent.lines()) == 4, what="the workers of round 1")
    wait_for(lambda: len(set(spares_of(agent)) - before) == 2, what="new spares")
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 128 + signal.SIGTERM
    assert wait_for(lambda: not agent.survivors())


def test_output_and_failure_of_a_spare_go_where_a_workers_go(standby, tmp_path):
    agent = standby(
        "1 / 0 if os.environ['RANK'] == '1' else time.sleep(600)", "--tee", "3", "--log-dir", tmp_path / "l"
    )
    kill_a_worker(agent)
    assert agent.wait() == 1
    incident = agent.incident()
    assert "ZeroDivisionError" in json.dumps(incident)
    assert "spare.py" not in json.dumps(incident)
    assert "spare.py" not in agent.err
    (log,) = (tmp_path / "l").glob("*/attempt_1/1/stderr.log")
    assert log.read_text().startswith('Traceback (most recent call last):\n  File "')
    assert log.read_text().count("  File ") == 2
    assert "[default1]:ZeroDivisionError" in agent.err


def test_the_agents_death_ends_the_spares(standby):
    agent = standby("pass")
    agent.signal(signal.SIGKILL)
    assert agent.wait() == -signal.SIGKILL
    wait_for(lambda: not agent.survivors(), within_s=2.0, what="the end of workers and spares")


# --- torch
