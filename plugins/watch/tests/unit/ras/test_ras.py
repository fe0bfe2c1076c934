"""NCCL's RAS service: its JSON, its protocol against a server that speaks it, and what follows for ranks."""

import contextlib
import json
import socket
import threading

import pytest

from elastic_plugin_kit import FakeRun
from elastic_watch.collectives.evidence import GroupState, Snapshot
from elastic_watch.hangs.detector import Late, Stall
from elastic_watch.hangs.hang_evidence import hang_field
from elastic_watch.hangs.hang_report import HangReport, RankReport
from elastic_watch.ras.client import RasUnavailableError, free_address, look
from elastic_watch.ras.findings import findings
from elastic_watch.ras.queries import RasQueries
from elastic_watch.ras.report import parse

SHARED = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}


def rank(number, *, pid, counts, host="10.0.0.1"):
    return {
        "rank": number,
        "host": host,
        "pid": pid,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": SHARED,
        "collective_counts": {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": counts},
    }


def document(ranks, missing=(), *, size=4):
    """Return a response in the form of NCCL 2.28, whose lines each have one name and value."""
    content = {
        "nccl_version": "2.28.7+cuda12.9",
        "cuda_runtime_version": 12090,
        "cuda_driver_version": 13000,
        "timestamp": "2026-01-01 00:00:00",
        "communicators_count": 1,
        "communicators": [
            {
                "hash": "0xabc",
                "secondary_hash": "0x1:0x2",
                "size": size,
                "ranks_count": len(ranks),
                "missing_ranks_count": len(missing),
                "ranks": list(ranks),
                "missing_ranks": list(missing),
            }
        ],
        "ras": {"collection_time_sec": 0.012, "timeouts_count": 0},
    }
    return json.dumps(content, indent=2).encode() + b"\n"


BEHIND = document(
    [rank(0, pid=10, counts=7), rank(1, pid=11, counts=6), rank(2, pid=12, counts=7)],
    [{"rank": 3, "host": "10.0.0.2", "pid": 13, "status": {"unresponsive": True, "considered_dead": False}}],
)


def test_rank_that_is_behind_and_one_without_a_response_are_found():
    assert findings(parse(BEHIND)) == (
        "NCCL's RAS: process 13 on 10.0.0.2 (rank 3 of communicator 0xabc) does not respond",
        "NCCL's RAS: rank 1 of communicator 0xabc has entered 6 collectives, the others 7",
    )


def test_equal_counts_are_no_finding():
    assert findings(parse(document([rank(0, pid=10, counts=7), rank(1, pid=11, counts=7)], size=2))) == ()


def test_communicator_of_one_rank_is_left_out():
    assert findings(parse(document([rank(0, pid=10, counts=7), rank(1, pid=11, counts=6)], size=1))) == ()


@pytest.mark.parametrize("line", [at for at, text in enumerate(BEHIND.splitlines()) if text.endswith(b",")])
def test_missing_comma_is_added(line):
    """NCCL 2.28.9 leaves one out: whichever it is, the content is the same."""
    lines = BEHIND.splitlines()
    lines[line] = lines[line].removesuffix(b",")
    assert parse(b"\n".join(lines)) == parse(BEHIND)


@pytest.mark.parametrize("content", [b"", b"NCCL version 2.24.3", b"[]", b'{"communicators": [{"hash": 1}]}', b"\xff"])
def test_other_content_is_rejected(content):
    with pytest.raises(ValueError):  # noqa: PT011  # of whichever kind
        parse(content)


# --- over TCP


@contextlib.contextmanager
def service(answers, content):
    """Yield the address of a server that answers each line by its beginning, and the last one with the content."""
    received = []

    def serve():
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                received.append(line.decode().strip())
                answer = next((text for begin, text in answers.items() if line.startswith(begin.encode())), None)
                if answer is None:
                    connection.sendall(content)
                    return
                connection.sendall(answer.encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", received
        thread.join(10)
        assert not thread.is_alive()


SPOKEN = {"CLIENT PROTOCOL": "SERVER PROTOCOL 2\n", "TIMEOUT": "OK\n", "SET FORMAT json": "OK\n"}


def test_service_is_asked_for_json():
    with service(SPOKEN, BEHIND) as (address, received):
        assert look(address) == parse(BEHIND)
    assert received == ["CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json", "VERBOSE STATUS"]


@pytest.mark.parametrize(
    ("answers", "content", "text"),
    [
        (SPOKEN | {"SET FORMAT json": "ERROR: Unknown command\n"}, b"", "'SET FORMAT json' was answered with"),
        (SPOKEN | {"CLIENT PROTOCOL": "HTTP/1.1 400 Bad Request\n"}, b"", "'CLIENT PROTOCOL 2' was answered with"),
        ({}, b"", "the connection was closed"),
        (SPOKEN, b"{", "truncated"),
        (SPOKEN, b" " * ((4 << 20) + 1), "more than 4194304 bytes"),
    ],
    ids=["older NCCL", "another server", "closed", "broken", "too much"],
)
def test_other_responses_are_reported(answers, content, text):
    with service(answers, content) as (address, _), pytest.raises(RasUnavailableError, match=text):
        look(address)


def test_service_that_does_not_respond_is_left_after_the_limit():
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(RasUnavailableError, match="timed out"):
        look(f"127.0.0.1:{listener.getsockname()[1]}", within_s=0.2)


def test_nothing_listens():
    with pytest.raises(RasUnavailableError, match="refused"):
        look(free_address())


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", "localhost:x", "localhost:99999"])
def test_wrong_address_of_the_user(address):
    with pytest.raises(RasUnavailableError):
        look(address)


# --- in a run


@pytest.mark.parametrize(
    ("user", "names"),
    [({}, ["NCCL_RAS_ADDR"]), ({"NCCL_RAS_ADDR": "localhost:28028"}, []), ({"NCCL_RAS_ENABLE": "0"}, [])],
    ids=["by default", "an address of the user", "switched off"],
)
def test_workers_of_each_run_have_an_address_of_their_own(user, names):
    assert list(RasQueries(FakeRun(), user).environment) == names


def test_two_runs_on_a_host_have_different_addresses():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = f"127.0.0.1:{listener.getsockname()[1]}"
        assert RasQueries(FakeRun(), {}).environment != {"NCCL_RAS_ADDR": taken}


def queried(user, *backends):
    """Return the queries after one has ended, if one was begun."""
    run = FakeRun()
    queries = RasQueries(run, user)
    groups = tuple(GroupState(group=str(number), backend=each) for number, each in enumerate(backends))
    queries.begin([Snapshot(taken_ns=1, groups=groups)])
    for thread in [each for each in threading.enumerate() if each.name == "elastic-ras"]:
        thread.join(10)
    run.pass_time(0.0)
    return queries


def test_sentences_of_the_service_are_there_until_the_workers_make_progress():
    with service(SPOKEN, BEHIND) as (address, _):
        queries = queried({"NCCL_RAS_ADDR": address}, "gloo", "nccl")
    assert queries.said == findings(parse(BEHIND))
    queries.forget()
    assert queries.said is None


def test_service_of_workers_without_nccl_is_not_queried():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        queried({"NCCL_RAS_ADDR": f"127.0.0.1:{listener.getsockname()[1]}"}, "gloo")
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_service_that_is_away_adds_nothing():
    assert queried({"NCCL_RAS_ADDR": free_address()}, "nccl").said is None


@pytest.mark.parametrize("said", [None, (), ("NCCL's RAS: rank 1 is dead",)])
def test_incident_has_the_sentences_and_the_kind_of_evidence(said):
    stall = Stall(late=(Late(local_rank=0, quiet_s=9.0, step=1, begun=True),))
    rank = RankReport(local_rank=0, global_rank=4, pid=1, step=1)
    field = hang_field(HangReport(stall=stall, ranks=(rank,), blamed=(0,), folder="", ras=said))
    assert ("ras" in field["evidence"]) is (said is not None)
    assert list((field["attribution"] or {}).get("details", ())) == list(said or ())
