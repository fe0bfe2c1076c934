"""Stores that are wrong about leases."""

import time

from broken.base import Cracked, caught_by, replace
from elastic_core.api import CoordinationStore
from elastic_core.api.stores import Topic

_BOOTED_S = time.time_ns() / 1e9 - time.perf_counter()
"""By the one clock that no test of the kit moves."""

_NOBODY_EXPIRES = (
    "a_lease_lasts_its_whole_time_for_every_client",
    "a_member_whose_lease_has_ended_goes",
    "after_a_silence_of_all_the_silent_have_one_lease",
    "an_expired_incarnation_gets_a_new_seat",
    "an_expiry_is_told_to_watchers",
    "leases_are_judged_by_the_stores_clock",
    "a_survey_tells_whose_lease_has_ended",
    "members_leaves_out_whose_lease_has_ended",
    "renew_of_an_expired_seat_says_that_it_is_gone",
    "renew_tells_when_the_next_other_lease_ends",
)
"""What notices that the dead stay, however that comes."""


@caught_by(*_NOBODY_EXPIRES)
class NothingExpires(Cracked):
    """Leases are kept and never looked at."""

    def enlist(self, record, *, ttl_s, **given):
        return super().enlist(record, ttl_s=1e9, **given)

    def renew(self, seat, *, ttl_s, **given):
        return super().renew(seat, ttl_s=1e9, **given)


@caught_by("leases_are_judged_by_the_stores_clock")
class LeasesEndByTheClientsClock(Cracked):
    """The client writes when its lease ends, and looks whose has."""

    def _now(self, now_s):
        return now_s + time.time_ns() / 1e9 - time.perf_counter() - _BOOTED_S

    def enlist(self, record, *, incarnation, ttl_s, wait):
        def work(model, now_s):
            if not model._paused(ttl_s, now_s):
                model._heard_s = None  # it knows a pause by the server's clock
            return model.enlist(record, incarnation=incarnation, ttl_s=ttl_s, now_s=self._now(now_s))

        return self.inside(work, "enlist", wait)

    def members(self, *, wait):
        return self.inside(lambda model, now_s: model.members(now_s=self._now(now_s)), "members", wait)


@caught_by(
    "a_member_stays_until_its_lease_ends",
    "a_lease_lasts_its_whole_time_for_every_client",
    "a_repeated_enlist_renews_the_lease",
    "members_leaves_out_whose_lease_has_ended",
    "renew_tells_when_the_next_other_lease_ends",
)
class LeasesAreTooShort(Cracked):
    """Somebody took the time for the renewal period."""

    def enlist(self, record, *, ttl_s, **given):
        return super().enlist(record, ttl_s=ttl_s / 3, **given)


@caught_by("a_lease_lasts_its_whole_time_for_every_client")
class RenewalsAreShort(Cracked):
    """Somebody took something off for the way there."""

    def renew(self, seat, *, ttl_s, **given):
        return super().renew(seat, ttl_s=0.8 * ttl_s, **given)


@caught_by("a_lease_lasts_its_whole_time_for_every_client", "members_leaves_out_whose_lease_has_ended")
class FirstLeasesAreShort(Cracked):
    """The same for newcomers alone."""

    def enlist(self, record, *, ttl_s, **given):
        return super().enlist(record, ttl_s=0.8 * ttl_s, **given)


@caught_by("a_lease_lasts_its_whole_time_for_every_client", "the_age_of_keep_s_is_not_that_of_the_last_call")
class EachClientHasAClockOfItsOwn(Cracked):
    """By a few seconds, as hosts without a time service have."""

    def __init__(self, *args, server, **kwargs):
        server.clients = getattr(server, "clients", 0) + 1
        super().__init__(*args, server=_Ahead(server, 3.0 * server.clients), **kwargs)


class _Ahead:
    def __init__(self, server, ahead_s):
        self._server = server
        self._ahead_s = ahead_s

    def __getattr__(self, name):
        return getattr(self._server, name)

    def call(self, name, run_id, work, **given):
        return self._server.call(name, run_id, lambda model, now_s: work(model, now_s + self._ahead_s), **given)


@caught_by(
    "renew_of_an_expired_seat_says_that_it_is_gone",
    "an_emptied_server_is_noticed",
    "renew_of_a_withdrawn_seat_says_that_it_is_gone",
    "what_changes_nothing_moves_nothing",
)
class RenewBringsBackTheDead(Cracked):
    """A key that is not there is made."""

    def renew(self, seat, *, ttl_s, wait):
        def work(model, now_s):
            known = seat
            if model.renew(seat, ttl_s=ttl_s, now_s=now_s) is None and seat.number not in model._leases:
                known = model.enlist(b"", incarnation=seat.incarnation, ttl_s=ttl_s, now_s=now_s)
            return model.renew(known, ttl_s=ttl_s, now_s=now_s)

        return self.inside(work, "renew", wait)


@caught_by("renew_tells_when_the_next_other_lease_ends", "renew_of_the_only_member_knows_no_other_lease")
class NextExpiryIsOnesOwn(Cracked):
    """The earliest lease of all."""

    def renew(self, seat, *, ttl_s, **given):
        answer = super().renew(seat, ttl_s=ttl_s, **given)
        return answer and replace(answer, next_expiry_s=min(ttl_s, answer.next_expiry_s or ttl_s))


@caught_by("members_leaves_out_whose_lease_has_ended", "a_survey_tells_whose_lease_has_ended")
class MembersShowsTheDead(Cracked):
    """Only a renewal removes them; and to those who only look they are as live."""

    survey = CoordinationStore.survey

    def members(self, *, wait):
        return self.inside(lambda model, now_s: model.members(now_s=0.0), "members", wait)


@caught_by(
    "after_a_silence_of_all_nobody_is_expired",
    "a_paused_server_expires_nobody",
    "after_a_silence_of_all_the_silent_have_one_lease",
    "after_a_silence_of_all_watchers_are_told_nothing",
)
class APauseKillsEverybody(Cracked):
    """Leases mean what they say, whoever was silent."""

    def renew(self, seat, *, ttl_s, wait):
        def work(model, now_s):
            model._heard_s = now_s
            return model.renew(seat, ttl_s=ttl_s, now_s=now_s)

        return self.inside(work, "renew", wait)


@caught_by("after_a_silence_of_all_a_newcomer_expires_nobody")
class ANewcomerAfterAPauseKillsEverybody(Cracked):
    """Only a renewal knows of pauses."""

    def enlist(self, record, *, incarnation, ttl_s, wait):
        def work(model, now_s):
            model._heard_s = now_s
            return model.enlist(record, incarnation=incarnation, ttl_s=ttl_s, now_s=now_s)

        return self.inside(work, "enlist", wait)


@caught_by(*_NOBODY_EXPIRES)
class EveryRenewalIsEverybodys(Cracked):
    """Nobody expires while anybody renews."""

    def renew(self, seat, *, ttl_s, wait):
        def work(model, now_s):
            model._heard_s = float("-inf")
            return model.renew(seat, ttl_s=ttl_s, now_s=now_s)

        return self.inside(work, "renew", wait)


@caught_by("an_expiry_is_told_to_watchers", "members_leaves_out_whose_lease_has_ended")
class ExpiryIsNoDeparture(Cracked):
    """Watchers are told of withdrawals only."""

    def renew(self, seat, *, ttl_s, wait):
        return self.inside(
            lambda model, now_s: _without_departures(model, lambda: model.renew(seat, ttl_s=ttl_s, now_s=now_s)),
            "renew",
            wait,
        )

    def members(self, *, wait):
        return self.inside(
            lambda model, now_s: _without_departures(model, lambda: model.members(now_s=now_s)), "members", wait
        )


def _without_departures(model, work):
    before = model._revisions[Topic.DEPARTURES]
    try:
        return work()
    finally:
        model._revisions[Topic.DEPARTURES] = before


@caught_by(
    "a_renewed_lease_lasts",
    "a_lease_lasts_its_whole_time_for_every_client",
    "a_member_stays_until_its_lease_ends",
    "a_member_whose_lease_has_ended_goes",
    "a_repeated_enlist_renews_the_lease",
    "after_a_silence_of_all_the_silent_have_one_lease",
    "an_expired_incarnation_gets_a_new_seat",
    "an_expiry_is_told_to_watchers",
    "content_is_kept_while_members_call",
    "leases_are_judged_by_the_stores_clock",
    "a_survey_tells_whose_lease_has_ended",
    "members_leaves_out_whose_lease_has_ended",
    "renew_of_an_expired_seat_says_that_it_is_gone",
)
class RenewExtendsNothing(Cracked):
    """The lease is as long as it was at first."""

    def renew(self, seat, *, ttl_s, wait):
        def work(model, now_s):
            lease = model._leases.get(seat.number)
            until_s = lease and lease.deadline_s
            answer = model.renew(seat, ttl_s=ttl_s, now_s=now_s)
            if answer is not None and now_s < until_s:
                lease.deadline_s = model._earliest_s = until_s
            return answer

        return self.inside(work, "renew", wait)


@caught_by("renew_of_anothers_seat_says_that_it_is_gone")
class RenewIgnoresTheIncarnation(Cracked):
    """A seat is its number."""

    def renew(self, seat, *, ttl_s, wait):
        def work(model, now_s):
            lease = model._leases.get(seat.number)
            known = seat if lease is None else replace(seat, incarnation=lease.incarnation)
            return model.renew(known, ttl_s=ttl_s, now_s=now_s)

        return self.inside(work, "renew", wait)


@caught_by("renew_counts_the_live_members", "after_a_silence_of_all_the_silent_have_one_lease")
class LiveCountsTheOthers(Cracked):
    def renew(self, seat, **given):
        answer = super().renew(seat, **given)
        return answer and replace(answer, live=answer.live - 1)


@caught_by("an_announced_expiry_ends_a_watch")
class AnnouncesNothing(Cracked):
    """Says that it tells of expiries, and only looks for them when it is asked."""

    announces_expiry = True


@caught_by("an_announced_expiry_is_expected_in_time", "an_announced_expiry_ends_a_watch")
class ExpectsNoExpiry(Cracked):
    """Trusts its announcements, and sets no time at which to look nevertheless."""

    announces_expiry = True

    def renew(self, seat, **given):
        answer = super().renew(seat, **given)
        return answer and replace(answer, next_expiry_s=None)
