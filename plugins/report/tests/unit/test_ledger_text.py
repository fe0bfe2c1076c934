"""The text of a ledger: bounded, compacted without a change of its totals, and read back whatever it has become."""

import random

import pytest

from elastic_core.api import ConfigError
from elastic_report.ledger.compacting import LedgerText, compacted
from elastic_report.ledger.document import (
    MOST_BYTES,
    Alive,
    Begin,
    Bound,
    End,
    Hung,
    Note,
    RoundLine,
    RoundOver,
    Span,
    Sum,
    WorkerLine,
)
from elastic_report.ledger.reading import MOST_READ_BYTES, decode_ledger, read_ledger
from elastic_report.ledger.states import LedgerState as S
from elastic_report.ledger.totals import Tally, totals_of
from ledger_kit import STARTED_NS, STARTED_S, Node

BEGIN = Begin(
    run_id="bert-7", node_id="n0", host="h", incarnation="x", pid=1, started_s=STARTED_S, started_ns=STARTED_NS
)


def totals(lines):
    tally = Tally()
    for line in lines:
        tally.add(line)
    return tally.totals()


def same(one, other):
    assert one.states.keys() == other.states.keys()
    for state, seconds in one.states.items():
        assert other.states[state] == pytest.approx(seconds, abs=1e-6)
    assert (one.bound_s, one.start_s, one.rounds) == pytest.approx((other.bound_s, other.start_s, other.rounds))
    assert one.goodput == pytest.approx(other.goodput)
    assert one.goodput_nvidia == pytest.approx(other.goodput_nvidia)


def test_five_thousand_rounds_need_two_megabytes_and_keep_all_totals():
    node = Node(workers=8)
    text = LedgerText(BEGIN)
    largest, everything = 0, []
    for _ in range(5000):
        node.begin(rendezvous_s=2.0)
        node.wait(60.0)
        node.tick()
        node.fail()
        text.add(node.lines)
        everything += node.lines
        node.lines = []
        largest = max(largest, len(text.content))
    node.close("failed", 1)
    text.add(node.lines)
    everything += node.lines
    assert largest <= MOST_BYTES
    assert text.edition > 1
    ledger = decode_ledger(bytes(text.content), where="here")
    assert ledger.torn == 0
    assert ledger.end == End(at_s=node.now_s, outcome="failed", exit_code=1, reason="failed")
    assert isinstance(ledger.lines[0], Sum)
    same(totals(everything), totals_of(ledger))
    assert totals_of(ledger).present_s == pytest.approx(node.now_s - STARTED_S, abs=0.01)
    assert len(node.accounting._productive) <= 1
    assert not node.accounting._queue
    assert sum(isinstance(line, WorkerLine) for line in ledger.lines) > 1000


@pytest.mark.parametrize("seed", range(30))
def test_a_sum_keeps_all_totals_wherever_it_cuts(seed):
    dice = random.Random(seed)
    lines, at_s, number = [], STARTED_S, 0
    for _ in range(200):
        match dice.choice(["span", "span", "span", "hung", "bound", "round", "over", "note", "alive"]):
            case "span":
                took_s = dice.uniform(0.01, 50)
                lines.append(Span(state=dice.choice(list(S)[2:]), begin_s=at_s, end_s=at_s + took_s, round=number))
                at_s += took_s
            case "hung" if at_s > STARTED_S:
                lines.append(Hung(begin_s=max(STARTED_S, at_s - dice.uniform(0, 200)), end_s=at_s))
            case "bound":
                lines.append(Bound(at_s=at_s, seconds=dice.uniform(0, 3)))
            case "round":
                number += 1
                lines.append(RoundLine(at_s=at_s, index=number, token=1, node_rank=0, node_count=1, world_size=1,
                                       base_rank=0, local_world_size=1))  # fmt: skip
            case "over":
                lines.append(RoundOver(at_s=at_s, index=number, by="failure"))
            case "alive":
                lines.append(Alive(at_s=at_s, state=S.PRODUCTIVE, round=number))
            case _:
                lines.append(Note(at_s=at_s, name="x", text="y" * dice.randrange(50)))
    before = totals(lines)
    for share in (0.7, 0.5, 0.2, 0.0):
        shorter = compacted(lines, most_bytes=int(15000 * share))
        assert len(shorter) <= len(lines)
        same(before, totals(shorter))
        same(before, totals(compacted(shorter, most_bytes=int(7000 * share))))


def test_the_line_of_a_round_that_is_not_over_stays():
    node = Node()
    node.begin()
    node.wait(700)
    for _ in range(2000):
        node.wait(60)
        node.tick()
    shorter = compacted(node.lines, most_bytes=1000)
    assert [type(line).__name__ for line in shorter[:2]] == ["Sum", "RoundLine"]
    same(totals(node.lines), totals(shorter))


def test_a_file_without_an_end_ends_with_its_last_sign_of_life():
    node = Node()
    node.begin(rendezvous_s=5.0)
    node.wait(600)
    node.tick()
    node.wait(60)
    node.tick()
    text = LedgerText(BEGIN)
    text.add(node.lines)
    ledger = decode_ledger(bytes(text.content), where="here")
    assert ledger.end is None
    assert totals_of(ledger).states == {S.RENDEZVOUS: 5.0, S.PRODUCTIVE: 660.0}


def test_the_scheduler_s_time_is_in_both_ratios_neither_part():
    lines = [
        Span(state=S.RENDEZVOUS, begin_s=STARTED_S, end_s=STARTED_S + 10),
        Span(state=S.PRODUCTIVE, begin_s=STARTED_S + 10, end_s=STARTED_S + 100),
    ]
    text = LedgerText(BEGIN)
    text.add(lines)
    begin = decode_ledger(bytes(text.content), where="").begin
    text.set_begin(
        Begin(
            **{name: getattr(begin, name) for name in begin.__struct_fields__}
            | {"queued_ns": STARTED_NS - 3600 * 10**9}
        )
    )
    found = totals_of(decode_ledger(bytes(text.content), where=""))
    assert found.states == {S.QUEUED: 3600.0, S.RENDEZVOUS: 10.0, S.PRODUCTIVE: 90.0}
    assert found.present_s == 3700.0
    assert found.goodput == (0.9, 0.9)
    assert found.goodput_nvidia == (1.0, 1.0)
    assert text.edition == 1


def test_torn_lines_are_counted_and_kinds_of_later_versions_are_left_out(tmp_path):
    path = tmp_path / "ledger.jsonl"
    text = LedgerText(BEGIN)
    text.add([Span(state=S.PRODUCTIVE, begin_s=STARTED_S, end_s=STARTED_S + 1)])
    good = bytes(text.content)
    path.write_bytes(
        good + b'{"kind":"of_a_later_version","x":1}\n' + b'{"kind":"span","state":"other","begin_s":1,"end_s":2}\n'
        + b"\xff\xfe\n" + b"[" * 100_000 + b"\n" + b'{"kind":"end","at_s":3,"outcome":"failed","exit_code":1,"x":1}\n'
        + good[len(good) // 2 :][:20]
    )  # fmt: skip
    ledger = read_ledger(path)
    assert [type(line).__name__ for line in ledger.lines] == ["Span", "End"]
    assert ledger.torn == 4


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is not a ledger"),
        (b"[]\n", "is not a ledger"),
        (b'{"kind":"begin","schema_version":7}\n', "has schema version 7; expected 1"),
        (b'{"kind":"span","state":"hung","begin_s":1,"end_s":2}\n', "is not a ledger"),
        (b'{"kind":"begin"}\n', "is not a ledger"),
    ],
)
def test_another_file_is_one_clear_error(tmp_path, content, what):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=what):
        read_ledger(path)


def test_a_file_that_is_too_long_is_not_read(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with path.open("wb") as file:
        file.truncate(MOST_READ_BYTES + 1)
    with pytest.raises(OSError, match="too large"):
        read_ledger(path)
