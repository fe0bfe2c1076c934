"""Stores that are wrong about revisions, or about waiting for them."""

import threading

from broken.base import Cracked, caught_by, replace
from elastic_core.api.stores import Members, Topic, compare


@caught_by("update_moves_members", "watch_misses_no_change", "watch_wakes_on_each_topic")
class UpdateIsNotTold(Cracked):
    def update(self, seat, record, *, wait):
        def work(model, now_s):
            before = model._revisions[Topic.MEMBERS]
            try:
                return model.update(seat, record, now_s=now_s)
            finally:
                model._revisions[Topic.MEMBERS] = before

        return self.inside(work, "update", wait)


@caught_by("enlist_moves_members", "watch_ignores_other_topics", "watch_without_time_only_looks")
class EnlistIsADeparture(Cracked):
    """Every change of the members is told in the same way."""

    def enlist(self, record, *, incarnation, ttl_s, wait):
        def work(model, now_s):
            seat = model.enlist(record, incarnation=incarnation, ttl_s=ttl_s, now_s=now_s)
            model._revisions[Topic.DEPARTURES] += 1
            return seat

        return self.inside(work, "enlist", wait)


@caught_by("an_applied_swap_moves_its_topic")
class AnyDocumentMovesItsTopic(Cracked):
    """Also one whose key is the name of a topic that is none of a document."""

    def swap(self, key, new, *, expect, keep_s, wait):
        def work(model, now_s):
            swapped = model.swap(key, new, expect=expect, keep_s=keep_s, now_s=now_s)
            if swapped.applied and key in (Topic.MEMBERS, Topic.DEPARTURES):
                model._revisions[Topic(key)] += 1
            return swapped

        return self.inside(work, "swap", wait)


@caught_by("what_changes_nothing_moves_nothing")
class RenewalsAreTold(Cracked):
    """Each heartbeat wakes everybody."""

    def renew(self, seat, *, ttl_s, wait):
        def work(model, now_s):
            answer = model.renew(seat, ttl_s=ttl_s, now_s=now_s)
            if answer is not None:
                model._revisions[Topic.MEMBERS] += 1
            return answer

        return self.inside(work, "renew", wait)


@caught_by("what_changes_nothing_moves_nothing")
class RefusedSwapIsTold(Cracked):
    def swap(self, key, new, *, expect, keep_s, wait):
        def work(model, now_s):
            swapped = model.swap(key, new, expect=expect, keep_s=keep_s, now_s=now_s)
            if not swapped.applied and key in set(Topic):
                model._revisions[Topic(key)] += 1
            return swapped

        return self.inside(work, "swap", wait)


@caught_by("members_tells_its_revision")
class MembersTellsNoRevision(Cracked):
    def members(self, *, wait):
        return Members(revision=0, members=super().members(wait=wait).members)


@caught_by(
    "everybody_sees_the_same_birth",
    "an_emptied_server_is_noticed",
    "watch_tells_that_the_content_is_another",
    "watch_tells_that_the_content_went_back",
)
class BirthIsTheClients(Cracked):
    """Each client makes one up."""

    def watch(self, since, topics, **given):
        seen = super().watch(replace(since, birth=""), topics, **given)
        return replace(seen, revisions=replace(seen.revisions, birth=f"{id(self)}"))


@caught_by("other_runs_have_other_births", "an_emptied_server_is_noticed")
class BirthIsTheRunId(Cracked):
    """Content that was made anew looks like the old one."""

    def watch(self, since, topics, *, timeout_s, wait):
        seen = super().watch(replace(since, birth=""), topics, timeout_s=0, wait=wait)
        born = replace(seen.revisions, birth="fixed" if seen.revisions.birth else "")
        known = compare(since, born, topics)
        if known.changed or timeout_s == 0:
            return known
        seen = super().watch(replace(born, birth=""), topics, timeout_s=timeout_s, wait=wait)
        return replace(seen, revisions=replace(seen.revisions, birth="fixed"))


@caught_by("watch_returns_at_once_what_has_moved_before")
class WatchForgetsWhatCameBefore(Cracked):
    """Only pushes count, and they are listened to from the call on."""

    def watch(self, since, topics, *, timeout_s, wait):
        now = super().watch(since, (), timeout_s=0, wait=wait)
        if timeout_s == 0 or now.reset:
            return super().watch(since, topics, timeout_s=0, wait=wait)
        return super().watch(now.revisions, topics, timeout_s=timeout_s, wait=wait)


@caught_by("watch_misses_no_change")
class WatchListensTooLate(Cracked):
    """It looks, and then begins to listen."""

    def watch(self, since, topics, *, timeout_s, wait):
        seen = super().watch(since, topics, timeout_s=0, wait=wait)
        if seen.changed or seen.reset or timeout_s == 0:
            return seen
        threading.Event().wait(0.004)
        now = super().watch(since, (), timeout_s=0, wait=wait).revisions
        return compare(since, super().watch(now, topics, timeout_s=timeout_s, wait=wait).revisions, topics)


@caught_by("watch_ignores_other_topics")
class WatchIsWokenByEverything(Cracked):
    def watch(self, since, topics, *, timeout_s, wait):
        if timeout_s == 0:
            return super().watch(since, topics, timeout_s=0, wait=wait)
        seen = super().watch(since, tuple(Topic), timeout_s=timeout_s, wait=wait)
        return replace(seen, changed=seen.changed & frozenset(topics))


@caught_by(
    "watch_ignores_other_topics", "watch_tells_that_the_content_is_another", "watch_tells_that_the_content_went_back"
)
class WatchTellsOfEverything(Cracked):
    """`changed` has what nobody asked for."""

    def watch(self, since, topics, **given):
        seen = super().watch(since, topics, **given)
        return replace(seen, changed=compare(since, seen.revisions, tuple(Topic)).changed if topics else frozenset())


@caught_by(
    "watch_wakes_on_each_topic",
    "watch_returns_at_once_what_has_moved_before",
    "watch_tells_that_the_content_is_another",
)
class WatchSeesNoControl(Cracked):
    """Nobody subscribed to that channel."""

    def watch(self, since, topics, *, timeout_s, wait):
        wanted = [topic for topic in topics if topic is not Topic.CONTROL] if timeout_s else topics
        return super().watch(since, wanted, timeout_s=timeout_s, wait=wait)


@caught_by("watch_tells_how_far_every_topic_is")
class WatchKnowsOnlyWhatItWasAskedFor(Cracked):
    """The other topics stay where the caller saw them."""

    def watch(self, since, topics, **given):
        seen = super().watch(since, topics, **given)
        if not topics:
            return seen
        known = {topic.value: since.of(topic) for topic in Topic if topic not in topics and not seen.reset}
        return replace(seen, revisions=replace(seen.revisions, **known))


@caught_by("watch_wakes_every_watcher")
class WatchWakesOneWatcher(Cracked):
    """A notification is taken by whoever comes first."""

    taken = frozenset()

    def watch(self, since, topics, *, timeout_s, wait):
        seen = super().watch(since, topics, timeout_s=timeout_s, wait=wait)
        if timeout_s == 0 or seen.reset or not seen.changed:
            return seen
        notification = (seen.revisions, frozenset(topics))
        with self._server._changed:
            first = notification not in WatchWakesOneWatcher.taken
            WatchWakesOneWatcher.taken |= {notification}
        return seen if first else super().watch(seen.revisions, topics, timeout_s=timeout_s, wait=wait)


@caught_by("watch_without_time_only_looks", "one_budget_serves_many_calls")
class WatchTakesZeroForASecond(Cracked):
    """A timeout of zero is taken for none given, and waits for longer than the kit does on the busiest machine."""

    def watch(self, since, topics, *, timeout_s, wait):
        longer = timeout_s if timeout_s or not topics else 3.5
        return super().watch(since, topics, timeout_s=longer, wait=wait)


@caught_by("watch_times_out_with_nothing_changed", "watch_ignores_other_topics")
class WatchNeverTimesOut(Cracked):
    def watch(self, since, topics, *, timeout_s, wait):
        return super().watch(since, topics, timeout_s=timeout_s + 4 if timeout_s else 0, wait=wait)


@caught_by(
    "watch_tells_that_the_content_went_back", "an_emptied_server_is_noticed", "watch_tells_that_the_content_is_another"
)
class WatchIgnoresResets(Cracked):
    """Whoever went back is not told."""

    def watch(self, since, topics, *, timeout_s, wait):
        now = super().watch(since, (), timeout_s=0, wait=wait)
        return (
            replace(now, changed=frozenset(), reset=False)
            if now.reset
            else super().watch(since, topics, timeout_s=timeout_s, wait=wait)
        )
