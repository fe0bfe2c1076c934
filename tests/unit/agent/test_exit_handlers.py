"""What a worker that has raised an exception still has for its exit handlers: the machine's part, and the ladder's."""

import pytest
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.agent.machine.states import End, Stopping
from elastic_core.agent.machine.table import advance
from elastic_core.agent.stop_ladder import NOTICE_S
from elastic_core.types import Restart, Stop
from unit.agent.test_machine import drive, make_exit, make_failure, make_round
from unit.agent.test_stop_ladder import Node

LAST = m.StopWorkers(signum=15, reason="ValueError: bad sample", ends_run=True)
STOP, RESTART = Stop(reason="no restarts are allowed"), Restart()


def halt_after(decision, *, nodes=1, found=m.HangFound, **begin):
    round_ = replace(make_round(), node_count=nodes)
    failure = make_failure(0)
    told = (m.HangFound(failure=failure),)
    if found is m.WorkerExited:
        told = (m.WorkerExited(exit=make_exit(0, -9)), m.Examined(failure=failure))
    step = drive(
        m.StartRequested(**begin), m.JoinAllowed(), m.RoundFormed(round=round_), m.StartAllowed(), m.WorkersSpawned(),
        *told, m.DecisionMade(failure=failure, decision=decision),
    )  # fmt: skip
    (halt,) = [command for command in step.commands if isinstance(command, m.StopWorkers)]
    return step.state, halt


@pytest.mark.parametrize("found", [m.HangFound, m.WorkerExited])
@pytest.mark.parametrize("begin", [{}, {"control": True, "gathers": True}, {"control": True}])
def test_stop_of_the_only_node_after_the_last_failure_ends_the_run(begin, found):
    _, halt = halt_after(STOP, found=found, **begin)
    assert halt.ends_run


@pytest.mark.parametrize("begin", [{}, {"control": True, "gathers": True}])
@pytest.mark.parametrize(("decision", "nodes"), [(RESTART, 1), (STOP, 2), (RESTART, 2)])
def test_before_a_restart_and_beside_other_nodes_nobody_waits_for_exit_handlers(begin, decision, nodes):
    _, halt = halt_after(decision, nodes=nodes, **begin)
    assert not halt.ends_run


def test_stop_from_outside_is_for_the_workers_at_once():
    step = drive(
        m.StartRequested(), m.JoinAllowed(), m.RoundFormed(round=make_round()), m.StartAllowed(), m.WorkersSpawned(),
        m.StopRequested(signum=15),
    )  # fmt: skip
    assert [command.ends_run for command in step.commands if isinstance(command, m.StopWorkers)] == [False]


def test_run_that_is_told_to_stop_while_it_waits_goes_on_waiting_and_a_second_signal_kills():
    state, _ = halt_after(STOP)
    first = advance(state, m.StopRequested(signum=2), now_s=10.0)
    assert isinstance(first.state, Stopping)
    assert isinstance(first.state.then, End)
    assert [type(command) for command in first.commands] == [m.AnnounceDrain]
    second = advance(first.state, m.StopRequested(signum=2), now_s=11.0)
    assert second.commands == (m.KillWorkers(),)


# --- the ladder


def test_workers_that_have_all_raised_get_no_signal_while_their_time_lasts():
    node = Node(grace_s=30.0)
    node.raised_s = {0: 95.0, 1: 97.0}
    node.ladder.stop(LAST, 0)
    node.pass_time(26.9)
    assert (node.stops, node.moments) == ([], [])
    node.pass_time(0.1)  # 30 s from the later exception on
    assert node.stops == [(15, 0.0)]
    assert node.lines[-1] == "threads and exit handlers of 2 workers are cut short: the time is over"


def test_handlers_that_end_in_time_end_the_wait():
    node = Node(grace_s=30.0)
    node.alive, node.raised_s = frozenset({0}), {0: 95.0}
    node.ladder.stop(LAST, 0)
    node.pass_time(5.0)
    node.alive, node.raised_s = frozenset(), {}
    node.ladder.worker_ended()
    assert node.stops == [(15, 20.0)]  # for what the worker has left
    node.pass_time(60.0)
    assert len(node.stops) == 1
    assert [line for line in node.lines if "cut" in line] == []


@pytest.mark.parametrize(
    ("command", "raised_s"),
    [
        (LAST, {}),
        (LAST, {1: 99.0}),  # the other may wait for it in a collective
        (LAST, {0: 60.0, 1: 69.9}),  # they have had their time
        (replace(LAST, ends_run=False), {0: 99.0, 1: 99.0}),
    ],
)
def test_otherwise_the_stop_begins_at_once(command, raised_s):
    node = Node(grace_s=30.0)
    node.raised_s = raised_s
    node.ladder.stop(command, 0)
    assert node.stops == [(15, 30.0)]


def test_one_line_reports_what_is_waited_for_unless_it_takes_no_time():
    node = Node(grace_s=30.0)
    node.alive, node.raised_s = frozenset({0}), {0: 95.0}
    node.ladder.stop(LAST, 0)
    assert node.lines == []
    node.pass_time(NOTICE_S)
    text = "waiting for threads and exit handlers of 1 worker, at most 24 s (--shutdown-timeout)"
    assert node.lines == [text]
    quick = Node(grace_s=30.0)
    quick.raised_s = {0: 99.0, 1: 99.0}
    quick.ladder.stop(LAST, 0)
    quick.alive = frozenset()
    quick.ladder.worker_ended()
    quick.pass_time(NOTICE_S)
    assert quick.lines == []


def test_end_of_the_lease_and_a_second_signal_cut_the_wait_and_a_deadline_bounds_it():
    node = Node(grace_s=30.0)
    node.raised_s = {0: 99.0, 1: 99.0}
    node.ladder.stop(LAST, 0)
    node.ladder.shorten(4.0, at_once=False)
    node.pass_time(3.9)
    assert node.stops == []
    node.pass_time(0.1)
    assert node.stops == [(15, 0.0)]

    fenced = Node(grace_s=30.0)
    fenced.raised_s = {0: 99.0, 1: 99.0}
    fenced.ladder.stop(LAST, 0)
    fenced.ladder.shorten(1.5, at_once=True)
    assert fenced.stops == [(15, 1.5)]

    urged = Node(grace_s=30.0)
    urged.raised_s = {0: 99.0, 1: 99.0}
    urged.ladder.stop(LAST, 0)
    urged.ladder.announce_drain(2)
    assert urged.lines == ["SIGINT: stopping 2 workers, at most 29 s; a second signal kills"]
    urged.ladder.kill()
    assert (urged.killed, urged.stops) == (1, [])
