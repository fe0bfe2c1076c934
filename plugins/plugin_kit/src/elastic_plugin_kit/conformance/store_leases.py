"""Promises about leases, and which clock decides about them."""

import pytest

from elastic_core.api.stores import Renewal, Seat, Topic
from elastic_plugin_kit.conformance.kit import Kit
from elastic_plugin_kit.conformance.store_run import SLACK_S, Client, Pause, StoreRun, another_hosts_clock

HOUR_S = 3600.0


class RenewalPromises(Kit):
    """The result of a renewal."""

    def test_renew_counts_the_live_members(self, run: StoreRun) -> None:
        """`live` is all of them, this one included."""
        client = run.client()
        seats = [client.enlist() for _ in range(3)]
        assert _renewed(client, seats[0]).live == 3
        client.withdraw(seats[1])
        assert _renewed(client, seats[0]).live == 2

    def test_renew_counts_the_members_ahead(self, run: StoreRun) -> None:
        """`ahead` is the live members with a lower seat, without this one."""
        client = run.client()
        seats = [client.enlist() for _ in range(3)]
        assert [_renewed(client, seat).ahead for seat in seats] == [0, 1, 2]
        client.withdraw(seats[0])
        assert [_renewed(client, seat).ahead for seat in seats[1:]] == [0, 1], (
            "renew counts a withdrawn member in `ahead`; expected only live members"
        )

    def test_renew_tells_when_the_next_other_lease_ends(self, run: StoreRun) -> None:
        """`next_expiry_s` is of the others' leases, not of one's own."""
        if run.cls.announces_expiry:
            pytest.skip("the store announces expiries: no timer is needed for them")
        client = run.client()
        short, middle, long_ = 10 * run.lease_s, 20 * run.lease_s, 40 * run.lease_s
        first, second, _ = client.enlist(ttl_s=short), client.enlist(ttl_s=middle), client.enlist(ttl_s=long_)
        _near(_renewed(client, first, short), middle)
        _near(_renewed(client, second, middle), short)

    def test_an_announced_expiry_is_expected_in_time(self, run: StoreRun) -> None:
        """If the store announces expiries, `next_expiry_s` is no later than the requested lease."""
        if not run.cls.announces_expiry:
            pytest.skip("the store does not announce expiries")
        client = run.client()
        lease_s = 10 * run.lease_s
        seat, _ = client.enlist(ttl_s=lease_s), client.enlist(ttl_s=lease_s)
        told_s = _renewed(client, seat, lease_s).next_expiry_s
        assert told_s is not None, "`next_expiry_s` is None with another live member; expected a number"
        assert 0 < told_s <= 1.01 * lease_s, (
            f"`next_expiry_s` is {told_s}; expected more than 0 and at most the lease of {lease_s:g} s"
        )

    def test_renew_of_the_only_member_knows_no_other_lease(self, run: StoreRun) -> None:
        """`next_expiry_s` is None."""
        client = run.client()
        seat, other = client.enlist(), client.enlist()
        client.withdraw(other)
        assert _renewed(client, seat).next_expiry_s is None

    def test_renew_of_a_withdrawn_seat_says_that_it_is_gone(self, run: StoreRun) -> None:
        """None, and the member does not come back by it."""
        client = run.client()
        gone, other = client.enlist(), client.enlist()
        client.withdraw(gone)
        assert client.renew(gone) is None, "renew of a withdrawn seat returned a Renewal; expected None"
        assert client.numbers() == [other.number], "renew of a withdrawn seat made a member; expected none"

    def test_renew_of_anothers_seat_says_that_it_is_gone(self, run: StoreRun) -> None:
        """The incarnation is part of the seat."""
        client = run.client()
        seat = client.enlist("mine")
        assert client.renew(Seat(number=seat.number, incarnation="other", ahead=0)) is None


class LeasePromises(Kit):
    """How long a member without renewals stays."""

    def test_a_lease_lasts_its_whole_time_for_every_client(self, run: StoreRun) -> None:
        """However it was got: at 0.97 of it the member is there, and soon after its end it is not, for all clients.

        A node is replaced when its lease ends, and stops its workers before; a lease that ends earlier than it says
        has both at work. So does one that each client judges by a clock of its own.
        """
        for times in (2, 4, 8):
            if _leases_last(run, times * run.lease_s):
                return
        pytest.skip(f"this machine is too slow to look within the last 3 % of {8 * run.lease_s:g} s")

    def test_a_member_stays_until_its_lease_ends(self, run: StoreRun) -> None:
        """A lease lasts as long as was asked."""
        client, silent, speaking = _two(run, silent_ttl_s=4 * run.lease_s)
        run.pass_time(2 * run.lease_s, renewing=[(client, speaking)])
        run.expect(
            silent.number in client.numbers(), silent, "a member was gone before its lease ended; expected it to stay"
        )

    def test_a_member_whose_lease_has_ended_goes(self, run: StoreRun) -> None:
        """While other members renew, the silent one expires."""
        client, silent, speaking = _two(run)
        _expect_expiry(run, client, silent, speaking)

    def test_members_leaves_out_whose_lease_has_ended(self, run: StoreRun) -> None:
        """`members` removes expired members itself, and watchers are notified."""
        lease_s = 4 / 3 * run.lease_s  # whole seconds, of three
        for _ in range(3):
            lived = run.stopwatch()
            client, silent, speaking = _two(run, silent_ttl_s=lease_s)
            run.pass_time(1.2 * run.lease_s, renewing=[(client, speaking)])
            unheard = run.stopwatch()
            before = client.revisions()
            ended = lived() >= lease_s  # and a renewal may have told of it
            run.pass_time(0.4 * run.lease_s)
            here, after = client.numbers(), client.revisions()
            if ended or unheard() > 0.6 * run.lease_s:  # so long without a renewal may be taken for the server's pause
                for seat in (silent, speaking):
                    client.withdraw(seat)
                continue
            assert here == [speaking.number], (
                f"`members` returned seat {silent.number} after its lease had ended; expected only live members"
            )
            assert after.departures > before.departures, (
                "`members` removed an expired member, and `departures` did not move; expected it to move"
            )
            return
        pytest.skip("this machine is too slow to look between a lease's end and what may be taken for a pause")

    def test_a_renewed_lease_lasts(self, run: StoreRun) -> None:
        """A member that renews in time stays for many leases."""
        client = run.client()
        seats = [client.enlist(ttl_s=run.lease_s) for _ in range(2)]
        run.pass_time(3 * run.lease_s, renewing=[(client, seat) for seat in seats])
        here = client.numbers()
        for seat in seats:
            run.expect(seat.number in here, seat, "a member that renewed in time was gone; expected it to stay")

    def test_a_repeated_enlist_renews_the_lease(self, run: StoreRun) -> None:
        """It counts as a renewal."""
        client, silent, speaking = _two(run, silent_ttl_s=2 * run.lease_s)
        run.pass_time(1.2 * run.lease_s, renewing=[(client, speaking)])
        client.enlist(silent.incarnation, ttl_s=4 * run.lease_s)
        run.pass_time(1.2 * run.lease_s, renewing=[(client, speaking)])
        run.expect(
            silent.number in client.numbers(), silent, "a repeated enlist did not renew the lease; expected a new lease"
        )

    def test_renew_of_an_expired_seat_says_that_it_is_gone(self, run: StoreRun) -> None:
        """None, and the member does not come back by it."""
        client, silent, speaking = _two(run)
        _expect_expiry(run, client, silent, speaking)
        assert client.renew(silent) is None, "renew of an expired seat returned a Renewal; expected None"
        assert silent.number not in client.numbers(), "renew of an expired seat made a member; expected none"

    def test_an_expired_incarnation_gets_a_new_seat(self, run: StoreRun) -> None:
        """An expired member that enlists again gets the highest seat."""
        client, silent, speaking = _two(run)
        _expect_expiry(run, client, silent, speaking)
        assert client.enlist(silent.incarnation).number > speaking.number

    def test_an_expiry_is_told_to_watchers(self, run: StoreRun) -> None:
        """`members` and `departures` move when a renewal finds an expired member."""
        client, _, speaking = _two(run)
        before = client.revisions()
        seen = [before]

        def departed() -> bool:
            seen.append(client.revisions())
            return seen[-1].departures > before.departures

        run.pass_time_until(
            departed,
            within_s=run.lease_s + SLACK_S,
            what="`departures` did not move when a member expired; expected it to move",
            renewing=[(client, speaking)],
        )
        assert seen[-1].members > before.members, "`members` did not move when a member expired; expected it to move"

    def test_an_announced_expiry_ends_a_watch(self, run: StoreRun) -> None:
        """If the store announces expiries, a watch of departures ends with one between two renewals."""
        if not run.cls.announces_expiry:
            pytest.skip("the store does not announce expiries")
        client, _, speaking = _two(run, silent_ttl_s=2 * run.lease_s)
        run.pass_time(1.6 * run.lease_s, renewing=[(client, speaking)])
        since = client.revisions()
        # Shorter than the pause after which no member may expire.
        seen = client.watch(since, Topic.DEPARTURES, timeout_s=0.6 * run.lease_s + SLACK_S)
        assert seen.changed == {Topic.DEPARTURES}, (
            "a lease ended, and the watch of departures did not return it; expected `changed` to have it"
        )
        assert client.numbers() == [speaking.number]

    def test_leases_are_judged_by_the_stores_clock(self, run: StoreRun) -> None:
        """Another host's clock, an hour ahead, neither lengthens nor ends a lease."""
        client, speaking = run.client(), run.client().enlist()
        with another_hosts_clock(HOUR_S):
            silent = client.enlist()
            assert client.numbers() == [speaking.number, silent.number], (
                "a client's clock ended another member's lease; expected the store's clock to decide"
            )
            assert client.renew(silent, ttl_s=run.lease_s) is not None
        assert client.renew(speaking, ttl_s=run.lease_s) is not None, (
            "a client's clock ended another member's lease; expected the store's clock to decide"
        )
        _expect_expiry(
            run,
            client,
            silent,
            speaking,
            why="a client's clock lengthened a lease; expected the store's clock to decide",
        )


class PausePromises(Kit):
    """If no member renewed, the server was paused."""

    def test_after_a_silence_of_all_nobody_is_expired(self, run: StoreRun) -> None:
        """The first renewal after it extends every lease."""
        client = run.client()
        seats = [client.enlist(ttl_s=run.lease_s) for _ in range(3)]
        run.pass_time(1.5 * run.lease_s)
        for seat in reversed(seats):
            assert client.renew(seat, ttl_s=run.lease_s) is not None, (
                "a member expired during a pause of the server; expected every lease to be extended first"
            )
        assert len(client.numbers()) == 3

    def test_after_a_silence_of_all_the_silent_have_one_lease(self, run: StoreRun) -> None:
        """Extended by one lease, not for ever."""
        client, silent, speaking = _two(run)
        run.pass_time(1.5 * run.lease_s)
        assert _renewed(client, speaking, run.lease_s).live == 2, (
            "a member expired during a pause of the server; expected every lease to be extended first"
        )
        _expect_expiry(run, client, silent, speaking)

    def test_after_a_silence_of_all_watchers_are_told_nothing(self, run: StoreRun) -> None:
        """Extending leases is no departure."""
        client = run.client()
        seats = [client.enlist(ttl_s=run.lease_s) for _ in range(2)]
        before = client.revisions()
        run.pass_time(1.5 * run.lease_s)
        for seat in seats:
            client.renew(seat, ttl_s=run.lease_s)
        assert client.revisions().departures == before.departures

    def test_after_a_silence_of_all_a_newcomer_expires_nobody(self, run: StoreRun) -> None:
        """The first enlist after it extends every lease, too."""
        client = run.client()
        seats = [client.enlist(ttl_s=run.lease_s) for _ in range(3)]
        run.pass_time(1.5 * run.lease_s)
        newcomer = run.client().enlist(ttl_s=run.lease_s)
        here = {*client.numbers()}
        assert here == {newcomer.number, *(seat.number for seat in seats)}, (
            "an enlist after a pause removed members; expected every lease to be extended first"
        )

    def test_a_paused_server_expires_nobody(self, run: StoreRun, pause_server: Pause) -> None:
        """A server that was paused for longer than a lease has all members when it goes on."""
        clients = [run.client() for _ in range(2)]
        seats = [client.enlist(ttl_s=run.lease_s) for client in clients]
        with pause_server():
            run.pass_time(1.5 * run.lease_s)
        for client, seat in zip(clients, seats, strict=True):
            assert client.renew(seat, ttl_s=run.lease_s) is not None, (
                "a member expired during a pause of the server; expected every lease to be extended first"
            )


def _leases_last(run: StoreRun, lease_s: float) -> bool:
    """Check leases that two clients have given, got in every way; return whether the look came in time to say so."""
    clients = [run.client() for _ in range(2)]
    speaking = clients[0].enlist()
    renewed = {count: [client.enlist(ttl_s=lease_s) for client in clients] for count in (1, 5)}
    again = [client.enlist(ttl_s=lease_s) for client in clients]
    run.pass_time(0.2 * lease_s, renewing=[(clients[0], speaking)])  # what renews nothing is seen, too
    if not _stays(run, clients[0], speaking):  # by a long lease: what follows may take longer than a short one
        return False
    elapsed = run.stopwatch()
    got = {"an enlist": [client.enlist(ttl_s=lease_s) for client in clients]}
    got["a repeated enlist"] = [
        client.enlist(seat.incarnation, ttl_s=lease_s) for client, seat in zip(clients, again, strict=True)
    ]
    for count, seats in renewed.items():
        for client, seat in zip(clients, seats, strict=True):
            if not all(_stays(run, client, seat, lease_s) for _ in range(count)):
                return False
        got[f"the renewal number {count}"] = seats
    while (left_s := 0.97 * lease_s - elapsed()) > 0:
        run.pass_time(min(left_s, run.lease_s / 5))
        if left_s > run.lease_s / 5 and not _stays(run, clients[0], speaking):
            return False
    looked_s = elapsed()
    seen = [set(client.numbers()) for client in clients]
    if elapsed() >= lease_s:
        return False
    for way, seats in got.items():
        for giver, seat in enumerate(seats):
            for looker, numbers in enumerate(seen):
                whose = "another client" if giver != looker else "the same client"
                assert seat.number in numbers, (
                    f"a lease of {lease_s:g} s by {way} ended after {looked_s:.3g} s for {whose}; expected it to last"
                )
    silent = {seat.number for seats in got.values() for seat in seats}
    run.pass_time_until(
        lambda: all(silent.isdisjoint(client.numbers()) for client in clients),
        within_s=SLACK_S + run.lease_s,
        what=f"members are there after their leases of {lease_s:g} s ended; expected them gone",
        renewing=[(clients[0], speaking)],
    )
    return True


def _stays(run: StoreRun, client: Client, seat: Seat, ttl_s: float | None = None) -> bool:
    """Renew a seat; return whether it was there. Fail where it was not and its lease can't have ended."""
    here = client.renew(seat, ttl_s=ttl_s) is not None
    assert here or run.may_have_ended(seat), "a member that renewed in time was gone; expected it to stay"
    return here


def _two(run: StoreRun, *, silent_ttl_s: float | None = None) -> tuple[Client, Seat, Seat]:
    """Return a client, a member without renewals, and one that the test renews."""
    client = run.client()
    return client, client.enlist(ttl_s=silent_ttl_s or run.lease_s), client.enlist(ttl_s=run.lease_s)


def _renewed(client: Client, seat: Seat, ttl_s: float | None = None) -> Renewal:
    answer = client.renew(seat, ttl_s=ttl_s)
    assert answer is not None, "renew of a live seat returned None; expected a Renewal"
    return answer


def _near(answer: Renewal, expected_s: float) -> None:
    told = f"`next_expiry_s` is {answer.next_expiry_s}; expected about {expected_s:g} s"
    assert answer.next_expiry_s is not None, told
    assert 0.6 * expected_s <= answer.next_expiry_s <= 1.01 * expected_s + 0.01, told


def _expect_expiry(run: StoreRun, client: Client, silent: Seat, speaking: Seat, *, why: str = "") -> None:
    def alone() -> bool:
        here = client.numbers()
        if silent.number in here or run.may_have_ended(speaking):
            return False  # or looked at too late
        assert speaking.number in here, "a member that renewed in time was gone; expected only the silent one to expire"
        return True

    run.pass_time_until(
        alone,
        within_s=run.lease_s + SLACK_S,
        what=why or f"a member is there after its lease of {run.lease_s:g} s ended; expected it gone",
        renewing=[(client, speaking)],
    )
