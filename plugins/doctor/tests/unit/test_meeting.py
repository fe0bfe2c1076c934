"""Nodes that meet before a run: who is there, what they find of each other, and that all end alike."""

import json
import socket
import threading
from functools import partial

import pytest

from elastic_core.api import RendezvousSettings, WaitBudget, decode_json, encode_json
from elastic_core.api.commands import StoreChoice
from elastic_core.cli.main import main
from elastic_doctor import Finding, Level, meeting, probing
from elastic_doctor.findings import Asked, NodeFindings
from elastic_doctor.meeting import differences, findings_of, meet, missing
from elastic_doctor.probing import Answering, Station, Trial, probe
from elastic_doctor.software import facts
from elastic_plugin_kit.memory_server import MemoryServer
from elastic_plugin_kit.memory_store import MemoryStore
from patience import patience

CHOICE = StoreChoice(backend="memory", endpoint="", run_id="bert", conf={})


def found(node, level=Level.OK, **facts):
    return NodeFindings(node=node, findings=(Finding(check="disk", level=level, what="so"),), facts=facts)


# --- together


@pytest.fixture
def server(monkeypatch):
    """Return the server that all nodes meet in."""
    made, names = MemoryServer(), []

    def open_store(choice, *, max_nodes, may_host):
        names.append(choice.run_id)
        settings = RendezvousSettings(
            backend="memory", run_id=choice.run_id, endpoint="", min_nodes=1, max_nodes=max_nodes, local_world_size=1
        )
        return MemoryStore(settings, server=made)

    monkeypatch.setattr(meeting, "open_store", open_store)
    yield made
    assert set(names) <= {"bert.doctor"}  # the run itself is not touched


def together(nodes, count=None, limit_s=60.0):
    """Have these nodes meet, each on a thread of its own; return what came of it, by node."""
    came = {}

    def take_part(own):
        came[own.node] = meet(CHOICE, own, count or len(nodes), limit_s=limit_s)

    threads = [threading.Thread(target=take_part, args=(own,)) for own in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return came


def test_the_first_has_what_all_found_and_all_end_alike(server):
    for failing in (False, True):  # the second meeting finds what the first has left in the store
        nodes = [found(f"n{number}", torch="2.13") for number in range(3)]
        nodes.append(found("n3", Level.FAIL if failing else Level.OK, torch="2.13"))
        came = together(nodes)
        (leader,) = [one for one in came.values() if one.leader]
        assert {one.failed for one in came.values()} == {failing}
        assert {node.node for node in leader.nodes} == {"n0", "n1", "n2", "n3"}
        assert [each.what for each in leader.together] == ["4 have met"]
        tried = [
            each for node in leader.nodes for each in node.findings if each.check in ("agents' ports", "master port")
        ]
        assert [each.level for each in tried] == ["ok"] * 8


def test_nodes_that_do_not_come_and_nodes_that_differ_fail_it(server):
    came = together([found("n0", torch="2.13"), found("n1", torch="2.12")], count=3, limit_s=patience(4.0))
    (leader,) = [one for one in came.values() if one.leader]
    assert [one.failed for one in came.values()] == [True, True]
    what = [each.what for each in leader.together]
    assert what[0] == "2 of 3 nodes have joined"
    assert sorted(what[1].removeprefix("not the same: ").split("; ")) == ["2.12 on n1", "2.13 on n0"]


def test_who_left_no_word_of_an_earlier_meeting_is_not_believed(server):
    settings = RendezvousSettings(
        backend="memory", run_id="bert.doctor", endpoint="", min_nodes=1, max_nodes=2, local_world_size=1
    )
    store, wait = MemoryStore(settings, server=server), WaitBudget()
    store.connect(wait=wait)
    seat = store.enlist(b'"of another version"', incarnation="ghost", ttl_s=1.0, wait=wait)
    for key in ("control", "round"):
        store.swap(key, b"[]", expect=None, keep_s=60.0, wait=wait)
    store.withdraw(seat, wait=wait)
    came = together([found("n0"), found("n1")])
    assert [one.failed for one in came.values()] == [False, False]


def test_a_store_that_is_never_reached_fails_with_what_this_node_has_found(monkeypatch):
    def away(self, *, wait):
        raise meeting.BackendUnavailableError("nobody there")

    monkeypatch.setattr(MemoryStore, "connect", away)
    settings = RendezvousSettings(backend="m", run_id="r", endpoint="", min_nodes=1, max_nodes=2, local_world_size=1)
    monkeypatch.setattr(meeting, "open_store", lambda *_, **__: MemoryStore(settings, server=MemoryServer()))
    alone = meet(CHOICE, found("n0"), 2, limit_s=0.3)
    assert (alone.failed, alone.leader, [node.node for node in alone.nodes]) == (True, True, ["n0"])
    assert alone.together[0].what == "the store was not reached in time: see the endpoint"


# --- trying each other


@pytest.fixture
def answering():
    made = Answering(0, 0)
    made.secret, made.incarnation = "s", "i"  # that is what nodes know each other by
    yield made
    made.close()


def station(answering, **given):
    fields = {"incarnation": "i", "node": "n1", "boot": "b", "address": "127.0.0.1"}
    ports = {"udp_port": answering.udp_port, "tcp_port": answering.tcp_port}
    return Station(**(fields | ports | given))


def test_ports_that_answer_and_a_clock_that_agrees(answering):
    (trial,) = probe([station(answering)], station(answering), "s", limit_s=20.0)
    assert (trial.node, trial.udp, trial.tcp) == ("n1", True, True)
    assert abs(trial.skew_s) - trial.doubt_s < 0.5


def test_who_does_not_know_the_secret_gets_no_answer(answering):
    (trial,) = probe([station(answering)], station(answering), "guess", limit_s=0.5)
    assert (trial.udp, trial.tcp, trial.skew_s) == (False, True, None)


def test_a_question_without_proof_gets_no_answer_at_all(answering):
    questions = [
        probing._Question(asker="a", nonce=nonce, proof=probing._proof(secret, probing._QUESTION, "a", "i", nonce))
        for nonce, secret in (("1", "guess"), ("2", "s"))
    ]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.connect(("127.0.0.1", answering.udp_port))
        asker.settimeout(20)
        for question in questions:  # they are answered one after the other
            asker.send(encode_json(question))
        answer = decode_json(asker.recv(512), probing._Answer)
    assert answer.proof == probing._proof("s", probing._ANSWER, "a", "i", "2", str(answer.wall_ns))


def test_a_node_that_is_not_meant_gives_no_answer(answering):
    (trial,) = probe([station(answering, incarnation="j")], station(answering), "s", limit_s=0.5)
    assert (trial.udp, trial.tcp) == (False, True)


def test_the_secret_is_in_no_datagram_and_what_was_recorded_is_no_answer(answering):
    secret = "5ecret" * 5
    answering.secret = secret
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as between:
        between.bind(("127.0.0.1", 0))
        between.settimeout(20)
        seen, recorded = [], []

        def pass_on():
            """Pass one question and its answer on; then answer with what was recorded."""
            for _ in range(2):
                question, sender = between.recvfrom(512)
                seen.append(question)
                if not recorded:
                    between.sendto(question, ("127.0.0.1", answering.udp_port))
                    recorded.append(between.recv(512))
                between.sendto(recorded[0], sender)

        passing = threading.Thread(target=pass_on)
        passing.start()
        meant = station(answering, udp_port=between.getsockname()[1])
        (first,) = probe([meant], station(answering, incarnation="a"), secret, limit_s=20.0)
        (second,) = probe([meant], station(answering, incarnation="a"), secret, limit_s=0.2)
        passing.join()
    assert (first.udp, second.udp) == (True, False)
    assert all(secret.encode() not in datagram for datagram in (*seen, *recorded))


def test_ports_where_nobody_is_are_told_as_shut(answering):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens there
        port = deaf.getsockname()[1]
        (trial,) = probe([station(answering, udp_port=port, tcp_port=port)], station(answering), "s", limit_s=0.5)
    assert [each.what for each in findings_of([trial])] == ["no answer by UDP from n1", "no answer by TCP from n1"]


def test_other_hosts_are_tried_at_the_address_that_they_have_for_others(answering):
    far = station(answering, address="127.0.0.9", alternative="127.0.0.1", boot="another")
    (trial,) = probe([far], station(answering), "s", limit_s=20.0)
    assert trial.udp


def test_a_port_that_is_taken_is_refused(answering):
    with pytest.raises(OSError, match="in use"):
        Answering(0, answering.tcp_port)


# --- what follows


def test_clocks_are_told_where_they_surely_differ():
    ok = partial(Trial, udp=True, tcp=True)
    trials = [ok(node="a", skew_s=0.2), ok(node="b", skew_s=-41.0, doubt_s=0.5), ok(node="c", skew_s=3.0, doubt_s=4.0)]
    levels = {each.check: (each.level.value, each.what) for each in findings_of(trials)}
    assert levels["agents' ports"] == ("ok", "3 tried")
    assert levels["clocks"][0] == "warn"
    assert "differ" not in levels["clocks"][1]
    assert "b by -41.0 s;" in levels["clocks"][1]
    assert findings_of([]) == []


def test_differences_name_the_few():
    nodes = [found("a", python="3.12"), found("b", python="3.11"), found("c", python="3.12"), found("d", python="3.12")]
    (one,) = differences(nodes)
    assert (one.level, one.what) == ("warn", "not the same: 3.12 on a, c, d; 3.11 on b")
    assert differences(nodes[2:]) == []


def test_other_numbers_of_workers_fail_a_run():
    given = [(8, "8"), (1, "1"), (None, "none")]
    nodes = [
        NodeFindings(node=f"n{at}", findings=(), facts=facts(Asked(worker_count=count)))
        for at, (count, _) in enumerate(given)
    ]
    (one,) = differences(nodes)
    assert (one.check, one.level) == ("--nproc-per-node", "fail")
    assert one.what == "not the same: " + "; ".join(f"{shown} on n{at}" for at, (_, shown) in enumerate(given))
    assert differences(nodes[2:] * 2) == []


def test_missing():
    assert [each.level for each in missing(3, 3, [])] == ["ok"]
    assert missing(3, 3, ["n2"])[0].what == "n2 joined, and reported nothing"


# --- the command


def test_nodes_need_a_store_to_meet_in(capsys):
    assert main(["doctor", "--nnodes", "2"]) == 2
    assert (
        "--nnodes: no store is named; expected --rdzv-backend and --rdzv-endpoint, where the nodes meet"
        in capsys.readouterr().err
    )


def test_what_several_nodes_have_found_is_shown_once(monkeypatch, capsys):
    nodes = (*(found(f"n{number}") for number in range(3)), found("n3", Level.FAIL))
    whole = meeting.Meeting(failed=True, leader=True, nodes=nodes, together=tuple(missing(4, 4, [])))
    monkeypatch.setattr("elastic_doctor.command.meet", lambda *_, **__: whole)
    words = ["doctor", "--nnodes", "4", "--rdzv-backend", "redis", "--rdzv-endpoint", "127.0.0.1:1", "--rdzv-id", "r"]
    assert main(words) == 1
    assert capsys.readouterr().out.splitlines() == [
        "fail  n3             disk   so",
        "ok    all            nodes  4 have met",
        "ok    n0 and 2 more  disk   so",
        "4 nodes: 1 fail, 0 warn, 2 ok",
    ]
    assert main([*words, "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["nodes"]) == 4
