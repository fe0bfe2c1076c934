"""Stores that are wrong about documents."""

import threading

from broken.base import Cracked, caught_by, replace
from elastic_core.api.stores import Document, Swapped, Topic


@caught_by(
    "swap_of_another_version_is_refused",
    "a_refused_swap_returns_what_stands",
    "a_version_is_never_used_again",
    "an_emptied_server_is_noticed",
    "concurrent_swaps_are_applied_once",
    "content_is_dropped_when_nobody_calls",
    "swap_of_a_missing_document_is_refused",
    "swap_of_no_document_is_refused_where_there_is_one",
    "what_changes_nothing_moves_nothing",
)
class SwapIgnoresWhatIsExpected(Cracked):
    def swap(self, key, new, *, expect, keep_s, wait):
        def work(model, now_s):
            current = model.load(key, now_s=now_s)
            return model.swap(key, new, expect=current and current.version, keep_s=keep_s, now_s=now_s)

        return self.inside(work, "swap", wait)


@caught_by(
    "swap_of_no_document_is_refused_where_there_is_one",
    "a_refused_swap_returns_what_stands",
    "concurrent_swaps_are_applied_once",
    "what_changes_nothing_moves_nothing",
)
class SwapOfNothingOverwrites(Cracked):
    """`expect=None` is taken for `whatever it is`."""

    def swap(self, key, new, *, expect, keep_s, wait):
        def work(model, now_s):
            current = model.load(key, now_s=now_s)
            known = current.version if expect is None and current else expect
            return model.swap(key, new, expect=known, keep_s=keep_s, now_s=now_s)

        return self.inside(work, "swap", wait)


@caught_by(
    "swap_of_a_missing_document_is_refused", "an_emptied_server_is_noticed", "content_is_dropped_when_nobody_calls"
)
class SwapOfAMissingDocumentIsApplied(Cracked):
    """What is gone may be made by anybody who knew it."""

    def swap(self, key, new, *, expect, keep_s, wait):
        def work(model, now_s):
            known = None if model.load(key, now_s=now_s) is None else expect
            return model.swap(key, new, expect=known, keep_s=keep_s, now_s=now_s)

        return self.inside(work, "swap", wait)


@caught_by("concurrent_swaps_are_applied_once")
class SwapIsTwoRequests(Cracked):
    """It reads, compares here, and writes."""

    def swap(self, key, new, *, expect, keep_s, wait):
        wait.check()
        current = self.load(key, wait=wait)
        if (current and current.version) != expect:
            return Swapped(applied=False, current=current)
        threading.Event().wait(0.005)

        def work(model, now_s):
            now = model.load(key, now_s=now_s)
            return model.swap(key, new, expect=now and now.version, keep_s=keep_s, now_s=now_s)

        return self.inside(work, "swap", wait)


@caught_by("a_refused_swap_returns_what_stands", "concurrent_swaps_are_applied_once")
class RefusedSwapSaysNothing(Cracked):
    """Who lost must load."""

    def swap(self, key, new, **given):
        swapped = super().swap(key, new, **given)
        return swapped if swapped.applied else Swapped(applied=False, current=None)


@caught_by("a_version_is_never_used_again")
class VersionsAreHashes(Cracked):
    """The same bytes have the same version again."""

    def swap(self, key, new, *, expect, keep_s, wait):
        def work(model, now_s):
            model._new_version = lambda content: f"hash {hash(content)}"
            return model.swap(key, new, expect=expect, keep_s=keep_s, now_s=now_s)

        return self.inside(work, "swap", wait)


@caught_by("keys_are_independent")
class KeysShareADocument(Cracked):
    """Whatever is not the round is control."""

    def load(self, key, *, wait):
        return super().load(_known(key), wait=wait)

    def swap(self, key, new, **given):
        return super().swap(_known(key), new, **given)


def _known(key):
    return key if key == Topic.ROUND else Topic.CONTROL


@caught_by("a_document_is_any_bytes")
class DocumentsAreText(Cracked):
    def load(self, key, *, wait):
        found = super().load(key, wait=wait)
        return found and Document(value=found.value.decode(errors="replace").encode(), version=found.version)


@caught_by("what_another_client_has_swapped_is_read", "concurrent_swaps_are_applied_once", "a_document_is_any_bytes")
class ReadsAreRemembered(Cracked):
    def load(self, key, *, wait):
        found = super().load(key, wait=wait)
        return found and self.__dict__.setdefault("read", {}).setdefault(key, found)


@caught_by(
    "a_document_is_of_the_types_of_the_interface",
    "a_document_is_any_bytes",
    "a_document_may_have_a_mebibyte",
    "a_survey_shows_members_in_order_and_documents",
    "concurrent_swaps_are_applied_once",
    "content_is_kept_while_members_call",
    "keys_are_independent",
    "swap_makes_a_document_where_there_is_none",
    "swap_of_another_version_is_refused",
    "swap_of_no_document_is_refused_where_there_is_one",
    "swap_replaces_the_version_that_it_knows",
    "two_runs_do_not_meet",
    "what_another_client_has_swapped_is_read",
)
class ValuesAreText(Cracked):
    def load(self, key, *, wait):
        found = super().load(key, wait=wait)
        return found and Document(value=found.value.decode("latin-1"), version=found.version)


@caught_by("content_is_dropped_when_nobody_calls", "the_age_of_keep_s_is_not_that_of_the_last_call")
class ContentIsKeptForEver(Cracked):
    def swap(self, key, new, *, keep_s, **given):
        return super().swap(key, new, keep_s=1e9, **given)


@caught_by("content_is_kept_while_members_call")
class ContentIsKeptFromTheSwapOn(Cracked):
    """Other calls don't count."""

    def renew(self, seat, *, ttl_s, wait):
        def work(model, now_s):
            asked_s = model._asked_s
            try:
                return model.renew(seat, ttl_s=ttl_s, now_s=now_s)
            finally:
                model._asked_s = asked_s

        return self.inside(work, "renew", wait)


@caught_by("the_age_of_keep_s_is_not_that_of_the_last_call")
class TheAgeOfKeepIsThatOfTheLastCall(Cracked):
    """Who comes late, and looks, makes it young."""

    def keep_age_s(self, *, wait):
        return self.inside(lambda model, now_s: now_s - model._asked_s, "keep_age_s", wait)


@caught_by("the_age_of_keep_s_is_not_that_of_the_last_call")
class TheAgeOfKeepIsThatOfTheLastSwap(Cracked):
    """Also of one that asks for what was asked for before."""

    def swap(self, key, new, *, expect, keep_s, wait):
        def work(model, now_s):
            model._keep_s = None
            return model.swap(key, new, expect=expect, keep_s=keep_s, now_s=now_s)

        return self.inside(work, "swap", wait)


@caught_by("the_age_of_keep_s_is_not_that_of_the_last_call")
class TheAgeOfKeepIsThatOfTheRun(Cracked):
    """No change counts but the first."""

    def swap(self, key, new, *, expect, keep_s, wait):
        def work(model, now_s):
            first_s = model._kept_s
            swapped = model.swap(key, new, expect=expect, keep_s=keep_s, now_s=now_s)
            model._kept_s = model._kept_s if first_s is None else first_s
            return swapped

        return self.inside(work, "swap", wait)


@caught_by("a_document_may_have_a_mebibyte")
class DocumentsAreShort(Cracked):
    """Cut off at 64 KiB."""

    def swap(self, key, new, **given):
        return super().swap(key, new[: 2**16], **given)


@caught_by(
    "a_missing_document_is_none",
    "a_cancelled_budget_ends_every_call",
    "a_passed_deadline_ends_every_call",
    "an_emptied_server_is_noticed",
    "content_is_dropped_when_nobody_calls",
    "swap_of_a_missing_document_is_refused",
    "two_runs_do_not_meet",
    "a_survey_of_a_run_that_nobody_began_is_empty",
    "a_survey_shows_members_in_order_and_documents",
)
class MissingDocumentsAreEmpty(Cracked):
    """Only a survey leaves them out."""

    def load(self, key, *, wait):
        return super().load(key, wait=wait) or Document(value=b"", version="0")


@caught_by(
    "swap_makes_a_document_where_there_is_none",
    "a_refused_swap_returns_what_stands",
    "concurrent_swaps_are_applied_once",
    "content_is_kept_while_members_call",
    "keys_are_independent",
    "swap_of_another_version_is_refused",
    "swap_of_no_document_is_refused_where_there_is_one",
    "swap_replaces_the_version_that_it_knows",
)
class SwapAnswersWithAnotherVersion(Cracked):
    """What it returns is not what stands, though a swap that expects it is taken."""

    def swap(self, key, new, *, expect, **given):
        swapped = super().swap(key, new, expect=expect and expect.removesuffix("!"), **given)
        if not swapped.applied:
            return swapped
        return replace(swapped, current=replace(swapped.current, version=f"{swapped.current.version}!"))


@caught_by("documents_and_members_are_apart")
class DocumentsAndMembersShareNames(Cracked):
    """One key space for all."""

    def swap(self, key, new, *, expect, keep_s, wait):
        def work(model, now_s):
            swapped = model.swap(key, new, expect=expect, keep_s=keep_s, now_s=now_s)
            if key == "members" and swapped.applied:
                model._leases.clear()
            return swapped

        return self.inside(work, "swap", wait)
