"""Promises about seats, records and runs."""

import ipaddress
import math
from functools import partial

import pytest

from elastic_core.api.stores import Seat
from elastic_plugin_kit.conformance.kit import Kit, all_at_once, check_api_version, check_options
from elastic_plugin_kit.conformance.store_run import Client, StoreRun, budget, fresh

SHARED_OPTIONS = frozenset({"lease_ttl", "last_call_timeout", "join_timeout", "connect_timeout"})
MEBIBYTE = 2**20
BYTES = (b"", b"\0", b"\x00\xff\xfe\x80", bytes(range(256)), '{"a": "é"}'.encode(), b"12", b"a\r\nb\n", b"\xc3\x28")


class DeclarationPromises(Kit):
    """The declarations of a store."""

    def test_the_api_version_is_stated(self, run: StoreRun) -> None:
        """The class states the version of the interfaces that it was written for."""
        check_api_version(run.cls)

    def test_the_options_are_declared_well(self, run: StoreRun) -> None:
        """The core can report each wrong value of an option."""
        check_options(run.cls.__name__, run.cls.options)
        taken = SHARED_OPTIONS & {spec.name for spec in run.cls.options}
        assert not taken, (
            f"`options` declares {sorted(taken)}; expected none of them: every store has these options already"
        )

    def test_the_shortest_lease_is_a_time(self, run: StoreRun) -> None:
        """`min_ttl_s` is a number of seconds."""
        assert 0 < run.cls.min_ttl_s < math.inf, (
            f"`min_ttl_s` is {run.cls.min_ttl_s!r}; expected a finite number above 0"
        )

    def test_where_is_a_line_without_secrets(self, run: StoreRun) -> None:
        """`where` can be printed, also before there is a connection."""
        store = run.store()
        assert store.where, "`where` is empty; expected the endpoint for people"
        assert store.where.isprintable(), f"`where` is {store.where!r}; expected one line of printable text"
        userinfo, at, _ = store.settings.endpoint.rpartition("@")
        _, colon, password = userinfo.rpartition("//")[2].partition(":")
        if at and colon and password:
            assert password not in store.where, "`where` has the endpoint's password; expected it without secrets"

    def test_connect_returns_this_hosts_address(self, run: StoreRun) -> None:
        """An address that others may use, or the empty text where it is unknown."""
        address = run.store().connect(wait=budget())
        if address:
            ipaddress.ip_address(address.partition("%")[0])


class SeatPromises(Kit):
    """Which members there are, in what order, and with what record."""

    def test_seats_are_in_order_of_arrival(self, run: StoreRun) -> None:
        """Each new member gets a higher number than any before."""
        numbers = [run.client().enlist().number for _ in range(3)]
        assert numbers == sorted(set(numbers)), (
            f"members got the seats {numbers} in order of arrival; expected rising numbers"
        )

    def test_a_seat_tells_how_many_are_ahead(self, run: StoreRun) -> None:
        """`Seat.ahead` counts the live members with a lower number, and not the member itself."""
        client = run.client()
        seats = [client.enlist() for _ in range(3)]
        assert [seat.ahead for seat in seats] == [0, 1, 2]
        client.withdraw(seats[1])
        assert client.enlist().ahead == 2, "`Seat.ahead` counts a withdrawn member; expected only live members"

    def test_a_seat_tells_its_incarnation(self, run: StoreRun) -> None:
        """A seat's identity is number and incarnation."""
        assert run.client().enlist("mine").incarnation == "mine"

    def test_members_come_in_order_of_their_seats(self, run: StoreRun) -> None:
        """In order of numbers, not of texts; with more than ten, after renewals and updates."""
        client = run.client()
        seats = [client.enlist() for _ in range(12)]
        client.update(seats[3], b"new")
        client.renew(seats[5])
        expected = [(seat.number, seat.incarnation) for seat in seats]
        assert [(member.seat, member.incarnation) for member in client.members().members] == expected

    def test_a_repeated_enlist_finds_its_seat(self, run: StoreRun) -> None:
        """The same incarnation gets the same seat, on any connection."""
        first, again, other = run.client().enlist("inc"), run.client().enlist("inc"), run.client().enlist("other")
        assert again.number == first.number, "a repeated enlist of one incarnation got another seat; expected the same"
        assert other.number > again.number

    def test_a_repeated_enlist_leaves_no_ghost(self, run: StoreRun) -> None:
        """There is one member of an incarnation, however often its reply was lost."""
        client = run.client()
        for _ in range(3):
            client.enlist("inc")
        live = client.members().members
        assert len(live) == 1, f"three enlists of one incarnation made {len(live)} members; expected 1"

    def test_a_repeated_enlist_replaces_the_record(self, run: StoreRun) -> None:
        """The later record counts."""
        client = run.client()
        seat = client.enlist("inc", b"old")
        client.enlist("inc", b"new")
        assert client.records().get(seat.number) == b"new"

    def test_a_withdrawn_incarnation_gets_a_new_seat(self, run: StoreRun) -> None:
        """A member that left and enlists again gets the highest seat."""
        client = run.client()
        old = client.enlist("inc")
        other = client.enlist("other")
        client.withdraw(old)
        assert client.enlist("inc").number > other.number

    def test_concurrent_enlists_get_seats_of_their_own(self, run: StoreRun) -> None:
        """Members that arrive together get different numbers, and the right `ahead`."""
        clients = [run.client() for _ in range(8)]
        seats = all_at_once([client.enlist for client in clients], within_s=10, what="eight enlists")
        numbers = sorted(seat.number for seat in seats)
        assert len(set(numbers)) == len(seats), f"concurrent enlists got the seats {numbers}; expected different ones"
        assert clients[0].numbers() == numbers
        assert sorted(seat.ahead for seat in seats) == list(range(8)), (
            "`ahead` of concurrent enlists is wrong; expected 0 to 7, as when each seat was made"
        )

    def test_concurrent_enlists_of_one_incarnation_share_a_seat(self, run: StoreRun) -> None:
        """A call that was repeated while the first is still under way leaves no ghost."""
        works = [partial(run.client().enlist, "inc") for _ in range(4)]
        seats = all_at_once(works, within_s=10, what="four enlists")
        assert len({seat.number for seat in seats}) == 1, (
            "concurrent enlists of one incarnation got several seats; expected one"
        )
        assert len(run.client().members().members) == 1

    def test_a_seat_number_is_never_used_again(self, run: StoreRun) -> None:
        """Not the highest one, nor any after all members have left."""
        client = run.client()
        seen: list[int] = []
        for _ in range(3):
            seat = client.enlist()
            assert all(seat.number > number for number in seen), (
                f"enlist returned seat {seat.number} after {seen}; expected a higher number"
            )
            seen.append(seat.number)
            client.withdraw(seat)

    def test_a_record_is_any_bytes(self, run: StoreRun) -> None:
        """Records are kept as they are: empty, binary, no text."""
        client = run.client()
        for record in BYTES:
            seat = client.enlist(record=record)
            assert client.records().get(seat.number) == record, (
                f"enlist changed the record {record!r}; expected the same bytes"
            )
            client.update(seat, record + b"\x00\x80")
            assert client.records().get(seat.number) == record + b"\x00\x80", (
                f"update changed the record {record!r}; expected the same bytes"
            )

    def test_a_record_may_have_a_mebibyte(self, run: StoreRun) -> None:
        """Large records come back whole."""
        client = run.client()
        large = b"0123456789abcdef" * (MEBIBYTE // 16)
        seat = client.enlist(record=large)
        assert client.records().get(seat.number) == large


class LeavingPromises(Kit):
    """The effects of update and withdraw."""

    def test_update_replaces_the_record(self, run: StoreRun) -> None:
        """Of this member only, and others see it."""
        client = run.client()
        one, two = client.enlist(record=b"1"), client.enlist(record=b"2")
        assert client.update(one, b"new") is True
        assert run.client().records() == {one.number: b"new", two.number: b"2"}

    def test_update_of_a_gone_seat_writes_nothing(self, run: StoreRun) -> None:
        """It returns False, and makes no member."""
        client = run.client()
        gone, other = client.enlist(), client.enlist(record=b"other")
        client.withdraw(gone)
        assert client.update(gone, b"ghost") is False, "update of a withdrawn seat did not return False; expected False"
        assert client.records() == {other.number: b"other"}, (
            "update of a withdrawn seat wrote a record; expected no write"
        )

    def test_update_of_anothers_seat_writes_nothing(self, run: StoreRun) -> None:
        """The incarnation is part of the seat."""
        client = run.client()
        seat = client.enlist(record=b"mine")
        assert client.update(_another(seat), b"stolen") is False
        assert client.records() == {seat.number: b"mine"}

    def test_withdraw_removes_the_member(self, run: StoreRun) -> None:
        """At once, and no other member."""
        client = run.client()
        first, second = client.enlist(), client.enlist()
        client.withdraw(first)
        assert run.client().numbers() == [second.number]

    def test_withdraw_is_idempotent(self, run: StoreRun) -> None:
        """A seat that is gone is left alone."""
        client = run.client()
        first, second = client.enlist(), client.enlist()
        client.withdraw(first)
        client.withdraw(first)
        assert client.numbers() == [second.number]

    def test_withdraw_leaves_anothers_seat_alone(self, run: StoreRun) -> None:
        """A late withdrawal never removes another incarnation."""
        client = run.client()
        seat = client.enlist()
        client.withdraw(_another(seat))
        assert client.numbers() == [seat.number], (
            "withdraw with another incarnation removed the member; expected no effect"
        )
        assert client.renew(seat) is not None

    def test_two_runs_do_not_meet(self, run: StoreRun) -> None:
        """Members, documents, seats and revisions belong to one run id, whatever characters it has."""
        if not run.names_runs:
            pytest.skip("the fixture `connect` takes no run id")
        name = fresh("kit")
        for other in (f"{name} é/ü", f"{name}:round", f"{name}:members", f"{{{name}}}", f"{name}*", f"{name}%3A", name):
            _check_apart(run.client(name + "!"), run.client(other), other)


def _another(seat: Seat) -> Seat:
    return Seat(number=seat.number, incarnation=seat.incarnation + "x", ahead=seat.ahead)


def _check_apart(one: Client, two: Client, name: str) -> None:
    before = two.revisions()
    seat = one.enlist("inc")
    one.swap(b"one", None if (document := one.load()) is None else document.version)
    assert two.numbers() == [], f"run {name!r} has the members of another run; expected none"
    assert two.load() is None, f"run {name!r} has the document of another run; expected none"
    assert two.revisions() == before, f"another run's changes moved the topics of run {name!r}; expected no change"
    two.enlist("inc")
    two.swap(b"two")
    document = one.load()
    assert document is not None, f"a write of run {name!r} removed another run's document; expected no effect"
    assert document.value == b"one", f"run {name!r} replaced another run's document; expected no effect"
    assert one.numbers() == [seat.number], f"run {name!r} changed another run's members; expected no effect"
