"""What the calls of a store make of content that somebody else has put under a run's keys."""

from collections.abc import Callable, Mapping

from elastic_core.api import CoordinationStore, ElasticError, WaitBudget
from elastic_core.api.stores import BackendError, Document, Revisions, Seat, Topic
from elastic_core.rendezvous.member.documents import ControlDocument, MemberRecord, RoundDocument, decode, encode

VALUES = {
    "rubbish": b"rubbish",
    "not UTF-8": b"\xff\xfe7",
    "a number out of range": b"1" + b"0" * 30,
    "32 MiB": b'{"v":5,"epoch":"' + b"x" * (32 << 20) + b'"}',
}
RECORD = encode(MemberRecord(epoch="e", node="n", state="ready"))
DOCUMENTS = {
    "control": encode(ControlDocument(epoch="e", attempt=0, secret="s")),
    "round": encode(
        RoundDocument(epoch="e", token=1, nonce="n", index=1, master_addr="h", master_port=1, roster=()),
    ),
}
LEASE_S = 30.0


def _budget() -> WaitBudget:
    return WaitBudget.lasting(10)


def begin(store: CoordinationStore) -> Seat:
    """Make a run with one member and both documents; return the member's seat."""
    seat = store.enlist(RECORD, incarnation="a", ttl_s=LEASE_S, wait=_budget())
    for key, new in DOCUMENTS.items():
        assert store.swap(key, new, expect=None, keep_s=600, wait=_budget()).applied
    store.watch(Revisions(), tuple(Topic), timeout_s=1, wait=_budget())
    return seat


def errors(store: CoordinationStore, seat: Seat) -> Mapping[str, str]:
    """Make each call, and return what those said that failed: errors of ours, of one line. No other is caught."""

    def read(document: Document | None, key: str) -> None:
        if document is not None:
            decode(document.value, ControlDocument if key == "control" else RoundDocument)

    def members() -> None:
        for member in store.members(wait=_budget()).members:
            decode(member.record, MemberRecord)

    calls: dict[str, Callable[[], object]] = {
        "members": members,
        "survey": lambda: store.survey(tuple(DOCUMENTS), wait=_budget()),
        "watch": lambda: store.watch(Revisions(), tuple(Topic), timeout_s=0, wait=_budget()),
        "wait": lambda: store.watch(
            Revisions(birth="", members=1 << 99, departures=1 << 99, round=1 << 99, control=1 << 99),
            tuple(Topic),
            timeout_s=0.05,
            wait=_budget(),
        ),
        "age": lambda: store.keep_age_s(wait=_budget()),
        "renew": lambda: store.renew(seat, ttl_s=LEASE_S, wait=_budget()),
        "update": lambda: store.update(seat, RECORD, wait=_budget()),
        **{f"load {key}": lambda key=key: read(store.load(key, wait=_budget()), key) for key in DOCUMENTS},
        **{
            f"swap {key}": lambda key=key: read(
                store.swap(key, b"", expect="1-none", keep_s=600, wait=_budget()).current, key
            )
            for key in DOCUMENTS
        },
        "enlist": lambda: store.enlist(RECORD, incarnation="b", ttl_s=LEASE_S, wait=_budget()),
    }
    found: dict[str, str] = {}
    for name, call in calls.items():
        try:
            call()
        except ElasticError as error:
            found[name] = f"{'' if isinstance(error, BackendError) else type(error).__name__} {error}"
    for text in found.values():
        assert text.startswith((" ", "RendezvousStateError the store holds")), text
        assert "\n" not in text, text
        assert len(text) < 400, text
    return found


def is_refused(found: Mapping[str, str], key: str) -> bool:
    """Return whether some call has named the key, or the document that it is of, and what to do."""
    return any(
        (("did not write" in text and key in text) or "the store holds" in text) and "Try: another --rdzv-id" in text
        for text in found.values()
    )
