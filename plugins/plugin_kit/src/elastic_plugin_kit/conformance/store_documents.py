"""Promises about documents."""

from collections.abc import Callable

import pytest

from elastic_core.api import SYSTEM_CLOCK
from elastic_core.api.stores import CONTROL_KEY, ROUND_KEY, Document, Swapped
from elastic_plugin_kit.conformance.kit import Kit, all_at_once
from elastic_plugin_kit.conformance.store_run import Client, StoreRun
from elastic_plugin_kit.conformance.store_seats import BYTES, MEBIBYTE


class SwapPromises(Kit):
    """A document is replaced only where it is the one that the writer knows."""

    def test_a_missing_document_is_none(self, run: StoreRun) -> None:
        """Of every key."""
        client = run.client()
        assert [client.load(key) for key in (ROUND_KEY, CONTROL_KEY, "never")] == [None, None, None]

    def test_swap_makes_a_document_where_there_is_none(self, run: StoreRun) -> None:
        """Applied; the answer is what others load."""
        swapped = run.client().swap(b"one")
        assert _applied(swapped).value == b"one"
        assert run.client().load() == swapped.current, "swap and load returned different documents; expected the same"

    def test_swap_replaces_the_version_that_it_knows(self, run: StoreRun) -> None:
        """Applied; the new version is what others load."""
        client = run.client()
        one = _applied(client.swap(b"one"))
        two = _applied(client.swap(b"two", one.version))
        assert run.client().load() == two
        assert two.value == b"two"

    def test_what_another_client_has_swapped_is_read(self, run: StoreRun) -> None:
        """At once: no client answers from what it has read before."""
        writer, reader = run.client(), run.client()
        one = _applied(writer.swap(b"one"))
        before = reader.load()
        _applied(writer.swap(b"two", one.version))
        after = reader.load()
        values = before and before.value, after and after.value
        assert values == (b"one", b"two"), (
            f"a client loaded {values[0]!r}, then {values[1]!r}; expected b'one', then the later b'two'"
        )

    def test_a_document_is_of_the_types_of_the_interface(self, run: StoreRun) -> None:
        """Bytes and a version: a client library may have made text, or a view, of them."""
        client = run.client()
        swapped = client.swap(b"one")
        for call, found in (("swap", swapped.current), ("load", client.load())):
            assert type(found) is Document, f"{call} returned {type(found).__name__}; expected Document"
            given = type(found.value).__name__, type(found.version).__name__
            assert given == ("bytes", "str"), (
                f"{call} returned a document of {' and '.join(given)}; expected bytes and str"
            )

    def test_swap_of_no_document_is_refused_where_there_is_one(self, run: StoreRun) -> None:
        """`expect=None` never overwrites."""
        client = run.client()
        one = _applied(client.swap(b"one"))
        assert not client.swap(b"two").applied, "swap with expect=None replaced a document; expected it to be rejected"
        assert client.load() == one

    def test_swap_of_another_version_is_refused(self, run: StoreRun) -> None:
        """One that was replaced is another."""
        client = run.client()
        one = _applied(client.swap(b"one"))
        two = _applied(client.swap(b"two", one.version))
        assert not client.swap(b"three", one.version).applied, (
            "swap with an old version as `expect` was applied; expected it to be rejected"
        )
        assert client.load() == two, "a rejected swap changed the document; expected no write"

    def test_swap_of_a_missing_document_is_refused(self, run: StoreRun) -> None:
        """`current` is None, and no document is made."""
        client = run.client()
        version = _applied(client.swap(b"x", key="other")).version
        swapped = client.swap(b"y", version)
        assert not swapped.applied
        assert swapped.current is None
        assert client.load() is None

    def test_a_refused_swap_returns_what_stands(self, run: StoreRun) -> None:
        """The caller need not load it."""
        client = run.client()
        one = _applied(client.swap(b"one"))
        two = _applied(client.swap(b"two", one.version))
        for expect in (None, one.version):
            current = client.swap(b"three", expect).current
            assert current == two, f"a rejected swap returned {current}; expected the current document {two}"

    def test_a_version_is_never_used_again(self, run: StoreRun) -> None:
        """Not even for the same bytes: a slow writer must not overwrite what it has never seen."""
        client = run.client()
        versions: list[str] = []
        for value in (b"a", b"b", b"a", b"b", b"a", b"a"):
            current = _applied(client.swap(value, versions[-1] if versions else None))
            assert current.version not in versions, (
                f"the version {current.version!r} was used twice; expected a new one for each swap"
            )
            versions.append(current.version)
        assert not any(client.swap(b"late", version).applied for version in versions[:-1]), (
            "swap accepted an old version; expected it to be rejected"
        )

    def test_concurrent_swaps_are_applied_once(self, run: StoreRun) -> None:
        """Of those that expect the same version exactly one is applied; the others return the new document."""
        clients = [run.client() for _ in range(8)]
        expect: str | None = None
        for turn in range(3):
            values = [f"{turn}-{i}".encode() for i in range(8)]
            works = [_swapping(client, value, expect) for client, value in zip(clients, values, strict=True)]
            answers = all_at_once(works, within_s=10, what="eight swaps")
            won = [value for value, answer in zip(values, answers, strict=True) if answer.applied]
            assert len(won) == 1, f"{len(won)} of eight swaps that expected the same version were applied; expected 1"
            current = clients[0].load()
            assert current is not None
            assert current.value == won[0]
            assert all(answer.current == current for answer in answers), (
                "a rejected swap did not return the current document; expected the one that was applied"
            )
            expect = current.version


class DocumentPromises(Kit):
    """What documents hold, and for how long."""

    def test_keys_are_independent(self, run: StoreRun) -> None:
        """A swap of one document leaves the others as they are."""
        client = run.client()
        made = {key: _applied(client.swap(key.encode(), key=key)) for key in (ROUND_KEY, CONTROL_KEY, "a key/of:ours")}
        _applied(client.swap(b"new", made[ROUND_KEY].version))
        for key in (CONTROL_KEY, "a key/of:ours"):
            assert client.load(key) == made[key], (
                f"a swap of another key changed the document {key!r}; expected no change"
            )

    def test_documents_and_members_are_apart(self, run: StoreRun) -> None:
        """A document whose key is a topic's name is a document."""
        client = run.client()
        seat = client.enlist()
        _applied(client.swap(b"x", key="members"))
        assert client.numbers() == [seat.number]

    def test_a_document_is_any_bytes(self, run: StoreRun) -> None:
        """Documents are kept as they are: empty, binary, no text."""
        client, version = run.client(), None
        for value in BYTES:
            current = _applied(client.swap(value, version))
            loaded = client.load()
            assert loaded is not None, f"load returned None for the document {value!r}; expected the document"
            assert (current.value, loaded.value) == (value, value), (
                f"the document {value!r} came back as {loaded.value!r}; expected the same bytes"
            )
            version = current.version

    def test_a_document_may_have_a_mebibyte(self, run: StoreRun) -> None:
        """Large documents come back whole."""
        client = run.client()
        large = b"0123456789abcdef" * (MEBIBYTE // 16)
        _applied(client.swap(large))
        loaded = client.load()
        assert loaded is not None
        assert loaded.value == large

    def test_content_is_kept_while_members_call(self, run: StoreRun) -> None:
        """`keep_s` counts from the last call of any member."""
        client = run.client()
        seat = client.enlist(ttl_s=run.lease_s)
        since_s = run.stopwatch()
        one = _applied(client.swap(b"x", keep_s=2 * run.lease_s))
        run.pass_time(3 * run.lease_s, renewing=[(client, seat)])
        kept = client.load() == one
        if not kept and since_s() > 4.5 * run.lease_s:  # two calls may have been keep_s apart
            pytest.skip(f"this machine is too slow: three leases took {since_s():.1f} s")
        assert kept, "a document was removed though a member renewed within keep_s; expected it kept"
        assert client.numbers() == [seat.number]

    def test_the_age_of_keep_s_is_not_that_of_the_last_call(self, run: StoreRun) -> None:
        """`keep_age_s`, where a store has it, counts from the change of `keep_s`, not from a later load or swap."""
        client, late = run.client(), run.client()
        one = _applied(client.swap(b"x", keep_s=100.0))
        run.pass_time(2 * run.lease_s)
        began_s = SYSTEM_CLOCK.monotonic_s()
        two = _applied(client.swap(b"verdict", one.version, keep_s=200.0))
        age_s = late.keep_age_s()
        if age_s is None:
            return
        # A server may count whole seconds; a busy machine adds to what has passed.
        within_s = SYSTEM_CLOCK.monotonic_s() - began_s + 1.0
        assert 0 <= age_s <= within_s, f"keep_age_s returned {age_s} s; expected 0 to {within_s} s"
        run.pass_time(2 * run.lease_s)
        _applied(client.swap(b"the same", two.version, keep_s=200.0))
        late.load()
        age_s = late.keep_age_s()
        within_s = SYSTEM_CLOCK.monotonic_s() - began_s + 2 * run.lease_s + 1.0
        assert age_s is not None, "keep_age_s returned None after a number; expected a number"
        assert 2 * run.lease_s - 1.0 <= age_s <= within_s, (
            f"keep_age_s returned {age_s} s; expected about {2 * run.lease_s} s"
        )

    def test_content_is_dropped_when_nobody_calls(self, run: StoreRun) -> None:
        """Some time after `keep_s` nothing is left: no server fills up with old runs."""
        client = run.client()
        old = _applied(client.swap(b"x", keep_s=run.lease_s))
        run.pass_time(2 * run.lease_s + 0.5)
        assert client.load() is None, "a document was there after keep_s without calls; expected None"
        swapped = client.swap(b"y", old.version)
        assert not swapped.applied, "swap accepted the version of a removed document; expected it to be rejected"


def _applied(swapped: Swapped) -> Document:
    assert swapped.applied, "swap was rejected with the current version as `expect`; expected it to be applied"
    assert swapped.current is not None, "an applied swap returned None as `current`; expected the new document"
    return swapped.current


def _swapping(client: Client, value: bytes, expect: str | None) -> Callable[[], Swapped]:
    return lambda: client.swap(value, expect)
