"""Whole runs in virtual time: whatever goes wrong, what must hold holds. SIMULATE_SEEDS=N runs more of them."""

import os
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from elastic_core.rendezvous.member import machine, protocol
from simulation.member import SimulatedMember
from simulation.scenario import (
    ALL_FAULTS,
    ARRIVAL,
    BLACKOUT,
    CRASH,
    DEPARTURE,
    DOOR,
    FAILURE,
    FAILURES,
    LEADER,
    MESSAGES,
    ORDER,
    PARTITION,
    POWER,
    REFUSAL,
    SPLIT,
    STARVED,
    STOPPED,
    STORE_DOWN,
    STORE_FULL,
    STORE_PAUSE,
    UNHEARD,
    Scenario,
)
from simulation.simulator import simulate

SEEDS = int(os.environ.get("SIMULATE_SEEDS", "120"))
SHARES = 4


def some(count):
    """Return seeds for a test of one kind of trouble: so many, or up to ten times as many with SIMULATE_SEEDS."""
    return range(count * max(120, min(SEEDS, 2000)) // 200)


@pytest.mark.timeout(0 if SEEDS > 4000 else 120)
@pytest.mark.parametrize("share", range(SHARES))
def test_fixed_seeds(share):
    for seed in range(share, SEEDS, SHARES):
        simulate(seed)


def test_quick_steps_are_those_of_all_rules(monkeypatch):
    quick_step, counted = machine._quick_step, Counter()

    def compared(state, events, now_s):
        quick = quick_step(state, events, now_s)
        if quick is not None and quick.reason == "watch":
            with monkeypatch.context() as patch:
                patch.setattr(machine, "_quick_step", lambda *_: None)
                full = machine.step(state, events, now_s=now_s)
            assert replace(full, state=replace(full.state, settled=True)) == quick
            counted["watch"] += 1
        return quick

    monkeypatch.setattr(machine, "_quick_step", compared)
    for seed in some(20):
        simulate(seed)
    assert counted["watch"] > 300


@st.composite
def scenarios(draw):
    nodes = draw(st.integers(2, 5))
    return Scenario(
        nodes=nodes,
        min_nodes=draw(st.integers(2, nodes)),
        max_nodes=draw(st.integers(nodes, 6)),
        ttl_s=draw(st.sampled_from((2.0, 5.0))),
        faults=draw(st.frozensets(st.sampled_from(sorted(ALL_FAULTS)), max_size=4)),
        count=draw(st.integers(0, 4)),
        fault_s=draw(st.sampled_from((5.0, 20.0))),
    )


@settings(max_examples=max(40, SEEDS // 10), deadline=None, derandomize="SIMULATE_SEEDS" not in os.environ)
@given(seed=st.integers(0, 2**32 - 1), scenario=scenarios())
def test_any_scenario(seed, scenario):
    simulate(seed, scenario)


@pytest.mark.parametrize("nodes", [1, 2, 5, 8])
def test_an_undisturbed_run_has_one_round_and_ends_well(nodes):
    report = simulate(nodes, Scenario(nodes=nodes, min_nodes=nodes, max_nodes=nodes, steady=True))
    assert (report.rounds, report.restarts, report.changes) == (1, 0, 0)
    assert report.outcomes == {"done": nodes}


@pytest.mark.parametrize("ttl_s", [2.0, 5.0])
@pytest.mark.parametrize("fault", [STORE_PAUSE, STORE_DOWN])
def test_a_store_that_is_away_ends_no_round(fault, ttl_s):
    for seed in some(13):
        scenario = Scenario(
            nodes=2 + seed % 4, faults=frozenset({fault}), count=2, steady=True, ttl_s=ttl_s, latency_s=ttl_s / 500
        )
        assert simulate(seed, scenario).rounds == 1


@pytest.mark.parametrize("ttl_s", [2.0, 5.0])
def test_newcomers_who_wait_for_the_store_begin_no_second_run(ttl_s):
    """Every lease has ended when it is back, and they reach it first: they wait for the members."""
    for seed in some(20):
        nodes = 2 + seed % 4
        scenario = Scenario(
            nodes=nodes, max_nodes=nodes, faults=frozenset({DOOR}), count=2, steady=True, ttl_s=ttl_s, last_call_s=0.1
        )
        assert simulate(seed, scenario).rounds == 1


def test_a_run_without_a_live_node_is_begun_anew_with_all_its_restarts():
    reports = [simulate(seed, several(seed, {BLACKOUT, FAILURE})) for seed in some(30)]
    assert min(report.restarts for report in reports) == 0
    assert len({report.outcomes["crashed"] for report in reports if "crashed" in report.outcomes}) > 1


@pytest.mark.parametrize("min_nodes", [1, 2])
def test_of_hosts_that_are_parted_one_round_trains(min_nodes):
    """In groups, some of which reach the store, that heal one after another; with spares and without."""
    for seed in some(15):
        nodes = 2 + seed % 4
        given = {"nodes": nodes, "min_nodes": min_nodes, "max_nodes": max(2, nodes - seed % 3), "count": 5}
        simulate(seed, Scenario(faults=frozenset({SPLIT}), noise=0.1, **given))
        simulate(seed, Scenario(faults=frozenset({SPLIT, CRASH, ARRIVAL, MESSAGES}), noise=0.1, **given))


@pytest.mark.parametrize("grace_s", [1.0, 10.0])
def test_no_round_begins_beyond_the_grace_while_a_member_of_the_last_answers_that_it_runs(grace_s):
    for seed in some(15):
        simulate(seed, several(seed, {UNHEARD, ARRIVAL}, outage_grace_s=grace_s))


def test_two_rounds_train_only_where_partitions_outlast_the_grace(capsys):
    """Nothing can hold then, as long as datagrams do not pass either: it is counted."""
    counts = {}
    for name, grace_s, split_s in (("shorter", 60.0, 30.0), ("longer", 4.0, 40.0)):
        given = {"min_nodes": 1, "max_nodes": 2, "count": 3, "outage_grace_s": grace_s, "split_s": split_s}
        scenarios = [Scenario(nodes=3 + seed % 2, faults=frozenset({SPLIT}), **given) for seed in some(20)]
        counts[name] = sum(simulate(seed, scenario).twofold for seed, scenario in enumerate(scenarios))
    if "SIMULATE_SEEDS" in os.environ:
        with capsys.disabled():
            runs = len(some(20))
            print(f"\nrounds that began while another trained, in {runs} runs each, by partitions: {counts}")
    assert counts["shorter"] == 0
    assert counts["longer"] > 0


@pytest.mark.parametrize("ttl_s", [2.0, 5.0])
def test_runs_settle_on_hosts_that_starting_workers_take_all_processors_of(ttl_s):
    """Agents there stall together for up to two leases, whenever workers start: the lease grows until they do not."""
    for seed in some(15):
        nodes = 2 + seed % 4
        given = {"nodes": nodes, "min_nodes": 1 + seed % nodes, "max_nodes": nodes, "count": 1, "ttl_s": ttl_s}
        report = simulate(seed, Scenario(faults=frozenset({STARVED}), calm_s=3.0, fault_s=0.1, **given))
        assert report.rounds <= 12, report


def several(seed, faults, **more):
    return Scenario(nodes=2 + seed % 4, min_nodes=2, max_nodes=6, faults=frozenset(faults), count=4, **more)


def test_nodes_that_refuse_cost_the_others_no_restart_and_come_back():
    """Refused at either moment, opened again, dead meanwhile, in a run that may need them."""
    for seed in some(30):
        scenario = several(seed, {REFUSAL, ARRIVAL})
        report = simulate(seed, scenario)
        assert set(report.outcomes) <= {"done", "RendezvousClosedError", "crashed"}
    for seed in some(20):
        simulate(seed, several(seed, {REFUSAL, FAILURES, LEADER, MESSAGES, STORE_DOWN}))


@pytest.mark.parametrize(
    "kinds",
    [
        {ARRIVAL},
        {DEPARTURE},
        {ARRIVAL, DEPARTURE, CRASH, POWER},
        {ARRIVAL, DEPARTURE, STORE_PAUSE, STORE_DOWN, MESSAGES},
    ],
)
def test_ranks_of_all_nodes_save_before_the_same_step(kinds):
    """Also those of scripts that ask before every third step, with members that die, and a store that pauses."""
    assert sum(simulate(seed, several(seed, kinds)).saved for seed in some(80)) > len(some(80)) / 2


def test_nodes_end_by_the_word_of_somebody_outside_and_a_stopped_run_does():
    for seed in some(20):
        simulate(seed, several(seed, {ORDER, ARRIVAL, STORE_PAUSE, MESSAGES}))
        ended = simulate(seed, several(seed, {STOPPED, FAILURE, CRASH})).outcomes
        assert ended.get("done", 0) == 0 or "departed" not in ended


def test_of_failures_on_several_nodes_the_first_is_blamed():
    assert sum(simulate(seed, several(seed, {FAILURES})).decided for seed in some(30)) > len(some(30)) * 5 / 3


def test_a_leader_that_dies_between_stop_and_decision_changes_nothing():
    assert sum(simulate(seed, several(seed, {FAILURES, LEADER, CRASH})).decided for seed in some(30)) > len(some(30))


@pytest.mark.parametrize("grace_s", [1.0, 120.0])
def test_a_store_in_trouble_while_a_decision_is_awaited_holds_nobody_up_for_ever(grace_s):
    for seed in some(20):
        simulate(seed, several(seed, {FAILURES, STORE_DOWN, STORE_PAUSE, MESSAGES}, outage_grace_s=grace_s))


@pytest.mark.parametrize("grace_s", [1.0, 120.0])
@pytest.mark.parametrize("others", [{FAILURES, STORE_DOWN}, {ARRIVAL, DEPARTURE, CRASH}, {DOOR, PARTITION, FAILURE}])
def test_a_store_that_takes_no_writes_for_a_while_holds_nobody_up_for_ever(grace_s, others):
    for seed in some(2):
        simulate(seed, several(seed, {STORE_FULL, *others}, outage_grace_s=grace_s))


def test_a_failure_that_ends_the_run_ends_it_for_all():
    for seed in some(20):
        assert set(simulate(seed, several(seed, {FAILURES}, fatal=1.0)).outcomes) == {"failed"}


def test_the_same_seed_tells_the_same_story():
    assert simulate(7) == simulate(7)


def test_operations_of_a_node_do_not_grow_with_the_run():
    """Until the round stands: what the busiest node asked for, and what most did."""
    most = {}
    for nodes in (8, 32, 128, 256):
        scenario = Scenario(nodes=nodes, min_nodes=nodes, max_nodes=nodes, calm_s=1.5, forming_only=True)
        counts = sorted(simulate(1, scenario).forming.values())
        most[nodes] = (counts[len(counts) // 2], counts[-1])
    assert max(typical for typical, _ in most.values()) <= 12, most
    assert max(busiest for _, busiest in most.values()) <= 40, most


# --- questions to all nodes


@pytest.mark.parametrize("nodes", [2, 5, 8])
def test_each_question_has_one_conclusion_for_all_nodes_if_the_hooks_do_their_part(nodes):
    for seed in some(4):
        scenario = Scenario(nodes=nodes, min_nodes=nodes, max_nodes=nodes, steady=True, questions=3, silent_hooks=0.0)
        report = simulate(seed, replace(scenario, calm_s=60.0))
        assert report.asked == report.concluded > 1
        assert report.rounds == 1


def test_hooks_that_neither_answer_nor_conclude_block_no_later_question():
    reports = [simulate(seed, several(seed, (), questions=4, calm_s=120.0, silent_hooks=0.5)) for seed in some(8)]
    assert all(report.asked > 1 for report in reports)
    assert 0 < sum(report.concluded for report in reports) < sum(report.asked for report in reports)


@pytest.mark.parametrize(
    "faults",
    [{CRASH, POWER, LEADER}, {FAILURE, ARRIVAL, DEPARTURE}, {STORE_DOWN, STORE_PAUSE, MESSAGES}, {STOPPED, PARTITION}],
    ids=lambda faults: "-".join(sorted(faults)),
)
def test_answers_and_conclusions_are_of_their_question_whatever_goes_wrong_meanwhile(faults):
    reports = [simulate(seed, several(seed, faults, questions=4)) for seed in some(20)]
    assert sum(report.concluded for report in reports) > 0


def test_only_the_leader_reads_the_answers(monkeypatch):
    readers, request = set(), SimulatedMember._request

    def noted(member, operation):
        control, lease = member.state.seen.control, member.state.lease
        question = None if control is None else control.question
        if isinstance(operation, protocol.ReadMembers) and question is not None and question.conclusion is None:
            readers.add(lease.ahead)
        request(member, operation)

    monkeypatch.setattr(SimulatedMember, "_request", noted)
    scenario = Scenario(nodes=8, min_nodes=8, max_nodes=8, steady=True, questions=2, silent_hooks=0.0, calm_s=60.0)
    report = simulate(3, scenario)
    assert report.asked == report.concluded > 1
    assert readers == {0}


def test_a_deputy_concludes_if_the_hook_of_the_leader_does_not(monkeypatch):
    gathered, gather = [], SimulatedMember._gather

    def noted(member, event):
        gathered.append((event.serial, member.state.lease.ahead))
        if member.state.lease.ahead:
            gather(member, event)

    monkeypatch.setattr(SimulatedMember, "_gather", noted)
    scenario = Scenario(nodes=5, min_nodes=5, max_nodes=5, steady=True, questions=1, silent_hooks=0.0, calm_s=120.0)
    report = simulate(3, scenario)
    assert report.asked == report.concluded > 0
    assert {ahead for _, ahead in gathered[::2]} == {0}
    assert {ahead for _, ahead in gathered[1::2]} == {1}
