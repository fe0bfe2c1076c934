"""Stores that show others than there are to those who only look."""

import msgspec

from broken.base import Cracked, caught_by


@caught_by("a_survey_of_a_run_that_nobody_began_is_empty", "a_survey_shows_members_in_order_and_documents")
class SurveyHasEveryDocumentThatWasAskedFor(Cracked):
    """With nothing in it, where there is none."""

    def survey(self, keys, *, wait):
        seen = super().survey(keys, wait=wait)
        return msgspec.structs.replace(seen, documents=dict.fromkeys(keys, b"") | seen.documents)


@caught_by("a_survey_shows_members_in_order_and_documents")
class SurveyIsInNoOrder(Cracked):
    """As a hash gives them."""

    def survey(self, keys, *, wait):
        seen = super().survey(keys, wait=wait)
        return msgspec.structs.replace(seen, members=seen.members[::-1])


@caught_by("a_survey_tells_whose_lease_has_ended")
class SurveyLooksAtNoLease(Cracked):
    """Who has a seat is live."""

    def survey(self, keys, *, wait):
        return msgspec.structs.replace(super().survey(keys, wait=wait), silent=frozenset())


@caught_by("a_survey_moves_no_topic")
class SurveyTakesASeatToLook(Cracked):
    """And gives it back at once."""

    def survey(self, keys, *, wait):
        seat = self.enlist(b"", incarnation="looker", ttl_s=10.0, wait=wait)
        self.withdraw(seat, wait=wait)
        return super().survey(keys, wait=wait)
