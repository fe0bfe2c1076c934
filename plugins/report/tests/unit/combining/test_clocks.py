"""How clocks are aligned."""

import pytest

from elastic_report.combining.clocks import align
from elastic_report.ledger.states import LedgerState as S
from run_kit import EPOCH_NS, Node

NAMES = ("node-a", "node-b")


def of_two_rounds(name: str, rank: int, *, gap_s: float = 100.0, names: tuple[str, ...] = NAMES, **more: float) -> Node:
    node = Node(name, **more).spend(S.RENDEZVOUS, 10).join(0, rank, names)  # type: ignore[arg-type]  # any of its fields
    return (
        node.spend(S.PRODUCTIVE, gap_s)
        .over("membership")
        .join(1, rank, names)
        .spend(S.PRODUCTIVE, 50)
        .over("end")
        .end()
    )


@pytest.mark.parametrize(
    ("ahead_s", "corrected_s"), [(0.0, 0.0), (1.5, 0.0), (2.5, 2.5), (3600.0, 3600.0), (-86_400.0, -86_400.0)]
)
def test_a_clock_is_corrected_if_it_is_far_off(ahead_s: float, corrected_s: float) -> None:
    found = align([of_two_rounds("node-a", 0).found(), of_two_rounds("node-b", 1, ahead_s=ahead_s).found()])
    assert found.offsets_s == (0.0, pytest.approx(corrected_s))
    expected_ns = EPOCH_NS - 1000 * 10**9 + round((ahead_s - corrected_s) * 1e9)
    assert found.zeros_ns[1] == pytest.approx(expected_ns, abs=1000)


def test_the_sentence_names_the_nodes_that_were_corrected() -> None:
    found = align([of_two_rounds("node-a", 0).found(), of_two_rounds("node-b", 1, ahead_s=3600).found()])
    assert found.sentence == (
        "Clocks were aligned to that of node-a at rounds that nodes have in common: node-b was 1 h ahead."
    )


def test_nodes_of_one_host_share_a_clock() -> None:
    agents = [of_two_rounds(name, rank, names=("a", "b")) for rank, name in enumerate(("a", "b"))]
    for agent in agents:
        agent.host = "vm"
    found = align([agent.found() for agent in agents])
    assert found.sentence == "All times are of the clock of vm."


def test_rounds_that_formed_late_do_not_move_a_clock() -> None:
    # One node noticed some rounds 30 s late: its clock is right.
    names = ("node-a", "node-b")
    a, b = Node("node-a").spend(S.RENDEZVOUS, 10), Node("node-b").spend(S.RENDEZVOUS, 10)
    for index in range(8):
        a.join(index, 0, names).spend(S.PRODUCTIVE, 1000).over("membership")
        b.join(index, 1, names, late_s=30.0 if index % 3 == 0 else 0.1).spend(S.PRODUCTIVE, 1000).over("membership")
    assert align([a.found(), b.found()]).offsets_s == (0.0, 0.0)


def test_attempts_with_equal_round_numbers_are_not_mixed_up() -> None:
    # Both attempts have rounds 0 and 1; node-b's clock is 10 minutes ahead, which is about the time between attempts.
    agents = []
    for attempt in range(3):
        for rank, name in enumerate(NAMES):
            node = of_two_rounds(name, rank, started_s=620.0 * attempt, gap_s=100.0 + attempt, ahead_s=600.0 * rank)
            agents.append(node.found())
    assert align(agents).offsets_s == tuple(pytest.approx(600.0 * (number % 2)) for number in range(6))


def test_a_node_is_aligned_through_one_that_shares_its_rounds() -> None:
    names = ("a", "b"), ("b", "c")
    a = Node("a").join(0, 0, names[0]).spend(S.PRODUCTIVE, 100).over("membership", left=("a",)).end("stopped")
    b = Node("b", ahead_s=500).join(0, 1, names[0]).spend(S.PRODUCTIVE, 100).over("membership", left=("a",))
    b.join(1, 0, names[1]).spend(S.PRODUCTIVE, 70).over("membership").join(2, 0, names[1]).spend(S.PRODUCTIVE, 10).end()
    c = Node("c", started_s=100, ahead_s=-700).join(1, 1, names[1]).spend(S.PRODUCTIVE, 80).end()
    found = align([a.found(), b.found(), c.found()])
    # The clock of b is the reference: it has the most rounds.
    assert found.offsets_s == (pytest.approx(-500), 0.0, pytest.approx(-1200))


def test_the_clock_of_most_nodes_counts() -> None:
    names = ("a", "b", "c", "d")
    agents = [of_two_rounds(name, rank, names=names, ahead_s=0 if rank else -3600) for rank, name in enumerate(names)]
    found = align([agent.found() for agent in agents])
    assert found.offsets_s == (pytest.approx(-3600), 0.0, 0.0, 0.0)
    assert found.sentence == ("Clocks were aligned to that of c at rounds that nodes have in common: a was 1 h behind.")


def test_a_node_that_shares_no_round_keeps_its_clock() -> None:
    spare = Node("spare", ahead_s=5000).spend(S.EXCLUDED, 160).end("stopped")
    found = align([of_two_rounds("node-a", 0).found(), of_two_rounds("node-b", 1).found(), spare.found()])
    assert found.offsets_s[2] == 0.0
    assert found.sentence.endswith("spare shares no round with node-a: its own clock counts.")


def test_a_wall_clock_that_jumps_between_two_agents_of_one_boot_is_undone() -> None:
    first = of_two_rounds("node-a", 0, names=("node-a",), ahead_s=3600)
    second = of_two_rounds("node-a", 0, names=("node-a",), started_s=200)
    first.boot_id = second.boot_id = "boot-1"
    zeros = align([first.found(), second.found()]).zeros_ns
    assert zeros == (EPOCH_NS - 1000 * 10**9,) * 2  # the last setting counts


def test_agents_of_one_boot_and_one_node_id_that_ran_at_the_same_time_are_not_moved() -> None:
    first = of_two_rounds("node-a", 0, names=("node-a",))
    second = of_two_rounds("node-a", 0, names=("node-a",), started_s=50)
    first.boot_id = second.boot_id = "boot-1"
    found = align([first.found(), second.found()])
    assert found.zeros_ns[0] == found.zeros_ns[1]
    assert found.sentence == "All times are of the clock of node-a."


def test_without_the_boot_an_agent_comes_after_the_one_before_it() -> None:
    first = of_two_rounds("node-a", 0, names=("node-a",), ahead_s=100)
    second = of_two_rounds("node-a", 0, names=("node-a",), started_s=200, ahead_s=0)
    found = align([first.found(), second.found()])
    began = [found.zeros_ns[0] + 1000 * 10**9, found.zeros_ns[1] + 1200 * 10**9]
    assert began[1] == began[0] + 160 * 10**9
    assert "The clock of node-a was set back between two of its agents" in found.sentence


def test_without_ledgers_there_is_nothing_to_compare() -> None:
    found = align([of_two_rounds("node-a", 0).found(with_ledger=False)])
    assert found.sentence == "No node has a ledger, so that no clocks were compared."
    assert align([]).zeros_ns == ()
