"""The wire format: versioned JSON, refused when it is another's."""

import json

import pytest
from msgspec.structs import replace

from elastic_core.errors import RendezvousStateError
from elastic_core.failure.intensity import Intensity
from elastic_core.rendezvous.documents import (
    BUDGET_LIMIT,
    FORMAT,
    HISTORY_LIMIT,
    ControlDocument,
    Ending,
    MemberRecord,
    RosterEntry,
    RoundDocument,
    StopOrder,
    Verdict,
    decode,
    encode,
    remembered,
)
from elastic_core.testing import sample_failure
from elastic_core.types import NodeReport, PolicySettings, Restart, Stop

ROUND = RoundDocument(
    epoch="e", token=3, nonce="n.1", index=2, master_addr="10.0.0.1", master_port=4711,
    roster=(RosterEntry("a1b2c3d4e5f6", "n0001@10.0.0.1", "", 40123, 8),), left={"n9": 1}, strikes={"n8": 2},
)  # fmt: skip
REPORT = NodeReport(node_id="n", failure=sample_failure(), age_s=0.1, stopped_count=3, evidence="{}", final=True)


@pytest.mark.parametrize(
    "document",
    [
        MemberRecord(epoch="e", node="n", state="ready"),
        MemberRecord(epoch="e", node="n", state="done", seen=4, token=4, nonce="x", rank_hint=0, role="r", nproc=8),
        ROUND,
        ControlDocument(epoch="e", attempt=1, secret="s", fingerprint={"nnodes": "1:2"}),
        ControlDocument(
            epoch="e", attempt=0, secret="s",
            ending=Ending(token=1, nonce="x", kind="restart", reason="r", by="n", failure=sample_failure()),
            verdict=Verdict(outcome="failed", exit_code=7, reason="r", by="n", failure=sample_failure()),
            history=(sample_failure(),),
        ),
        MemberRecord(epoch="e", node="n", state="stopped", token=4, nonce="x", report=REPORT),
        ControlDocument(
            epoch="e", attempt=0, secret="s",
            stopping=StopOrder(token=1, nonce="x", by="n", incarnation="i", reason="exit code 7", report=REPORT),
        ),
    ],
)  # fmt: skip
def test_what_is_written_is_read(document):
    raw = encode(document)
    assert json.loads(raw)["v"] == FORMAT
    assert decode(raw, type(document)) == document


def test_an_entry_of_a_roster_is_short():
    """A thousand nodes read a thousand of them each."""
    nodes = range(1000)
    many = RoundDocument(
        epoch="e", token=1, nonce="n", index=0, master_addr="10.0.0.1", master_port=1,
        roster=tuple(RosterEntry(f"{n:012x}", f"gpu-{n:04d}@10.0.{n // 256}.{n % 256}", "", 40000, 8) for n in nodes),
    )  # fmt: skip
    assert len(encode(many)) <= 64 * 1000


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"[]", b"{}", b'"x"', b'{"v":2}', b'{"v":2,"epoch":3}'])
def test_what_is_not_ours_is_refused(raw):
    with pytest.raises(RendezvousStateError):
        decode(raw, ControlDocument)


def test_another_version_is_named():
    with pytest.raises(RendezvousStateError, match=r"format 1; this version of elastic-core reads 2"):
        decode(encode(ROUND).replace(b'"v":2', b'"v":1'), RoundDocument)


def test_a_field_of_a_later_minor_version_is_passed_over():
    assert decode(encode(ROUND)[:-1] + b',"later":1}', RoundDocument) == ROUND


@pytest.mark.parametrize("budget", [3, 200])
def test_a_budget_is_counted_however_long_ago_it_was_spent(budget):
    policy = Intensity(PolicySettings(name="intensity", max_restarts=budget))
    history, failure = (), sample_failure(message="boom", log_tail="tail")
    for _ in range(2 * budget):
        decision = policy.decide(failure, history)
        if isinstance(decision, Stop):
            break
        history = remembered(history, replace(failure, decision=decision))
    assert len(history) == budget
    assert [past.message for past in history[-HISTORY_LIMIT:]] == ["boom"] * min(budget, HISTORY_LIMIT)
    assert not any(past.message for past in history[:-HISTORY_LIMIT])


def test_a_history_does_not_grow_without_an_end():
    history = ()
    for _ in range(BUDGET_LIMIT + 9):
        history = remembered(history, sample_failure(message="m" * 1000, decision=Restart(rule="max-restarts")))
    assert len(history) == BUDGET_LIMIT
    document = ControlDocument(epoch="e", attempt=0, secret="s", history=history)
    assert len(encode(document)) < 400_000  # etcd's servers take 1.5 MB at once
