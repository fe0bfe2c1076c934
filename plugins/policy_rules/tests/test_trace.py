"""Traces: what elastic wrote of failures is read back, in each of its forms."""

import json

import msgspec
import pytest

from elastic_core.encoding import encode_json
from elastic_core.errors import ConfigError
from elastic_core.failure.classify import judge
from elastic_core.failure.incident import build_incident
from elastic_core.types import ErrorRecord, Restart, WorkerExit
from elastic_plugin_kit.samples import sample_failure
from elastic_policy_rules.trial.trace import read_trace

AT_NS = 1_700_000_000_000_000_000


def incident(at_s, message="boom"):
    at_ns = AT_NS + int(at_s * 1e9)
    exit = WorkerExit(local_rank=0, global_rank=4, pid=7, code=1, at_s=1.0, at_ns=at_ns, runtime_s=9.0)
    error = ErrorRecord(source="hook", type="ValueError", message=message, timestamp_ns=at_ns)
    worker = msgspec.structs.replace(judge(exit, error), log_tail="its last words")
    return build_incident(None, run_id="r", node_id="n0", host="h", round_index=0, node_count=2, workers=[worker])


def lines(*records):
    return b"\n\n".join(encode_json(record) for record in records)


def test_failures_and_incidents_may_be_mixed():
    given = sample_failure(at_s=5.0, decision=Restart())
    first, second, third = read_trace(lines(given, incident(10), incident(12.5)), "t")
    assert first == sample_failure(at_s=5.0)
    assert (second.at_s, third.at_s, second.uptime_s) == (0.0, 2.5, 9.0)
    assert (second.global_rank, second.log_tail, second.node_count) == (4, "its last words", 2)
    assert second.fingerprint == third.fingerprint == "user exception|ValueError||boom"


def test_incidents_have_the_workers_that_were_alive():
    alone = msgspec.structs.replace(incident(1), kept_count=3)
    of_two = msgspec.structs.replace(incident(2), report_count=2, stopped_count=4, kept_count=3)
    found = read_trace(lines(alone, of_two), "t")
    assert [(failure.alive_count, failure.kept_count) for failure in found] == [(3, None), (7, 3)]


def test_a_file_that_elastic_wrote_is_a_trace():
    raw = msgspec.json.format(encode_json(incident(3)), indent=2)
    assert [failure.at_s for failure in read_trace(raw, "incident.json")] == [0.0]


def test_an_array_is_a_trace():
    raw = json.dumps([json.loads(encode_json(incident(at_s))) for at_s in (1, 4)]).encode()
    assert [failure.at_s for failure in read_trace(raw, "t")] == [0.0, 3.0]


def test_what_a_later_release_writes_is_read():
    given = json.loads(encode_json(sample_failure())) | {"later": 1}
    assert read_trace(json.dumps(given).encode(), "t") == (sample_failure(),)


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"", "has no failures"),
        (b"[]", "has no failures"),
        (b"[1, ", "is no JSON"),
        (b"hello", "trace 't', line 1: "),
        (b'{"a": 1}', "trace 't': Object missing required field"),
        (b'{"a": 1}\n{"b": 2}', "trace 't', line 1: Object missing required field"),
        (b'[{"run_id": 1}]', "trace 't', entry 1: "),
        (b"\xff\xfe", "trace 't', line 1: "),
        (b'{"failure_class": "bored"}', "Invalid enum value 'bored'"),
    ],
)
def test_what_is_neither_is_told_with_its_place(raw, what):
    with pytest.raises(ConfigError) as caught:
        read_trace(raw, "t")
    assert what in str(caught.value)
    assert caught.value.exit_code == 2
