"""Secrets in the texts of a report are masked, and other texts are left alone."""

import pytest
from msgspec.structs import replace

from elastic_report.ledger.document import Note, RoundOver
from elastic_report.masking import masked, masked_incident
from ledger_kit import Node
from run_kit import incident

SECRET = "hunter2/x@y"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no route to redis://me:hunter2@store:6379/0", "no route to redis://me:***@store:6379/0"),
        ("redis://:hunter2/x@y@store", "redis://:***@store"),
        ("--rdzv-conf password=hunter2,ttl=3", "--rdzv-conf password=***,ttl=3"),
        ("KeyError: {'api_key': 'hunter2', 'user': 'me'}", "KeyError: {'api_key': '***', 'user': 'me'}"),
        ("HF_TOKEN=hunter2&x=1", "HF_TOKEN=***&x=1"),
        ("token: hunter2", "token: ***"),
    ],
)
def test_secrets_are_masked(text, shown):
    assert masked(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: boom",
        "http://host:80/x and http://other",
        "pad_token=50256",
        "round 1 (token 2)",
        "a=b, c: d",
        "",
    ],
)
def test_other_texts_are_left_alone(text):
    assert masked(text) == text


def test_an_incident_is_masked_in_all_its_texts():
    found = masked_incident(incident("a", 0, 1, 0, text=f"OSError: redis://me:{SECRET}@host"))
    assert SECRET not in repr(found)
    assert found.first is not None
    assert found.first.error is not None
    assert "redis://me:***@host" in found.first.error.callstack
    clean = incident("a", 0, 1, 0)
    assert masked_incident(clean) is clean
    assert replace(found, summary="") == replace(masked_incident(found), summary="")


def test_lines_of_the_ledger_are_masked():
    node = Node()
    node.begin()
    node.fail(summary=f"OSError: redis://me:{SECRET}@host")
    texts = [line.text for line in node.lines if isinstance(line, Note)]
    texts += [line.reason for line in node.lines if isinstance(line, RoundOver)]
    assert sum("***" in text for text in texts) == 2
    assert SECRET not in repr(node.lines)
