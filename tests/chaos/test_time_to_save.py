"""Planned stops cost no work: whoever plans one, the ranks of all nodes save before the same step, and go on there.

Each scenario has a row in docs/explanation/planned-stops.md.
"""

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from chaos.multi_node import FULL_FIRST, StaticRun
from patience import patience
from support import places_of_runs, wait_for

TRAIN = """
import json, os, pathlib, sys, time
from elastic_core.worker import ready_to_stop, should_stop
env, shared = os.environ, pathlib.Path(os.environ["TEST_SHARED"])
rank, kept, how = int(env["RANK"]), shared / "kept", env.get("TEST_SAVE", "")
def say(**what):
    os.write(1, (json.dumps(dict(what, node=env["ELASTIC_NODE_ID"], rank=rank, world=int(env["WORLD_SIZE"]),
             gen=int(env["ELASTIC_ROUND"]), restarts=int(env["TORCHELASTIC_RESTART_COUNT"]))) + os.linesep).encode())
def keep(step):
    part = shared / f"part-{rank}"
    part.write_text(str(step))
    part.rename(kept)
step = int(kept.read_text()) if kept.exists() else 0
stops = should_stop(step=step)  # whoever has not asked yet is not waited for
say(began=step)
while not stops:
    if (shared / "finish").exists():
        sys.exit(0)
    time.sleep(0.01)
    step += 1
    stops = should_stop(step=step)
say(saves=step)
if how == "crash" and rank == 1:
    sys.exit(3)
while how == "slow" and not (shared / "go").exists() or how == "hang" and rank == 1:
    time.sleep(0.02)
if rank == 0:
    keep(step)
say(saved=step)
if how == "stay":
    ready_to_stop()
    time.sleep(600)
"""


@pytest.fixture
def training(redis_run):
    """Return a run whose script saves."""
    redis_run.script.write_text(TRAIN)
    return redis_run


def lines(node, key):
    return [line for line in node.says() if key in line]


def began(node, **wanted):
    """Wait until two of its workers run that are so."""

    def found():
        fits = [line for line in lines(node, "began") if all(line[key] == value for key, value in wanted.items())]
        return fits if len(fits) >= 2 else []

    try:
        return wait_for(found, what=f"{node.name}: {wanted}")
    except AssertionError as err:
        raise AssertionError(f"{err}; it said {node.says()}\n{node.agent.err}") from None


def saved_at(*nodes, gen, count):
    """Return the step before which so many ranks of a round have saved, which is one."""
    found = [line for node in nodes for line in lines(node, "saved") if line["gen"] == gen]
    assert len({line["rank"] for line in found}) == len(found) == count, found
    assert len({line["saved"] for line in found}) == 1, found
    return found[0]["saved"]


def two_nodes(run, *options, **given):
    a, b = (run.node(name, "1:2", "--nproc-per-node", "2", *options, conf=FULL_FIRST, **given) for name in "ab")
    for node in (a, b):
        began(node, world=4, gen=0)
    return a, b


def test_node_that_joins_and_one_that_is_drained_cost_no_step(run):
    run.script.write_text(TRAIN)
    a = run.node("a", "1:2", "--nproc-per-node", "2")
    began(a, world=2)
    b = run.node("b", "1:2", "--nproc-per-node", "2")
    joined = [*began(a, world=4), *began(b, world=4)]
    gen = joined[0]["gen"]
    assert {line["began"] for line in joined} == {saved_at(a, gen=gen - 1, count=2)}
    b.agent.signal(signal.SIGTERM)
    b.ends(143)
    alone = began(a, world=2, gen=gen + 1)
    assert {line["began"] for line in alone} == {saved_at(a, b, gen=gen, count=4)}
    assert {line["restarts"] for node in (a, b) for line in node.says()} == {0}
    run.all_end(a)


def test_schedulers_notice_is_a_signal_of_choice(training):
    run = training
    a, b = two_nodes(run, "--preemption-signal", "USR1")
    b.agent.signal(signal.SIGUSR1)
    b.ends(128 + signal.SIGUSR1)
    assert "SIGUSR1: stopping 2 workers" in b.agent.err
    assert began(a, world=2, gen=1)[0]["began"] == saved_at(a, b, gen=0, count=4)
    run.all_end(a)


@pytest.mark.parametrize("run", ["c10d"], indirect=True)
def test_node_that_takes_the_store_with_it_lets_all_save(run):
    run.script.write_text(TRAIN)
    a, b = two_nodes(run)
    a.agent.signal(signal.SIGTERM)
    a.ends(143)
    assert b.agent.wait() == 4, b.agent.err
    assert "which hosts the rendezvous store" in b.agent.err
    saved_at(a, b, gen=0, count=4)


def test_restart_that_somebody_asks_for_costs_no_step(training):
    run = training
    with tempfile.TemporaryDirectory(prefix="e-") as short:  # a socket's path has little room
        restart_of(run, Path(short))


def restart_of(run, folder):
    a, b = two_nodes(run, env=places_of_runs(folder))
    place = next(folder.glob("elastic-*/*-*"))
    asked = [sys.executable, "-m", "elastic_core", "ctl", "--run", place, "restart", "reason=new data"]
    wait_for(lambda: subprocess.run(asked, check=False, timeout=60).returncode == 0, what="an agent that listens")
    again = [*began(a, world=4, gen=1), *began(b, world=4, gen=1)]
    assert {line["began"] for line in again} == {saved_at(a, b, gen=0, count=4)}
    assert {line["restarts"] for line in again} == {0}
    run.all_end(a, b)


def test_notices_on_all_nodes_at_once(training):
    run = training
    nodes = two_nodes(run)
    for node in nodes:
        node.agent.signal(signal.SIGTERM)
    for node in nodes:
        node.ends(143)
    saved_at(*nodes, gen=0, count=4)


def test_notice_while_a_stop_is_held(training):
    run = training
    slow = {"TEST_SAVE": "slow"}
    a, b = two_nodes(run, env=slow)
    a.agent.signal(signal.SIGTERM)
    wait_for(lambda: len(lines(b, "saves")) == 2, what="b's ranks to save")
    b.agent.signal(signal.SIGTERM)
    b.told("SIGTERM: stopping 2 workers")
    (run.shared / "go").touch()
    for node in (a, b):
        node.ends(143)
    saved_at(a, b, gen=0, count=4)


def test_notice_while_a_round_is_formed_stops_nobody(training):
    run = training
    a = run.node("a", "2", "--nproc-per-node", "2", conf=FULL_FIRST)
    run.has_seats(1)
    a.agent.signal(signal.SIGTERM)
    a.ends(143)
    assert a.says() == []


def test_worker_that_fails_while_it_saves_is_no_failure_of_the_run(training):
    run = training
    a, b = two_nodes(run, env={"TEST_SAVE": "crash"})
    b.agent.signal(signal.SIGTERM)
    b.ends(143)
    again = began(a, world=2, gen=1)
    assert {line["began"] for line in again} == {saved_at(a, b, gen=0, count=3)}
    assert {line["restarts"] for line in again} == {0}
    run.all_end(a)


def test_save_that_hangs_is_named_and_holds_nobody_for_longer_than_it_may(training):
    run = training
    limit_s = round(patience(2))  # in which the other three have saved
    a, b = two_nodes(run, "--save-timeout", limit_s, env={"TEST_SAVE": "hang"})
    b.agent.signal(signal.SIGTERM)
    b.ends(143)
    began(a, world=2, gen=1)
    text = f"stopped without having saved within {limit_s} s (--save-timeout): rank 1 (still saving)"
    assert any(text in node.agent.err for node in (a, b)), a.agent.err + b.agent.err
    run.all_end(a)


def test_who_is_ready_says_so_and_the_stop_goes_on(training):
    run = training
    a, b = two_nodes(run, "--save-timeout", "600", env={"TEST_SAVE": "stay"})
    b.agent.signal(signal.SIGTERM)
    b.ends(143)
    assert began(a, world=2, gen=1)[0]["began"] == saved_at(a, b, gen=0, count=4)
    for node in (a, b):
        assert "without having saved" not in node.agent.err
    run.all_end(a)


def test_spare_that_steps_in_costs_no_step(training):
    run = training
    a, b = two_nodes(run)
    spare = run.node("c", "1:2", "--nproc-per-node", "2", conf=FULL_FIRST)
    spare.told("waiting as a spare")
    b.agent.signal(signal.SIGTERM)
    b.ends(143)
    again = [*began(a, world=4, gen=1), *began(spare, world=4, gen=1)]
    assert {line["began"] for line in again} == {saved_at(a, b, gen=0, count=4)}
    run.all_end(a, spare)


def test_static_nodes_save_each_by_itself(elastic, tmp_path):
    run = StaticRun(elastic, tmp_path)
    run.script.write_text(TRAIN)
    nodes = [run.node(name, "2", "--nproc-per-node", "2") for name in "ab"]
    for node in nodes:
        began(node, world=4)
        node.agent.signal(signal.SIGTERM)
    for node in nodes:
        node.ends(143)
        saved_at(node, gen=0, count=2)


def test_agent_that_is_killed_while_others_wait_for_its_word_holds_nobody_up(training):
    run = training
    a, b = two_nodes(run, "--save-timeout", "600", env={"TEST_SAVE": "slow"})
    a.agent.signal(signal.SIGTERM)
    wait_for(lambda: len(lines(b, "saves")) == 2, what="b's ranks to save")
    b.power_off()
    (run.shared / "go").touch()
    a.ends(143)
    assert len(lines(a, "saved")) == 2


SIGNALLED = """
import os, pathlib, signal, sys, time
file, shared = pathlib.Path(os.environ["TRAINING_STOP_FILE"]), pathlib.Path(os.environ["TEST_SHARED"])
def save(signum, frame):
    (shared / f"saved-{os.environ['RANK']}").write_text(file.read_text())
    file.unlink()
signal.signal(signal.SIGUSR2, save)
(shared / f"up-{os.environ['RANK']}").touch()
while True:
    time.sleep(0.02)
"""


def test_script_that_imports_nothing_of_ours_has_a_signal_and_a_file(redis_run):
    run = redis_run
    run.script.write_text(SIGNALLED)
    a = run.node("a", "1", "--nproc-per-node", "2", "--save-signal", "usr2", "--save-timeout", "600")
    wait_for(lambda: len([*run.shared.glob("up-*")]) == 2, what="both workers")
    a.agent.signal(signal.SIGTERM)
    a.ends(143)
    for rank in range(2):
        notice = json.loads((run.shared / f"saved-{rank}").read_text())
        assert notice == {"reason": "stopped by signal 15", "within_s": 600.0}
