"""The wire format: versioned JSON, refused when it is another's."""

import json

import pytest
from msgspec.structs import replace

from elastic_core.errors import RendezvousStateError
from elastic_core.history import (
    EXCLUDED_LIMIT,
    HISTORY_LIMIT,
    RULES_LIMIT,
    TEXT_CHARS,
    remembered,
)
from elastic_core.messages import PublishDecision
from elastic_core.rendezvous.member.documents import (
    STORE_FORMAT,
    ControlDocument,
    Ending,
    MemberRecord,
    RosterEntry,
    RoundDocument,
    StopOrder,
    Verdict,
    decode,
    document_of,
    encode,
)
from elastic_core.reports import NodeReport
from elastic_core.types import Restart, Stop
from elastic_plugin_kit import sample_failure

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
            verdict=Verdict(decision=Stop(reason="r"), exit_code=7, by="n", failure=sample_failure()),
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
    assert json.loads(raw)["v"] == STORE_FORMAT
    assert decode(raw, type(document)) == document


def test_an_entry_of_a_roster_is_short():
    """A thousand nodes read a thousand of them each."""
    nodes = range(1000)
    many = RoundDocument(
        epoch="e", token=1, nonce="n", index=0, master_addr="10.0.0.1", master_port=1,
        roster=tuple(RosterEntry(f"{n:012x}", f"gpu-{n:04d}@10.0.{n // 256}.{n % 256}", "", 40000, 8) for n in nodes),
    )  # fmt: skip
    assert len(encode(many)) <= 64 * 1000


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"[]", b"{}", b'"x"', b'{"v":5}', b'{"v":5,"epoch":3}'])
def test_what_is_not_ours_is_refused(raw):
    with pytest.raises(RendezvousStateError):
        decode(raw, ControlDocument)


def test_another_version_is_named():
    with pytest.raises(
        RendezvousStateError, match=r"RoundDocument in the store: format 4; expected 5\. Try: the same version"
    ):
        decode(encode(ROUND).replace(b'"v":5', b'"v":4'), RoundDocument)


def test_a_field_of_a_later_minor_version_is_passed_over():
    assert decode(encode(ROUND)[:-1] + b',"later":1}', RoundDocument) == ROUND


def after(count):
    """Return the document of a run that has failed so often."""
    history = ()
    for number in range(count - 1):
        history = remembered(history, failed(number))
    document = ControlDocument(epoch="e", attempt=0, secret="s", history=history)
    return decode(encode(noted(document, failed(count - 1))), ControlDocument)


def noted(document, failure):
    """Return a document with the decision about one more failure in its history."""
    post = document_of(PublishDecision(decision=failure.decision, failure=failure), by="n", token=1, nonce="x")
    return replace(document.after(post), ending=None)


def failed(number):
    return sample_failure(
        message=f"boom {number} " + "m" * 1000,
        summary="RuntimeError: " + "s" * 500,
        node_id=f"gpu-{number % 100:03}@10.0.0.{number % 100}",
        round_index=number,
        at_s=100.0 * number,
        fingerprint=f"f{number % 50}",
        decision=Restart(rule="max-restarts"),
    )


def test_a_control_document_stays_small():
    """It is read by every node at every change; the history is most of it."""
    document = after(750)
    assert len(encode(document)) < 64_000
    assert len(document.history) == HISTORY_LIMIT
    assert document.history[-1].spent == 750


def test_the_last_failures_are_whole():
    document = after(90)
    assert [past.message[:7] for past in document.history[-2:]] == ["boom 88", "boom 89"]
    assert {len(past.message) for past in document.history} == {TEXT_CHARS}
    assert [past.round_index for past in document.history] == list(range(26, 90))


def hostile(number):
    """A failure that is unlike all others, with more text than anybody needs."""
    return sample_failure(
        message="m" * 100_000,
        summary=f"{number}" + "s" * 10_000,
        exception_type=f"T{number}" + "t" * 100_000,
        fingerprint=f"{number:03}" + "f" * 197,
        round_index=number,
        decision=Restart(
            rule=f"rule {number}", reason="r" * 10_000, exclude_nodes=tuple(f"node-{n}" for n in range(1000))
        ),
    )


def test_what_workers_and_policies_write_does_not_make_a_control_document_large():
    document = ControlDocument(epoch="e", attempt=0, secret="s")
    for number in range(HISTORY_LIMIT + 60):
        document = noted(document, hostile(number))
    assert len(encode(document)) < 100_000
    document = decode(encode(document), ControlDocument)
    assert [past.round_index for past in document.history] == list(range(60, HISTORY_LIMIT + 60))
    assert document.history[-1].spent == HISTORY_LIMIT + 60
    assert len(document.history[-1].decision.exclude_nodes) == EXCLUDED_LIMIT
    assert len(document.history[-1].rule_counts) == RULES_LIMIT


@pytest.mark.parametrize("kind", [ControlDocument, RoundDocument, MemberRecord])
@pytest.mark.parametrize("start", [b'{"v":%d,' % STORE_FORMAT, b"{"])
def test_a_document_that_is_nested_without_end_is_refused_as_any_other(kind, start):
    with pytest.raises(RendezvousStateError, match="nested too deep"):
        decode(start + b'"x":' + b"[" * 100_000, kind)
