"""Promises about revisions, and about waiting for them."""

from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

import msgspec

from elastic_core.api import WaitBudget
from elastic_core.api.stores import Revisions, Topic, WaitCancelledError, WaitExpiredError, Watched
from elastic_plugin_kit.conformance.kit import MOST_CROWDED, Kit, Started, cancel_s, late_s, settle
from elastic_plugin_kit.conformance.store_run import Client, StoreRun, now_s

EVERY: Final = tuple(Topic)
WAKE_S: Final = 1.0
"""Within this time a watcher is notified of another client's change, on an idle machine."""
_LONG_S: Final = 2 * MOST_CROWDED * WAKE_S
QUIET_S: Final = 0.3
"""How long nothing must happen to count as nothing."""

PROBES: Final = 36
"""How many changes a watcher follows, each another while after its call began."""


class RevisionPromises(Kit):
    """Each request moves the topics that it should, and no other."""

    def test_enlist_moves_members(self, run: StoreRun) -> None:
        """And no other topic."""
        client = run.client()
        client.enlist()
        _moves(client, lambda: client.enlist(), {Topic.MEMBERS}, "enlist")

    def test_update_moves_members(self, run: StoreRun) -> None:
        """And no other topic."""
        client = run.client()
        seat = client.enlist()
        _moves(client, lambda: client.update(seat, b"new"), {Topic.MEMBERS}, "update")

    def test_withdraw_moves_members_and_departures(self, run: StoreRun) -> None:
        """And no other topic; of a seat that is gone, none."""
        client = run.client()
        seat = client.enlist()
        _moves(client, lambda: client.withdraw(seat), {Topic.MEMBERS, Topic.DEPARTURES}, "withdraw")
        _moves(client, lambda: client.withdraw(seat), set(), "withdraw of a seat that is gone")

    def test_an_applied_swap_moves_its_topic(self, run: StoreRun) -> None:
        """`round` and `control` only; other documents have none."""
        client = run.client()
        _moves(client, lambda: client.swap(b"x", key=Topic.ROUND), {Topic.ROUND}, "swap of the round")
        _moves(client, lambda: client.swap(b"x", key=Topic.CONTROL), {Topic.CONTROL}, "swap of the control document")
        _moves(client, lambda: client.swap(b"x", key="other"), set(), "swap of another document")
        _moves(client, lambda: client.swap(b"x", key="departures"), set(), "swap of a document named `departures`")

    def test_what_changes_nothing_moves_nothing(self, run: StoreRun) -> None:
        """A renewal, a refused swap, an update of a seat that is gone, and reading."""
        client = run.client()
        seat, gone = client.enlist(), client.enlist()
        client.withdraw(gone)
        client.swap(b"x")
        _moves(client, lambda: client.renew(seat), set(), "a renewal")
        _moves(client, lambda: client.swap(b"y"), set(), "a refused swap")
        _moves(client, lambda: client.update(gone, b"y"), set(), "an update of a seat that is gone")
        _moves(client, lambda: client.renew(gone), set(), "a renewal of a seat that is gone")
        _moves(client, lambda: (client.members(), client.load()), set(), "reading")

    def test_members_tells_its_revision(self, run: StoreRun) -> None:
        """A watcher can go on from what `members` returned."""
        client = run.client()
        for _ in range(2):
            client.enlist()
            assert client.members().revision == client.revisions().members

    def test_everybody_sees_the_same_birth(self, run: StoreRun) -> None:
        """It is the content's, not a client's, and stays."""
        client = run.client()
        seat = client.enlist()
        birth = client.revisions().birth
        client.withdraw(seat)
        client.swap(b"x")
        assert birth, "`Revisions.birth` is empty for a run with content; expected a random text"
        assert [client.revisions().birth, run.client().revisions().birth] == [birth, birth]

    def test_other_runs_have_other_births(self, run: StoreRun) -> None:
        """It is random: new content differs from earlier content."""
        if run.names_runs:
            clients = [run.client(), run.client(run.run_id + "x")]
            for client in clients:
                client.enlist()
            assert clients[0].revisions().birth != clients[1].revisions().birth


class WatchPromises(Kit):
    """Watchers are notified of the topics that they wait for, soon, and of no others."""

    def test_watch_returns_at_once_what_has_moved_before(self, run: StoreRun) -> None:
        """Of each topic that has moved between two calls."""
        client = run.client()
        since = client.revisions()
        for topic, act in _changes(client).items():
            act()
            began_s = now_s()
            seen = client.watch(since, topic, timeout_s=_LONG_S)
            assert topic in seen.changed, (
                f"watch did not return {topic!r}, which had moved before the call; expected it in `changed`"
            )
            assert now_s() - began_s < late_s(WAKE_S), (
                f"watch of {topic!r} waited though the topic had moved; expected it to return at once"
            )
            since = seen.revisions

    def test_watch_wakes_on_each_topic(self, run: StoreRun) -> None:
        """Within a second of another client's change."""
        watcher, other = run.client(), run.client()
        for topic, act in _changes(other).items():
            since = watcher.revisions()
            watch = Started(partial(watcher.watch, since, topic))
            settle()
            act()
            seen = watch.ended(
                within_s=late_s(WAKE_S), what=f"a watch of {topic!r}, which another client moved"
            ).value()
            assert topic in seen.changed, f"watch returned without {topic!r} in `changed`; expected it there"
            assert seen.revisions.of(topic) > since.of(topic)

    def test_watch_wakes_every_watcher(self, run: StoreRun) -> None:
        """All that wait, not one of them."""
        watchers, other = [run.client() for _ in range(4)], run.client()
        since = other.revisions()
        watches = [Started(partial(watcher.watch, since, Topic.MEMBERS)) for watcher in watchers]
        settle()
        other.enlist()
        for watch in watches:
            assert watch.ended(within_s=late_s(WAKE_S), what="one of four watches").value().changed == {Topic.MEMBERS}

    def test_watch_ignores_other_topics(self, run: StoreRun) -> None:
        """Topics that were not requested neither end the wait nor are in `changed`."""
        watcher, other = run.client(), run.client()
        other.enlist()
        since = watcher.revisions()
        watch = Started(lambda: watcher.watch(since, Topic.DEPARTURES, Topic.CONTROL, timeout_s=2 * QUIET_S))
        settle()
        other.enlist()
        other.swap(b"x")
        ended = watch.ended(within_s=2 * QUIET_S + late_s(WAKE_S), what="watch")
        seen = ended.value()
        assert ended.took_s >= 0.9 * 2 * QUIET_S, (
            "watch returned early for a topic that was not requested; expected it to wait"
        )
        assert seen.changed == frozenset(), (
            f"watch returned {set(seen.changed)} in `changed`; expected only requested topics"
        )

    def test_watch_tells_how_far_every_topic_is(self, run: StoreRun) -> None:
        """Also of topics that were not requested; a watcher can go on from these revisions."""
        client = run.client()
        since = client.revisions()
        client.enlist()
        client.swap(b"x")
        now = client.watch(since, Topic.ROUND).revisions
        assert (now.members, now.round) == (since.members + 1, since.round + 1)
        assert client.watch(now, *EVERY, timeout_s=0).changed == frozenset()

    def test_watch_times_out_with_nothing_changed(self, run: StoreRun) -> None:
        """Not before the timeout, not long after it, and without an error."""
        client = run.client()
        client.enlist()
        since, began_s = client.revisions(), now_s()
        seen = client.watch(since, *EVERY, timeout_s=QUIET_S)
        assert seen == Watched(revisions=since, changed=frozenset())
        assert 0.9 * QUIET_S <= now_s() - began_s <= QUIET_S + late_s(WAKE_S), (
            "watch did not return at its timeout; expected it to wait for that long"
        )

    def test_watch_without_time_only_looks(self, run: StoreRun) -> None:
        """A timeout of zero."""
        client = run.client()
        client.enlist()
        began_s = now_s()
        assert client.watch(Revisions(), *EVERY, timeout_s=0).changed == {Topic.MEMBERS}
        assert client.watch(client.revisions(), *EVERY, timeout_s=0).changed == frozenset()
        assert now_s() - began_s < late_s(WAKE_S)

    def test_watch_misses_no_change(self, run: StoreRun) -> None:
        """Each change is returned by the call in progress or by the next one, within a second."""
        watcher, other, told = run.client(), run.client(), SimpleQueue[int]()
        seat = other.enlist()
        since = watcher.revisions()

        def follow() -> None:
            known = since
            while known.members < since.members + PROBES:
                known = watcher.watch(known, Topic.MEMBERS).revisions
                told.put(known.members)

        Started(follow)
        for probe in range(1, PROBES + 1):
            settle(probe % 12 * 0.001)
            other.update(seat, b"%d" % probe)
            _expect_told(told, since.members + probe)


class ResetPromises(Kit):
    """Content that is another, or went back in time, is noticed."""

    def test_watch_tells_that_the_content_is_another(self, run: StoreRun) -> None:
        """A birth that differs: everything must be read again."""
        client = run.client()
        client.enlist()
        now = client.revisions()
        seen = client.watch(msgspec.structs.replace(now, birth=now.birth + "x"), Topic.ROUND, Topic.CONTROL)
        assert seen == Watched(revisions=now, changed=frozenset({Topic.ROUND, Topic.CONTROL}), reset=True)

    def test_watch_tells_that_the_content_went_back(self, run: StoreRun) -> None:
        """A revision that is lower than what was known, of whichever topic."""
        client = run.client()
        client.enlist()
        now = client.revisions()
        seen = client.watch(msgspec.structs.replace(now, control=now.control + 1), Topic.MEMBERS)
        assert seen == Watched(revisions=now, changed=frozenset({Topic.MEMBERS}), reset=True)

    def test_an_emptied_server_is_noticed(self, run: StoreRun, empty_server: Callable[[], None]) -> None:
        """Nothing is left, watchers get `reset`, and earlier seats and versions are invalid."""
        client = run.client()
        seat = client.enlist()
        old = client.swap(b"x").current
        assert old is not None
        since = client.revisions()
        empty_server()
        assert client.watch(since, *EVERY).reset, (
            "watch returned reset=False after the server was emptied; expected True"
        )
        assert client.renew(seat) is None
        assert client.update(seat, b"new") is False
        assert client.members().members == ()
        assert client.load() is None
        assert not client.swap(b"y", old.version).applied
        made = client.swap(b"y").current
        assert made is not None
        assert made.version != old.version, (
            "swap returned a version from before the server was emptied; expected a new one"
        )
        seen = client.watch(since, *EVERY)
        assert seen.reset, "watch returned reset=False for content that was made again; expected True"
        assert seen.revisions.birth != since.birth


class WatchEndPromises(Kit):
    """A watch ends when it is cancelled, or at its deadline."""

    def test_watch_ends_when_cancelled(self, run: StoreRun) -> None:
        """Within 100 ms, with WaitCancelledError; the client can be used again."""
        client = run.client()
        since = client.revisions()
        for turn in range(3):
            wait = WaitBudget()
            watch = Started(partial(client.watch, since, *EVERY, timeout_s=4, wait=wait))
            settle(0.03 * turn)
            wait.cancel()
            error = watch.ended(within_s=cancel_s(), what="a watch that was cancelled").error
            assert isinstance(error, WaitCancelledError), (
                f"a cancelled watch ended with {error!r}; expected WaitCancelledError"
            )
        seat = client.enlist()
        assert client.numbers() == [seat.number], "enlist failed after a cancelled watch; expected the client to work"

    def test_watch_ends_at_its_deadline(self, run: StoreRun) -> None:
        """The budget's, where it comes before the timeout."""
        client = run.client()
        since = client.revisions()
        watch = Started(lambda: client.watch(since, *EVERY, timeout_s=4, wait=WaitBudget.lasting(0.3)))
        ended = watch.ended(within_s=0.3 + late_s(0.5), what="a watch whose budget has a deadline")
        assert isinstance(ended.error, WaitExpiredError) or (ended.result and not ended.result.changed), (
            f"watch ended with {ended.error!r} at its deadline; expected WaitExpiredError, or no changes"
        )


def _expect_told(told: SimpleQueue[int], revision: int) -> None:
    end_s = now_s() + late_s(WAKE_S)
    known = -1
    while known < revision:
        try:
            known = told.get(timeout=max(0.0, end_s - now_s()))
        except Empty:
            raise AssertionError(f"watch did not return a change within {WAKE_S:g} s; expected every change") from None


def _changes(client: Client) -> dict[Topic, Callable[[], object]]:
    """Return something that moves each topic; a departure moves `members` as well, so it comes last."""
    seat = client.enlist()
    return {
        Topic.MEMBERS: lambda: client.update(seat, b"new"),
        Topic.ROUND: lambda: client.swap(b"x"),
        Topic.CONTROL: lambda: client.swap(b"x", key=Topic.CONTROL),
        Topic.DEPARTURES: lambda: client.withdraw(seat),
    }


def _moves(client: Client, act: Callable[[], object], topics: set[Topic], what: str) -> None:
    before = client.revisions()
    act()
    after = client.revisions()
    moved = {topic for topic in Topic if after.of(topic) != before.of(topic)}
    assert moved == topics, f"{what} moved {sorted(moved) or 'no topic'}; expected {sorted(topics) or 'no topic'}"
