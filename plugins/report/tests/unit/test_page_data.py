"""The page without a browser: its data can be decoded to the report's content, texts are safe, sizes are bounded."""

import hashlib
import random
import re
from base64 import b64encode
from importlib import resources

import msgspec
import pytest

import report_samples
from elastic_core.failure.incident import IncidentHang, IncidentHungRank
from elastic_report.ledger.states import ORDER, LedgerState
from elastic_report.model import LaneSpan, Ratio, TimelineEvent, WorkerBar
from elastic_report.page import content, lanes, render, texts
from elastic_report.page.picture import PATTERNS, ledger_bar, printed_timeline, state_class

DIGITS = {sign: at for at, sign in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")}


class Reader:
    """Reads numbers as the page's script does, from the format's description alone."""

    def __init__(self, text):
        self.text, self.at = text, 0

    def sign(self):
        self.at += 1
        return self.text[self.at - 1]

    def number(self):
        value, scale = 0, 1
        while True:
            digit = DIGITS[self.sign()]
            value += digit % 32 * scale
            scale *= 32
            if digit < 32:
                return value

    def signed(self):
        value = self.number()
        return -(value + 1) // 2 if value % 2 else value // 2


def spans_of(data, part):
    read, at, now, why = Reader(part["spans"]), part["begin"], -1, 0
    while read.at < len(read.text):
        sign = read.sign()
        if sign == "!":
            now += read.signed()
        elif sign == "~":
            why = read.number()
        else:
            end = at + read.number()
            if sign != ".":
                yield data["states"][ord(sign) - ord("a")], at, end, now if now >= 0 else None, data["reasons"][why]
            at, why = end, 0


def workers_of(part):
    read = Reader(part["workers"])
    now = {"round": -1, "local": -1, "rank": -1, "begin": 0, "length": 0, "ending": 0, "first": 0, "final": 0}
    lead, leads, steps, marks = now, False, False, []
    while read.at < len(read.text):
        if read.text[read.at] == "!":
            read.at += 1
            now = now | {"round": now["round"] + read.signed(), "local": lead["local"], "rank": lead["rank"]}
            leads = True
            continue
        if read.text[read.at] == "*":
            read.at += 1
            for _ in range(read.number()):
                now = now | {"local": now["local"] + 1, "rank": now["rank"] + 1}
                yield now, steps, marks
            continue
        flags = DIGITS[read.sign()]
        now = now | {"begin": now["begin"] + read.signed()}
        now["length"] += read.signed()
        now["local"] += read.signed() if flags & 1 else 1
        now["rank"] += read.signed() if flags & 2 else 1
        if flags & 4:
            now["ending"] = read.number()
        steps = bool(flags & 8)
        if steps:
            now["first"] += read.signed()
            now["final"] += read.signed()
        at, marks = now["begin"], []
        for _ in range(read.number() if flags & 16 else 0):
            kind, begin = read.number(), at + read.signed()
            at = begin + read.number()
            marks.append((kind, begin, at))
        if leads:
            lead, leads = {"local": now["local"] - 1, "rank": now["rank"] - 1}, False
        yield now, steps, marks


def encoded(report):
    return next(lanes.timeline_data(report))


@pytest.mark.parametrize("seed", range(20))
def test_spans_and_workers_can_be_decoded_to_what_the_report_has(seed):
    drawn = random.Random(seed)
    lane = report_samples.Lane("n0", at_s=drawn.random() * 9)
    round_ = None
    for _ in range(200):
        if drawn.random() < 0.1:
            lane.at_s += drawn.choice([0.5, 70_000.0])  # a gap
        round_ = drawn.choice([round_, drawn.randrange(500)])
        lane.add(
            drawn.choice(ORDER), drawn.choice([0.001, 0.5, 31.0, 5000.0]), round_, drawn.choice(["", "why", "é <b>"])
        )
    for index in sorted(drawn.sample(range(300), 40)):
        base, begin = drawn.randrange(5000), drawn.random() * 1e5
        for k in sorted(drawn.sample(range(16), 8)):
            code = drawn.choice([None, 0, 1, -9, -15])
            marks = tuple((drawn.choice(["save", "restore"]), begin + at, begin + at + 2.5) for at in (10, 20))
            lane.workers.append(
                WorkerBar(
                    local_rank=k,
                    global_rank=base + k,
                    round=index,
                    begin_s=begin,
                    end_s=begin + drawn.choice([50, 50, 80.25]),
                    code=code,
                    stopped=drawn.random() < 0.5,
                    marks=marks if drawn.random() < 0.5 else (),
                    first_step=index if k % 2 else None,
                    last_step=index + 5 if k % 2 else None,
                )
            )
    node = lane.done()
    data, left_out = encoded(report_samples.replaced(report_samples.small(), nodes=(node,), events=()))
    part, tick = data["nodes"][0]["parts"][0], data["tick"]
    last_round, expected = None, []
    for span in node.spans:
        last_round = span.round if span.round is not None else last_round
        if round(span.end_s / tick) > round(span.begin_s / tick):
            expected.append((str(span.state), last_round, span.reason))
    decoded = list(spans_of(data, part))
    assert [(state, index, why) for state, _, _, index, why in decoded] == expected
    kept = [span for span in node.spans if round(span.end_s / tick) > round(span.begin_s / tick)]
    for span, (_, begin, end, _, _) in zip(kept, decoded, strict=True):
        assert begin * tick == pytest.approx(span.begin_s, abs=2 * tick)
        assert end * tick == pytest.approx(span.end_s, abs=2 * tick)
    bars = list(workers_of(part))
    assert len(bars) == len(node.workers)
    for bar, (now, steps, marks) in zip(node.workers, bars, strict=True):
        assert (now["round"], now["local"], now["rank"]) == (bar.round, bar.local_rank, bar.global_rank)
        assert now["begin"] * tick == pytest.approx(bar.begin_s, abs=tick)
        assert (now["begin"] + now["length"]) * tick == pytest.approx(bar.end_s, abs=tick)
        assert now["ending"] % 2 == bar.stopped
        value = now["ending"] // 2 - 1
        assert bar.code == (None if value < 0 else -(value + 1) // 2 if value % 2 else value // 2)
        assert (now["first"], now["final"]) == (bar.first_step, bar.last_step) if steps else bar.first_step is None
        assert [kind for kind, _, _ in marks] == [kind == "restore" for kind, _, _ in bar.marks]
        for (_, begin, end), (_, begin_s, end_s) in zip(marks, bar.marks, strict=True):
            assert (begin * tick, end * tick) == pytest.approx((begin_s, end_s), abs=tick)
    assert left_out == ()


def test_the_overview_has_each_second_of_each_node():
    report = report_samples.medium()
    data, _ = encoded(report)
    total = sum(map(sum, data["overview"]))
    for state, shares in zip(ORDER, data["overview"], strict=True):
        assert sum(shares) / total == pytest.approx(
            report.account.states.get(state, 0) / report.account.present_s, abs=0.003
        )


def test_much_more_than_fits_is_left_out_and_the_page_lists_it():
    small = report_samples.small()
    events = tuple(
        TimelineEvent(at_s=n / 1000, name="save" if n % 20 else "lost", text=f"event {n} {'x' * 50}", node="laptop")
        for n in range(60_000)
    )
    incidents = tuple(report_samples.incident_row(n, n / 100, traceback="line\n" * 4000) for n in range(1, 401))
    html = render(report_samples.replaced(small, events=events, incidents=incidents))
    assert len(html.encode()) < 8_000_000
    data = msgspec.json.decode(re.search(r'id="data">(.*?)</script>', html)[1])
    assert len(data["events"]) == 3000, "all saves are left out"
    assert sum(data["names"][event[1]] == "lost" for event in data["events"]) == 3000
    page = content.page(report_samples.replaced(small, events=events, incidents=incidents), ())
    assert [view.row.number for view in page.incidents if view.full] == [*range(1, 51), *range(351, 401)]
    missing = re.search(r'<section id="missing".*?</section>', html, re.DOTALL)[0]
    for expected in ("59\u202f000 events", "57\u202f000 events", "300 incidents in full", "--json"):
        assert expected in missing
    assert "characters left out]" in html


def test_a_report_without_anything_is_a_page():
    small = report_samples.small()
    bare = report_samples.replaced(
        small,
        nodes=(),
        rounds=(),
        events=(),
        incidents=(),
        options=(),
        versions={},
        clocks="",
        account=report_samples.account(()),
        run=report_samples.replaced(small.run, sentence="", evidence=(), state="unknown", ended_s=None, exit_code=None),
        missing=("No record of the run was found.",),
    )
    html = render(bare)
    assert "The end of the run was not recorded." in html
    assert "No record of the run was found." in html
    assert "No node recorded anything." in html


def test_a_live_report_shows_the_state_so_far():
    small = report_samples.small()
    run = report_samples.replaced(
        small.run, state="running", ended_s=None, exit_code=None, sentence="The run is in round 0, step 310"
    )
    html = render(report_samples.replaced(small, live=True, run=run))
    assert "state of <time" in html
    assert "after 1 min" in html
    assert "The run is in round 0, step 310" in html


def test_texts_are_escaped_and_invisible_characters_are_shown():
    html = render(report_samples.hostile())
    assert html.count("<script") == 3
    assert html.count("</script>") == 3
    assert "<img" not in html
    assert [sign for sign in html if not sign.isprintable() and sign not in "\n\t"] == []
    html.encode()


def test_the_policy_allows_the_style_and_the_scripts_of_the_page_alone():
    html = render(report_samples.small())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1].replace("&#39;", "'")
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    assert parts["default-src"] == "'none'"
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    for name, blocks in (("script-src", scripts), ("style-src", styles)):
        digests = [b64encode(hashlib.sha256(block.encode()).digest()).decode() for block in blocks]
        assert parts[name] == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert " style=" not in html
    assert re.search(r"\son[a-z]+=\"", html) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é\n\tx", "plain é\n\tx"),
        ("\x1b[0m\x00", "\\x1b[0m\\x00"),
        ("a\u202eb", "a\\u202eb"),
        ("\udcff", "\\udcff"),
        ("a\xa0b", "a b"),
    ],
)
def test_invisible_characters_become_escapes(text, shown):
    assert texts.visible(text) == shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "not known"), (Ratio(low=0.5, high=0.5), "50.0 %"), (Ratio(low=0.612, high=0.669), "61.2 % to 66.9 %")],
)
def test_a_ratio_is_one_percentage_or_a_range(value, text):
    assert texts.ratio(value) == text


def test_short_texts_for_users():
    assert texts.durations(10, 10.4) == "10 s"
    assert texts.durations(60, 3600) == "1 min to 1 h"
    assert texts.share(0.0001, 100) == "< 0.1 %"
    assert texts.share(0, 0) == "0.0 %"
    assert texts.count(1, "node") == "1 node"
    assert texts.some([f"n{n}" for n in range(10)]) == "n0, n1, n2, n3, n4, n5, n6, n7 and 2 more"
    assert texts.duration(0) == "0 s"
    assert "unknown time" in texts.moment(10**25)


def test_each_state_has_a_colour_a_pattern_and_a_meaning():
    style = resources.files("elastic_report.page").joinpath("style.css").read_text()
    for state in LedgerState:
        assert f"--s-{state_class(state)}:" in style
        assert f".s-{state_class(state)} " in style
        assert content.MEANINGS[state]
    assert set(PATTERNS) == set(LedgerState)
    plain = [state for state, lines in PATTERNS.items() if not lines]
    assert plain == [LedgerState.DECIDING, LedgerState.PRODUCTIVE], "a light and a dark colour"


def test_the_bar_begins_with_productive_time_and_is_whole():
    pieces = ledger_bar(report_samples.medium().account)
    assert pieces[0].state == "productive"
    assert sum(float(piece.width.rstrip("%")) for piece in pieces) == pytest.approx(100, abs=0.05)


def test_the_printed_timeline_shows_the_nodes_of_incidents_of_a_large_run():
    report = report_samples.large(60, 3, 1)
    picture = printed_timeline(report)
    assert len(picture.lanes) == 40
    assert picture.left_out == 20
    assert {row.incident.node_id for row in report.incidents} <= {lane.label for lane in picture.lanes}


def test_spans_that_are_too_short_belong_to_the_one_before():
    spans = [
        LaneSpan(state=state, begin_s=at, end_s=at + size)
        for state, at, size in (("productive", 0, 5), ("saving", 5, 0.1), ("productive", 5.1, 5))
    ]
    spans = [msgspec.structs.replace(span, state=LedgerState(span.state)) for span in spans]
    (one,) = lanes._long_enough(spans, 1.0)
    assert (one.state, one.begin_s, one.end_s) == (LedgerState.PRODUCTIVE, 0, 10.1)


def test_a_hang_shows_what_the_evidence_says_and_where_the_files_are():
    small = report_samples.small()
    row = small.incidents[0]
    said = "rank 17 on node-b has not entered all_reduce #4711 of group dp; 63 ranks wait for it"
    rank = IncidentHungRank(global_rank=17, blamed=True, step=90, quiet_s=61.0, place="train.py:12")
    hang = IncidentHang(
        ranks=(rank,), step=91, stacks="/r/hang/round_0_1", attribution={"cause": "missing", "details": [f"{said}."]},
        evidence=("recorder", "stacks"), recorder="/r/hang/round_0_1/recorder",
    )  # fmt: skip
    row = msgspec.structs.replace(row, incident=msgspec.structs.replace(row.incident, hang=hang))
    (view,) = content.page(report_samples.replaced(small, incidents=(row,)), ()).incidents
    assert view.hang == (
        f"{said}.",
        "Evidence: recorder, stacks.",
        "The highest step of any rank was 91.",
        "rank 17: blamed, step 90, quiet for 1 min 1 s, at train.py:12",
        "stacks of all threads: /r/hang/round_0_1",
        "files of torch's flight recorder, for torchfrtrace: /r/hang/round_0_1/recorder",
    )
