"""The screen of `elastic status --watch`: its content, its layout at any size, its ledger bar and its events."""

import itertools
import json

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from elastic_ops.status.document import WorkerStatus
from elastic_ops.status.drawing import BAR, Screen
from elastic_ops.status.files import JOURNAL_FILE
from elastic_ops.status.ledger_bar import STATES, filled, ledger_bar, percent, shares
from elastic_ops.status.recent import MOST_OF_JOURNAL, Event, Journal, Observer, events_of_journal
from elastic_ops.status.screen import content_of_run, content_of_runs, rate_text, time_of_day
from elastic_ops.status.view import (
    AgentView,
    IncidentView,
    NodeView,
    PastRoundView,
    RoundView,
    RunView,
    StoreView,
    VerdictView,
    iso_time,
)

S = 10**9
NOW_NS = 1_800_000_000 * S
LEDGER = {
    "state": "productive",
    "since_ns": NOW_NS - 60 * S,
    "goodput": 0.6,
    "goodput_at_most": 0.8,
    "step": 471100,
    "steps_per_s": 12.345,
    "present_s": 1000.0,
    "productive_s": 800.0,
    "store_outage_s": 150.0,
    "hung_s": 50.0,
}
EVIL = "a[bold red]x[/bold red]\x1b[2J\x9b31m\nb\u202e\x07"
BOOM = IncidentView(
    failure_class="user exception",
    summary="ValueError: boom",
    node_id="n1",
    rank=9,
    round_index=2,
    decision="restart (max-restarts)",
    at=iso_time(NOW_NS - 60 * S),
)


def of_directory(**changes):
    fields = {
        "run_id": "bert-7",
        "source": "directory",
        "state": "running",
        "run_dir": "/nope",
        "agent": AgentView(pid=77, host="n0", alive=True, started=iso_time(NOW_NS - 1060 * S)),
        "round": RoundView(index=3, token=4, node_count=2, world_size=16),
        "restart_count": 1,
        "max_restarts": 3,
        "nodes": (NodeView(node_id="n0", state="running", first_rank=0, worker_count=8),),
        "workers": tuple(WorkerStatus(local_rank=n, global_rank=n, pid=100 + n, state="alive") for n in range(8)),
        "hooks": {"ledger": LEDGER},
    }
    return RunView(**(fields | changes))


def of_store(count, **changes):
    states = {500: "lost", 777: "silent"}
    nodes = tuple(
        NodeView(node_id=f"node-{n:04}@10.0.0.{n % 250}", address="10.0.0.1", state=states.get(n, "running"),
                 node_rank=n, first_rank=8 * n, worker_count=8)
        for n in range(count)
    )  # fmt: skip
    fields = {
        "run_id": "bert-7",
        "source": "store",
        "state": "running",
        "round": RoundView(index=3, token=4, node_count=count, world_size=8 * count),
        "nodes": nodes,
        "store": StoreView(where="redis at r:6379", reachable=True, latency_s=0.001),
    }
    return RunView(**(fields | changes))


def drawn(content, width=100, height=30, *, screen=None, colour=True, **more):
    screen = screen or Screen(colour=colour, **more)
    lines = screen.lines(content, width=width, height=height, now_ns=NOW_NS)
    assert len(lines) == height
    assert max(cell_len(line.plain) for line in lines) <= width
    return [line.plain.rstrip() for line in lines]


def shown(*runs, here=None, events=(), width=100, height=30, **more):
    content = content_of_run(runs, runs if here is None else here, events, now_ns=NOW_NS)
    return drawn(content, width, height, **more)


# --- layout


def test_a_run_of_one_node():
    lines = shown(of_directory(incident_count=1, last_incident=BOOM, restart_count=1))
    assert lines[0].split() == ["bert-7", "running", time_of_day(NOW_NS)]
    assert lines[1] == "round 3  2 nodes, 16 workers  started 17 min 40 s ago  1 restart of 3"
    assert lines[2] == "step 471,100  12.3 steps/s  goodput 62% to 81%  now productive"
    assert lines[3] == "agent 77 on n0  node n0: running"
    assert lines[5] == "█" * 100
    assert lines[6] == "█ productive 81%  █ store outage 14%  █ hung 5%"
    assert "8 workers: 8 alive" in lines
    assert "7     7           107  alive" in lines
    assert "last incident (of 1, 1 min ago): rank 9 on n1 failed: ValueError: boom (user exception, round 2);" in lines


SIZES = list(itertools.product((1, 8, 20, 40, 60, 80, 132, 250), (1, 2, 5, 8, 15, 23, 24, 50, 120)))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_every_size_is_filled_and_never_exceeded(width, height):
    events = [Event(at_ns=NOW_NS - n * S, text=f"round {n} formed " + "x" * 90) for n in range(40)]
    wide = of_directory(
        run_id="跑" * 40, incident_count=1, last_incident=BOOM, hooks={"ledger": LEDGER, "gate": {"t": 1}}
    )
    for colour in (True, False):
        shown(wide, events=events, width=width, height=height, colour=colour)
        shown(of_store(1000), here=(), events=events, width=width, height=height, colour=colour)
        drawn(content_of_runs([wide] * 50, now_ns=NOW_NS), width, height, colour=colour, unicode=False)


def test_a_low_and_narrow_terminal_has_a_part_of_everything():
    events = [Event(at_ns=NOW_NS - n * S, text=f"round {n} formed") for n in range(40)]
    run = of_directory(incident_count=1, last_incident=BOOM)
    lines = shown(run, events=events, width=60, height=15)
    text = "\n".join(lines)
    for part in ("bert-7  running", "step 471,100", "goodput", "1 restart of 3", "█ productive 81%", "8 workers",
                 "RANK", "LAST EVENTS", "round 1 formed", "last incident", "not shown", "q quit"):  # fmt: skip
        assert part in text


def test_of_a_thousand_nodes_those_with_trouble_come_first_and_the_hidden_ones_are_counted():
    lines = shown(of_store(1000), here=(), height=40)
    (title,) = (at for at, line in enumerate(lines) if line.startswith("1,000 nodes: 998 running, 1 lost, 1 silent ("))
    rows = [line for line in lines if line.startswith("node-")]
    assert [row.split()[:2] for row in rows[:3]] == [
        ["node-0500@10.0.0.0", "lost"],
        ["node-0777@10.0.0.27", "silent"],
        ["node-0000@10.0.0.0", "running"],
    ]
    assert lines[title].endswith(f"({1000 - len(rows)} not shown)")


def test_the_table_scrolls_to_its_end_and_back():
    screen, run = Screen(colour=True), of_store(100)
    content = content_of_run([run], [], [], now_ns=NOW_NS)

    def first():
        return next(line.split("@")[0] for line in drawn(content, screen=screen) if line.startswith("node-"))

    assert first() == "node-0000"
    screen.scroll(1)
    assert first() == "node-0001"
    screen.scroll(pages=1)
    page = int(first()[-4:])
    assert page > 10
    screen.scroll(end=True)
    lines = drawn(content, screen=screen)
    assert any(line.startswith("node-0099@") for line in lines)
    hidden = 100 - sum(line.startswith("node-") for line in lines)
    assert f"100 nodes: 100 running ({hidden} not shown, {hidden} of them above)" in lines
    screen.scroll(1)
    assert any(line.startswith("node-0099@") for line in drawn(content, screen=screen))
    screen.scroll(start=True)
    screen.scroll(-1)
    assert first() == "node-0000"
    assert "100 nodes: 100 running" in drawn(content, height=200, screen=screen)


def test_texts_of_others_are_neither_markup_nor_control_sequences():
    run = of_store(1, run_id=EVIL, state=EVIL, nodes=(NodeView(node_id=EVIL, address=EVIL, state=EVIL, role=EVIL),),
                   store=StoreView(where=EVIL, reachable=False, trouble=EVIL), incident_count=1,
                   last_incident=replace(BOOM, summary=EVIL, node_id=EVIL))  # fmt: skip
    hooks = {"ledger": LEDGER | {"state": EVIL}, EVIL: {EVIL: EVIL}}
    local = of_directory(run_id=EVIL, hooks=hooks, agent=AgentView(pid=1, host=EVIL, alive=True, started=""))
    verdict = VerdictView(outcome=EVIL, exit_code=1, reason=EVIL)
    line = json.dumps({"name": "store_reachable", "at_ns": NOW_NS, "values": {"reachable": False, "text": EVIL}})
    events = events_of_journal([line.encode()])
    for runs in ([run], [local], [replace(local, verdict=verdict)]):
        lines = shown(*runs, here=(local,), events=events, width=250, height=60)
        text = "\n".join(lines)
        assert text.replace("\n", "").isprintable()
        assert "a[bold red]x[/bold red]?[2J?31m b??" in text
    text = "\n".join(drawn(content_of_runs([run, local], now_ns=NOW_NS), 250))
    assert text.replace("\n", "").isprintable()


def test_without_colours_each_state_has_a_sign_of_its_own_in_ascii():
    assert set(BAR) == set(STATES)
    signs = [sign for _, sign in BAR.values()]
    assert len(set(signs)) == len(signs)
    lines = shown(of_directory(), width=100, colour=False, unicode=False)
    assert all(line.isascii() for line in lines)
    assert "#" * 80 in lines[5]
    assert "# productive 81%  % store outage 14%  ! hung 5%" in lines


def test_without_the_ledger_a_line_names_its_distribution():
    assert "no ledger bar: needs the hook 'ledger' (elastic-report)" in shown(of_directory(hooks={}))
    new = AgentView(pid=77, host="n0", alive=True, started=iso_time(NOW_NS - S))
    assert not any("ledger" in line for line in shown(of_directory(hooks={}, agent=new)))
    assert "no ledger bar: no agent of this run is on this machine" in shown(of_store(2), here=())
    lines = shown(of_store(2), here=(of_directory(),))
    assert "█" * 100 in lines
    assert any("agent here started 17 min 40 s ago  0 restarts of 3" in line for line in lines)


def test_an_outage_of_the_store_is_never_cut_on_a_low_terminal():
    away = StoreView(where="redis at r:6379", reachable=False, unreachable_since=iso_time(NOW_NS - 90 * S))
    lines = shown(of_store(1000, store=away), here=(of_directory(),), width=60, height=15)
    assert "store: redis at r:6379, unreachable for 1 min 30 s" in lines


def test_several_agents_of_a_run_on_this_machine_are_one_screen():
    other = NodeView(node_id="n1", state="failing", first_rank=8, worker_count=8)
    lines = shown(of_directory(), of_directory(nodes=(other,), run_dir="/other"))
    assert "2 nodes: 1 running, 1 failing" in lines
    assert any(line.split() == ["n1", "failing", "8-15", "8", "-", "-"] for line in lines)


def test_a_run_that_is_over_has_its_exit_code():
    lines = shown(of_directory(state="failed", verdict=VerdictView(outcome="failed", exit_code=3, reason="boom")))
    assert lines[1].endswith("1 restart of 3  exit code 3: boom")


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (12.345, "12.3 steps/s"),
        (0.25, "4 s/step"),
        (0, "0 steps/s"),
        (12345.6, "12,346 steps/s"),
        (0.0001, "10,000 s/step"),
    ],
)
def test_a_rate_is_readable(rate, text):
    assert rate_text(rate) == text


# --- the ledger bar


def test_the_current_state_grows_between_publications_while_the_agent_lives():
    def seconds(later_s, **changes):
        return dict(ledger_bar([of_directory(**changes)], now_ns=NOW_NS + later_s * S).parts)

    assert seconds(0) == {"productive": 860.0, "hung": 50.0, "store outage": 150.0}
    assert seconds(100)["productive"] == 960.0
    dead = AgentView(pid=77, host="n0", alive=False, started=iso_time(NOW_NS - 1060 * S))
    assert seconds(100, agent=dead)["productive"] == 800.0
    assert seconds(100, verdict=VerdictView(outcome="done", exit_code=0))["productive"] == 800.0
    # Published 30 s after the state began: the published seconds have those.
    late = LEDGER | {"since_ns": NOW_NS - 90 * S, "productive_s": 830.0, "present_s": 1030.0}
    assert seconds(0, hooks={"ledger": late})["productive"] == pytest.approx(860.0)


def test_the_goodput_is_a_range_if_the_steps_are_not_known():
    bar = ledger_bar([of_directory()], now_ns=NOW_NS)
    assert (bar.low, bar.high) == (pytest.approx(660 / 1060), pytest.approx(860 / 1060))
    known = {name: value for name, value in LEDGER.items() if name != "goodput_at_most"}
    bar = ledger_bar([of_directory(hooks={"ledger": known | {"queued_s": 500.0}})], now_ns=NOW_NS)
    assert bar.low == bar.high == pytest.approx(860 / 1060)  # the scheduler's time does not count
    assert dict(bar.parts)["queued"] == 500.0


def test_several_agents_are_added_up_and_the_slowest_has_the_step():
    other = of_directory(hooks={"ledger": LEDGER | {"step": 471_000, "steps_per_s": 11.0}})
    bar = ledger_bar([of_directory(), other, of_directory(hooks={})], now_ns=NOW_NS)
    assert (bar.step, bar.steps_per_s, bar.state) == (471_000, 11.0, "")
    assert bar.total_s == pytest.approx(2 * 1060)
    assert ledger_bar([of_directory(hooks={})], now_ns=NOW_NS) is None


def test_what_a_hook_publishes_wrongly_breaks_nothing():
    odd = {"state": 7, "since_ns": "x", "productive_s": "much", "hung_s": -5, "step": True, "goodput": None, "x_s": 3}
    bar = ledger_bar([of_directory(hooks={"ledger": odd})], now_ns=NOW_NS)
    assert (bar.parts, bar.high, bar.step) == ((), None, None)
    assert any("8 workers" in line for line in shown(of_directory(hooks={"ledger": odd})))


@pytest.mark.parametrize("cells", [1, 7, 60, 250])
def test_the_bar_fills_its_width(cells):
    parts = [("productive", 800.0), ("redone", 150.0), ("hung", 49.0), ("stopping", 0.5)]
    assert sum(count for _, count in filled(parts, cells)) == cells
    assert filled([], cells) == []
    assert filled(parts, 0) == []


def test_shares_are_ranked():
    assert shares([("hung", 3.0), ("productive", 1.0), ("redone", 996.0)]) == [
        ("productive", "<1%"),
        ("redone", ">99%"),
        ("hung", "<1%"),
    ]
    assert [percent(share) for share in (0, 0.004, 0.5, 0.994, 0.999, 1)] == ["0%", "<1%", "50%", "99%", ">99%", "100%"]


# --- events


def line_of(name, at_s, /, **values):
    return json.dumps({"name": name, "number": 1, "at_s": 1.0, "at_ns": NOW_NS + at_s * S, "values": values}) + "\n"


FAILURE = {"global_rank": 9, "node_id": "n1", "summary": "ValueError: boom", "round_index": 2}


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("failure_seen", {"failure": FAILURE}, "rank 9 on n1 failed: ValueError: boom, round 2"),
        (
            "decision_taken",
            {"decision": {"type": "restart", "delay_s": 2.0, "rule": "intensity", "reason": ""}},
            "decision: restart in 2 s (intensity)",
        ),
        ("store_reachable", {"reachable": False, "text": "store unreachable: refused"}, "store unreachable: refused"),
        ("store_reachable", {"reachable": True, "text": ""}, "store reachable again"),
        ("left_out", {"absence": {"by": "policy 'hw'", "reason": "ECC"}}, "this node is left out by policy 'hw': ECC"),
        ("left_out", {"absence": None}, "this node is no longer left out"),
        ("draining", {"signum": 15, "deadline_s": 30.0}, "drain: the agent was ordered to stop (signal 15)"),
        ("agent_stopped", {"outcome": "failed", "reason": "boom"}, "agent ended: failed (boom)"),
        ("metric", {"name": "x"}, None),
        ("step", {"event": "WorkerExited"}, None),
    ],
)
def test_events_of_a_journal(name, values, text):
    found = events_of_journal([line_of(name, 1, **values).encode()])
    assert [event.text for event in found] == ([] if text is None else [text])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"type": "round_ended", "reason": "b lost; 1 node goes on", "lost": ["b"]},
         "membership change: b lost; 1 node goes on"),
        ({"type": "round_ended", "reason": "why", "lost": ["b", "c"], "left": ["c"], "arrived": 2},
         "membership change: b lost, c left, 2 nodes joined: why"),
        ({"type": "round_ended", "reason": "why", "arrived": 1}, "membership change: 1 node joined: why"),
        ({"type": "nodes_waiting", "count": 2}, "2 nodes wait to join"),
        ({"type": "member_lost", "node_id": "b"}, "node lost: b"),
        ({"type": "stop_ordered", "reason": "b failed"}, "all nodes stop their workers: b failed"),
        ({"type": "decided", "decision": {"type": "stop", "rule": "r"}, "failure": FAILURE},
         "rank 9 on n1 failed: ValueError: boom; stop (r)"),
        ({"type": "suspended", "reason": "no answer"}, "store unreachable: no answer"),
        ({"type": "resumed"}, "store reachable again"),
    ],
)  # fmt: skip
def test_changes_of_a_round_in_a_journal(change, text):
    (event,) = events_of_journal([line_of("step", 1, event="RoundChanged", change=change).encode()])
    assert event.text == text


def test_a_journal_is_read_on_from_its_last_line(tmp_path):
    path = tmp_path / JOURNAL_FILE
    journal = Journal(str(tmp_path))
    assert journal.events() == ()
    path.write_text(line_of("draining", 1, signum=15)[:20])
    assert journal.events() == ()
    path.write_text(line_of("draining", 1, signum=15) + line_of("draining", 2, signum=2))
    assert [event.at_ns for event in journal.events()] == [NOW_NS + S, NOW_NS + 2 * S]
    with path.open("a") as file:
        file.write("no JSON\n[1]\n" + '{"name":"metric","at_ns":1}\n' + line_of("draining", 3, signum=15))
    assert len(journal.events()) == 3
    assert len(journal.events()) == 3
    path.replace(tmp_path / "journal.1.jsonl")
    path.write_text(line_of("draining", 4, signum=15))
    assert [event.at_ns for event in journal.events()][-1] == NOW_NS + 4 * S


def test_of_a_large_journal_only_the_end_is_read(tmp_path):
    path = tmp_path / JOURNAL_FILE
    with path.open("w") as file:
        file.write(line_of("draining", 1, signum=1))
        file.writelines(line_of("step", 2, event="x" * 1000) for _ in range(2 * MOST_OF_JOURNAL // 1000))
        file.write(line_of("draining", 3, signum=15))
    assert [event.at_ns for event in Journal(str(tmp_path)).events()] == [NOW_NS + 3 * S]


def test_rounds_and_an_old_incident_are_events():
    rounds = (
        PastRoundView(index=0, world_size=2, began=iso_time(NOW_NS - 90 * S), ended=iso_time(NOW_NS - 61 * S),
                      ended_by="failure", reason="ValueError: boom"),
        PastRoundView(index=1, node_count=2, world_size=4, began=iso_time(NOW_NS - 50 * S)),
    )  # fmt: skip
    run = of_directory(rounds=rounds, incident_count=1, last_incident=BOOM)
    for runs in ([run], [run, replace(run, run_dir="/other")]):  # what two agents report alike is one event
        assert [event.text for event in Observer().events(runs, now_ns=NOW_NS)] == [
            "round 1 formed: 2 nodes, 4 workers",
            "rank 9 on n1 failed: ValueError: boom (user exception, round 2); restart (max-restarts)",
            "round 0 ended by failure: ValueError: boom",
            "round 0 formed: 1 node, 2 workers",
        ]


def test_changes_in_a_store_have_the_time_at_which_they_were_seen():
    observer, run = Observer(), of_store(2)
    assert observer.events([run], now_ns=NOW_NS) == ()
    lost = replace(run, nodes=(run.nodes[0], replace(run.nodes[1], state="lost")))
    assert [(event.at_ns, event.text) for event in observer.events([lost], now_ns=NOW_NS + S)] == [
        (NOW_NS + S, "node node-0001@10.0.0.1: lost")
    ]
    away = replace(lost, store=StoreView(where="r", reachable=False, trouble="refused"))
    assert observer.events([away], now_ns=NOW_NS + 2 * S)[0].text == "store unreachable: refused"
    again = of_store(
        1, round=RoundView(index=4, token=5, node_count=1, world_size=8), incident_count=1, last_incident=BOOM
    )
    texts = {event.text for event in observer.events([again], now_ns=NOW_NS + 3 * S) if event.at_ns == NOW_NS + 3 * S}
    assert texts == {
        "store reachable again",
        "node node-0001@10.0.0.1 is gone (it was lost)",
        "round 4 formed: 1 node, 8 workers",
        "rank 9 on n1 failed: ValueError: boom (user exception, round 2); restart (max-restarts)",
    }
