"""What `elastic status` writes, as text: columns, ages, what nobody knows, and nothing that steers a terminal."""

import pytest
from msgspec.structs import replace

from elastic_core.failure.incident import iso_time
from elastic_ops.status.document import WorkerStatus
from elastic_ops.status.page import age, incident_line, page_of_run, page_of_runs, plain
from elastic_ops.status.view import (
    AbsenceView,
    AgentView,
    IncidentView,
    NodeView,
    PastRoundView,
    RoundView,
    RunView,
    StoreView,
    VerdictView,
)

NOW_NS = 1_800_000_000 * 10**9
BOOM = IncidentView(
    failure_class="user exception",
    summary="ValueError: boom",
    node_id="n1",
    rank=9,
    round_index=2,
    decision="restart in 0.5 s (max-restarts)",
    at=iso_time(NOW_NS - 60 * 10**9),
    path="/r/incident-0.json",
)
NODES = (
    NodeView(node_id="n0", address="10.0.0.1", state="running", node_rank=0, first_rank=0, worker_count=8),
    NodeView(
        node_id="n1",
        address="10.0.0.2",
        state="lost",
        node_rank=1,
        first_rank=8,
        worker_count=1,
        role="trainer",
        since=iso_time(NOW_NS - 125 * 10**9),
    ),
    NodeView(node_id="n2", state="ready", worker_count=8),
)
RUN = RunView(
    run_id="bert-7",
    source="store",
    state="running",
    backend="redis",
    round=RoundView(index=3, token=7, node_count=2, world_size=9, master_addr="10.0.0.1", master_port=29500),
    restart_count=1,
    membership_changes=2,
    nodes=NODES,
    waiting=("n2",),
    incident_count=1,
    last_incident=BOOM,
    store=StoreView(where="redis at r:6379", reachable=True, latency_s=0.0012),
)


def text(run):
    return plain(page_of_run(run, now_ns=NOW_NS))


def absent(**fields):
    node = NodeView(node_id="n2", state="out", worker_count=8, absence=AbsenceView(**fields))
    return text(replace(RUN, nodes=(*NODES[:2], node), waiting=()))


def test_nodes_that_are_left_out_are_told_by_whom_why_and_until_when():
    gate = {"by": "hook 'gate' (acme 1.0)", "reason": "ECC errors", "refused": True}
    line = "n2 is out: hook 'gate' (acme 1.0) refused: ECC errors"
    assert f"{line}\n" in absent(**gate)
    assert f"{line}; asked again within 1 min\n" in absent(**gate, for_s=60.0)
    assert f"{line}; asked again in 18 s\n" in absent(**gate, until=iso_time(NOW_NS + 18 * 10**9))
    policy = {"by": "policy 'hw'", "reason": "exit code 77", "refused": False}
    assert "n2 is left out for 20 s in all by policy 'hw': exit code 77\n" in absent(**policy, for_s=20.0)
    until = iso_time(NOW_NS + 18 * 10**9)
    assert "n2 is left out for 18 s by policy 'hw': exit code 77\n" in absent(**policy, until=until)
    assert "n2 is left out until the policy's next decision by policy 'hw'" in absent(**policy)
    assert "waiting for a place" not in absent(**policy)


def test_a_long_absence_is_told_in_units_that_people_use_and_its_node_has_no_workers():
    policy = {"by": "policy 'hw'", "reason": "exit code 77", "refused": False}
    shown = absent(**policy, for_s=2_592_000.0)
    assert "n2 is left out for 30 d in all by policy 'hw': exit code 77\n" in shown
    assert "n2    -         out      -            -        -\n" in shown


def test_a_lost_node_stays_visible_among_the_last_rounds():
    def past(index, ended="", **fields):
        began = iso_time(NOW_NS - (60 - index) * 10**9)
        return PastRoundView(index=index, node_count=2, world_size=4, began=began, ended=ended, **fields)

    lost = past(8, iso_time(NOW_NS), ended_by="membership", reason="b lost; 1 node with 2 workers goes on")
    shown = text(of_directory(rounds=(*map(past, range(8)), lost, past(9))))
    assert (
        "ROUND  BEGAN     LASTED  NODES  WORKERS  ENDED BY\n"
        "5      55 s ago  -       2      4        -\n"
        "6      54 s ago  -       2      4        -\n"
        "7      53 s ago  -       2      4        -\n"
        "8      52 s ago  52 s    2      4        membership: b lost; 1 node with 2 workers goes on\n"
        "9      51 s ago  -       2      4        -\n"
    ) in shown
    assert "LASTED" not in text(of_directory(rounds=(past(0),)))


def test_what_hooks_publish_is_shown_within_bounds():
    hooks = {"gpu-gate": {"healthy": False, "worst": "GPU 3", "temp": 81.5}, "idle": {}, "long": {"x": "y\n" * 500}}
    lines = text(of_directory(hooks=hooks)).split("\n")
    assert "hook 'gpu-gate': healthy=false, worst=GPU 3, temp=81.5" in lines
    assert not any("idle" in line for line in lines)
    (long,) = (line for line in lines if line.startswith("hook 'long'"))
    assert len(long) < 300
    many = {f"hook{number:02}": {"ok": True} for number in range(11)}
    assert "3 more hooks: --json has all" in text(of_directory(hooks=many))


def test_a_run_from_its_store():
    assert text(RUN) == (
        "run 'bert-7': running, round 3 (token 7)\n"
        "2 nodes, 9 workers; master 10.0.0.1:29500\n"
        "1 restart, 2 membership changes\n"
        "store: redis at r:6379, read in 1.2 ms\n"
        "\n"
        "NODE  ADDRESS   STATE    RANKS        WORKERS  SINCE\n"
        "n0    10.0.0.1  running  0-7          8        -\n"
        "n1    10.0.0.2  lost     8 (trainer)  1        2 min 5 s\n"
        "n2    -         ready    -            8        -\n"
        "\n"
        "waiting for a place: n2\n"
        "last incident (of 1, 1 min ago): rank 9 on n1 failed: ValueError: boom (user exception, round 2); "
        "restart in 0.5 s (max-restarts)\n"
        "  /r/incident-0.json"
    )


def of_directory(**changes):
    fields = {
        "run_id": "bert-7",
        "source": "directory",
        "state": "running",
        "run_dir": "/r",
        "agent": AgentView(pid=77, host="n0", alive=True, started=iso_time(NOW_NS - 10**10)),
        "max_restarts": 3,
        "workers": (WorkerStatus(local_rank=0, global_rank=8, pid=80, state="alive"),),
    }
    return RunView(**(fields | changes))


def test_a_run_from_its_directory_says_what_is_allowed_and_who_works():
    shown = text(of_directory())
    assert "0 restarts of 3, 0 membership changes\nagent 77 on n0, started 10 s ago\n" in shown
    assert "LOCAL RANK  RANK  PID  STATE\n0           8     80   alive" in shown
    assert shown.endswith("run directory: /r")


@pytest.mark.parametrize(("alive", "said"), [(False, "; it is dead"), (None, "; it can't be seen from here")])
def test_an_agent_that_does_not_live_is_said_to_be_dead(alive, said):
    agent = AgentView(pid=77, host="n0", alive=alive, started=iso_time(NOW_NS))
    assert f"agent 77 on n0, started 0 s ago{said}" in text(of_directory(agent=agent))


def test_an_agent_that_is_dead_because_its_run_ended_is_no_news():
    agent = AgentView(pid=77, host="n0", alive=False, started=iso_time(NOW_NS))
    shown = text(of_directory(agent=agent, verdict=VerdictView(outcome="failed", exit_code=3, reason="exit code 3")))
    assert "dead" not in shown
    assert "verdict: failed, exit code 3: exit code 3" in shown


def test_a_directory_without_a_status_says_so():
    assert "left no status" in text(of_directory(agent=None))


def test_a_store_that_is_away_is_told_with_the_time():
    store = StoreView(
        where="redis at r:6379",
        reachable=False,
        unreachable_since=iso_time(NOW_NS - 90 * 10**9),
        trouble="connection refused",
    )
    shown = text(RunView(run_id="x", source="store", state="running", store=store))
    assert "store: redis at r:6379, unreachable for 1 min 30 s (connection refused)\n" in shown
    assert "the values on this page were read before that" in shown


def test_several_runs_are_a_line_each():
    node = NodeView(node_id="n0", state="running", since=iso_time(NOW_NS - 4 * 10**9))
    runs = [of_directory(run_id=name, nodes=(node,)) for name in ("a", "long-name")]
    assert plain(page_of_runs(runs, now_ns=NOW_NS)) == (
        "RUN        STATE    ROUND  RESTARTS  NODE  PID  SINCE  RUN DIRECTORY\n"
        "a          running  -      0 of 3    n0    77   4 s    /r\n"
        "long-name  running  -      0 of 3    n0    77   4 s    /r\n"
        "\n"
        "One in full: elastic status RUN"
    )


def test_many_waiting_nodes_are_counted():
    run = RunView(run_id="x", source="store", state="running", waiting=tuple(f"n{i}" for i in range(11)))
    assert "waiting for a place: n0, n1, n2, n3, n4, n5, n6, n7 and 3 more" in text(run)


def test_an_incident_without_a_rank_is_named_by_its_class():
    incident = IncidentView(failure_class="node lost", summary="no word", node_id="n1")
    assert incident_line(incident) == "node lost on n1 failed: no word (node lost)"


def test_a_lost_node_is_a_line_without_a_failure():
    incident = IncidentView(
        failure_class="node lost", summary="b was lost (ranks 2, 3)", node_id="b", round_index=1,
        decision="restart (membership change)",
    )  # fmt: skip
    assert incident_line(incident) == "b was lost (ranks 2, 3) (node lost, round 1); restart (membership change)"


def test_what_others_wrote_can_not_steer_a_terminal():
    evil = "a\x1b[2Jb\nc\u202ed"
    run = RunView(
        run_id=evil, source="store", state=evil, nodes=(NodeView(node_id=evil, address=evil, state=evil, role=evil),)
    )
    shown = text(run)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert shown.count("a?[2Jb c?d") == 5


@pytest.mark.parametrize(("seconds", "shown"), [(-5, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (61, "1 min 1 s")])
def test_ages_are_whole_seconds(seconds, shown):
    assert age(iso_time(NOW_NS - int(seconds * 1e9)), NOW_NS) == shown


def test_an_age_that_nobody_knows():
    assert age("", NOW_NS) == "-"
