"""What a run's documents may be, and what reading another's content becomes."""

import json

import pytest

from elastic_core.api.rendezvous import RendezvousStateError
from elastic_core.api.stores import BackendRefusedError, BackendUnavailableError, own_content
from elastic_core.rendezvous.member.documents import LARGEST_BYTES, ControlDocument, MemberRecord, RoundDocument, decode


@pytest.mark.parametrize("kind", [ControlDocument, RoundDocument, MemberRecord])
def test_a_document_that_is_too_large_is_not_decoded(kind):
    with pytest.raises(RendezvousStateError) as caught:
        decode(b'{"v":5,' + bytes(LARGEST_BYTES), kind)
    assert str(caught.value) == (
        f"the store holds a {kind.__name__} of 16777223 bytes; no version writes more than 16777216. "
        "Try: another --rdzv-id"
    )


@pytest.mark.parametrize(
    "read",
    [
        lambda: int(b"rubbish"),
        lambda: int("1" * 5000),
        lambda: int(float("inf")),
        lambda: b"\xff".decode(),
        lambda: json.loads("{"),
        lambda: json.loads("[]")["lease"],
        lambda: json.loads("{}")["lease"],
    ],
)
@pytest.mark.parametrize(("key", "shown"), [("a/b", "'a/b'"), (b"a\xff\n", "'a\N{REPLACEMENT CHARACTER}\\n'")])
def test_what_can_not_be_read_is_one_line_that_names_the_key(read, key, shown):
    with pytest.raises(BackendRefusedError) as caught, own_content(key):
        read()
    assert str(caught.value) == (
        f"the run's content has something that this version did not write, at key {shown}. Try: another --rdzv-id"
    )


def test_errors_of_ours_and_defects_pass():
    for error in (BackendUnavailableError("gone"), AttributeError("a defect")):
        with pytest.raises(type(error)), own_content("k"):
            raise error


def test_a_caller_may_say_what_reading_raises():
    with pytest.raises(ValueError, match="not this"), own_content("k", (KeyError,)):
        raise ValueError("not this")
