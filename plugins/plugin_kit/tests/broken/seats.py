"""Stores that are wrong about seats, records or runs."""

import threading

from broken.base import Cracked, caught_by, replace


@caught_by("a_seat_number_is_never_used_again")
class SeatsAreUsedAgain(Cracked):
    """The lowest number that is free is given."""

    def enlist(self, record, *, incarnation, ttl_s, wait):
        def work(model, now_s):
            model._last_seat = max(model._leases, default=0)
            return model.enlist(record, incarnation=incarnation, ttl_s=ttl_s, now_s=now_s)

        return self.inside(work, "enlist", wait)


@caught_by(
    "a_repeated_enlist_leaves_no_ghost",
    "a_repeated_enlist_finds_its_seat",
    "a_repeated_enlist_renews_the_lease",
    "a_repeated_enlist_replaces_the_record",
    "concurrent_enlists_of_one_incarnation_share_a_seat",
    "two_runs_do_not_meet",
    "unavailable_means_that_nothing_was_written",
)
class RepeatedEnlistLeavesAGhost(Cracked):
    """The incarnation is not looked for."""

    def enlist(self, record, *, incarnation, ttl_s, wait):
        def work(model, now_s):
            taken = [lease for lease in model._leases.values() if lease.incarnation == incarnation]
            for lease in taken:
                lease.incarnation += " "
            seat = model.enlist(record, incarnation=incarnation, ttl_s=ttl_s, now_s=now_s)
            for lease in taken:
                lease.incarnation = lease.incarnation[:-1]
            return seat

        return self.inside(work, "enlist", wait)


@caught_by("a_repeated_enlist_replaces_the_record")
class RepeatedEnlistKeepsTheOldRecord(Cracked):
    """The found seat is left as it was, but for its lease."""

    def enlist(self, record, *, incarnation, ttl_s, wait):
        def work(model, now_s):
            known = [lease.record for lease in model._leases.values() if lease.incarnation == incarnation]
            return model.enlist(known[0] if known else record, incarnation=incarnation, ttl_s=ttl_s, now_s=now_s)

        return self.inside(work, "enlist", wait)


@caught_by("a_repeated_enlist_renews_the_lease", "a_lease_lasts_its_whole_time_for_every_client")
class RepeatedEnlistDoesNotRenew(Cracked):
    """The found seat's lease is left as it was."""

    def enlist(self, record, *, incarnation, ttl_s, wait):
        def work(model, now_s):
            known = [lease.deadline_s for lease in model._leases.values() if lease.incarnation == incarnation]
            seat = model.enlist(record, incarnation=incarnation, ttl_s=ttl_s, now_s=now_s)
            if known and known[0] > now_s:
                model._leases[seat.number].deadline_s = known[0]
            return seat

        return self.inside(work, "enlist", wait)


@caught_by("concurrent_enlists_get_seats_of_their_own")
class EnlistIsNotAtomic(Cracked):
    """The next number is read by one request and written by another."""

    def enlist(self, record, *, incarnation, ttl_s, wait):
        last = self.inside(lambda model, now_s: model._last_seat, "members", wait)
        threading.Event().wait(0.005)

        def work(model, now_s):
            if not any(lease.incarnation == incarnation for lease in model._leases.values()):
                model._last_seat = last
            return model.enlist(record, incarnation=incarnation, ttl_s=ttl_s, now_s=now_s)

        return self.inside(work, "enlist", wait)


@caught_by(
    "a_seat_tells_how_many_are_ahead", "concurrent_enlists_get_seats_of_their_own", "renew_counts_the_members_ahead"
)
class AheadCountsItself(Cracked):
    def enlist(self, record, **given):
        seat = super().enlist(record, **given)
        return replace(seat, ahead=seat.ahead + 1)

    def renew(self, seat, **given):
        answer = super().renew(seat, **given)
        return answer and replace(answer, ahead=answer.ahead + 1)


@caught_by("a_seat_tells_how_many_are_ahead")
class AheadIsNotOfTheLiving(Cracked):
    """It is the number of seats that were ever given before."""

    def enlist(self, record, **given):
        seat = super().enlist(record, **given)
        return replace(seat, ahead=seat.number - 1)


@caught_by("members_come_in_order_of_their_seats")
class MembersAreInOrderOfText(Cracked):
    """Seat 10 comes before seat 2."""

    def members(self, *, wait):
        seen = super().members(wait=wait)
        return replace(seen, members=tuple(sorted(seen.members, key=lambda member: str(member.seat))))


@caught_by("a_record_is_any_bytes")
class RecordsAreText(Cracked):
    """What is no UTF-8 is replaced."""

    def members(self, *, wait):
        seen = super().members(wait=wait)
        texts = [replace(m, record=m.record.decode(errors="replace").encode()) for m in seen.members]
        return replace(seen, members=tuple(texts))


@caught_by("a_record_may_have_a_mebibyte")
class RecordsAreShort(Cracked):
    """Cut off at 64 KiB."""

    def enlist(self, record, **given):
        return super().enlist(record[: 2**16], **given)


@caught_by("update_of_a_gone_seat_writes_nothing", "an_emptied_server_is_noticed", "what_changes_nothing_moves_nothing")
class UpdateOfAGoneSeatWrites(Cracked):
    """A key that is not there is made."""

    def update(self, seat, record, *, wait):
        def work(model, now_s):
            if seat.number not in model._leases:
                model.enlist(record, incarnation=seat.incarnation, ttl_s=1e6, now_s=now_s)
                return True
            return model.update(seat, record, now_s=now_s)

        return self.inside(work, "update", wait)


@caught_by("update_of_anothers_seat_writes_nothing")
class UpdateIgnoresTheIncarnation(Cracked):
    """A seat is its number."""

    def update(self, seat, record, *, wait):
        def work(model, now_s):
            lease = model._leases.get(seat.number)
            known = seat if lease is None else replace(seat, incarnation=lease.incarnation)
            return model.update(known, record, now_s=now_s)

        return self.inside(work, "update", wait)


@caught_by("withdraw_leaves_anothers_seat_alone")
class WithdrawIgnoresTheIncarnation(Cracked):
    """A late withdrawal removes whoever has the seat."""

    def withdraw(self, seat, *, wait):
        def work(model, now_s):
            lease = model._leases.get(seat.number)
            model.withdraw(seat if lease is None else replace(seat, incarnation=lease.incarnation), now_s=now_s)

        self.inside(work, "withdraw", wait)


@caught_by("withdraw_is_idempotent", "withdraw_moves_members_and_departures")
class WithdrawOfAGoneSeatFails(Cracked):
    def withdraw(self, seat, *, wait):
        if seat.number not in [m.seat for m in self.members(wait=wait).members]:
            raise KeyError(seat.number)
        super().withdraw(seat, wait=wait)


@caught_by("two_runs_do_not_meet")
class RunsShareContent(Cracked):
    """Run ids are cut off at the first colon."""

    def __init__(self, settings, **given):
        super().__init__(replace(settings, run_id=settings.run_id.partition(":")[0]), **given)


@caught_by(
    "seats_are_in_order_of_arrival",
    "a_seat_number_is_never_used_again",
    "a_seat_tells_how_many_are_ahead",
    "a_withdrawn_incarnation_gets_a_new_seat",
    "an_expired_incarnation_gets_a_new_seat",
    "concurrent_enlists_get_seats_of_their_own",
    "members_come_in_order_of_their_seats",
    "renew_counts_the_members_ahead",
)
class SeatsAreRandom(Cracked):
    def enlist(self, record, *, incarnation, ttl_s, wait):
        def work(model, now_s):
            model._last_seat = (model._last_seat * 7919 + 104729) % 999983
            seat = model.enlist(record, incarnation=incarnation, ttl_s=ttl_s, now_s=now_s)
            model._leases = dict(sorted(model._leases.items()))
            return seat

        return self.inside(work, "enlist", wait)


@caught_by("a_withdrawn_incarnation_gets_a_new_seat", "an_expired_incarnation_gets_a_new_seat")
class SeatsAreKeptForWhoComesAgain(Cracked):
    """A list of all incarnations, of which a withdrawal removes none."""

    def enlist(self, record, *, incarnation, ttl_s, wait):
        def work(model, now_s):
            seats, last = self.kept(), model._last_seat
            if incarnation in seats:
                model._last_seat = seats[incarnation] - 1
            seat = model.enlist(record, incarnation=incarnation, ttl_s=ttl_s, now_s=now_s)
            model._last_seat = max(last, model._last_seat)
            model._leases = dict(sorted(model._leases.items()))
            seats[incarnation] = seat.number
            return seat

        return self.inside(work, "enlist", wait)

    def kept(self):
        return vars(self._server).setdefault("seats", {}).setdefault(self.settings.run_id, {})


@caught_by("a_seat_tells_its_incarnation", "a_repeated_enlist_renews_the_lease", "members_come_in_order_of_their_seats")
class IncarnationsAreUpperCase(Cracked):
    """Names are changed on the way, and changed back."""

    def enlist(self, record, **given):
        seat = super().enlist(record, **given)
        return replace(seat, incarnation=seat.incarnation.upper())

    def update(self, seat, record, *, wait):
        return super().update(_lower(seat), record, wait=wait)

    def renew(self, seat, **given):
        return super().renew(_lower(seat), **given)

    def withdraw(self, seat, *, wait):
        super().withdraw(_lower(seat), wait=wait)


def _lower(seat):
    return replace(seat, incarnation=seat.incarnation.lower())


@caught_by("update_replaces_the_record")
class UpdateWritesEverybodysRecord(Cracked):
    def update(self, seat, record, *, wait):
        def work(model, now_s):
            written = model.update(seat, record, now_s=now_s)
            for lease in model._leases.values() if written else ():
                lease.record = record
            return written

        return self.inside(work, "update", wait)


@caught_by(
    "withdraw_removes_the_member",
    "a_seat_tells_how_many_are_ahead",
    "renew_counts_the_live_members",
    "renew_counts_the_members_ahead",
    "renew_of_a_withdrawn_seat_says_that_it_is_gone",
    "renew_of_the_only_member_knows_no_other_lease",
    "update_of_a_gone_seat_writes_nothing",
    "withdraw_is_idempotent",
)
class WithdrawRemovesEverybody(Cracked):
    def withdraw(self, seat, *, wait):
        def work(model, now_s):
            model.withdraw(seat, now_s=now_s)
            if seat.number not in model._leases:
                model._leases.clear()

        self.inside(work, "withdraw", wait)
