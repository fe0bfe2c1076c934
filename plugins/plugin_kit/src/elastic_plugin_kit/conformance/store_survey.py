"""Promises about `survey`, with which `elastic status` reads a run without joining it."""

from typing import Final

import pytest

from elastic_core.api.stores import CONTROL_KEY, ROUND_KEY, Survey
from elastic_plugin_kit.conformance.kit import Kit
from elastic_plugin_kit.conformance.store_run import Client, StoreRun, budget

_KEYS: Final = (ROUND_KEY, CONTROL_KEY)


class SurveyPromises(Kit):
    """A survey reads a run without a seat, and leaves no trace."""

    def test_a_survey_of_a_run_that_nobody_began_is_empty(self, run: StoreRun) -> None:
        """No error: no members and no documents, as with `members` and `load`."""
        client = run.client()
        seen = _survey(client)
        assert (seen.members, seen.documents) == ((), _loaded(client)), (
            "survey of an unused run returned members or documents; expected none"
        )

    def test_a_survey_shows_members_in_order_and_documents(self, run: StoreRun) -> None:
        """As `members` and `load` do; of the documents that were asked for those that there are, as they stand."""
        client, looker = run.client(), run.client()
        for record in (b"one", b"two", b"three"):
            client.enlist(record=record)
        old = client.swap(b"old", key=ROUND_KEY).current
        client.swap(b"unasked", key="other")
        client.swap(b"new", None if old is None else old.version, key=ROUND_KEY)
        seen = _survey(looker)
        assert seen.members == looker.members().members, (
            "survey and `members` returned different members; expected the same"
        )
        assert seen.documents == _loaded(looker), "survey and `load` returned different documents; expected the same"
        assert seen.silent == frozenset(), "survey returned live members as `silent`; expected none"

    def test_a_survey_tells_whose_lease_has_ended(self, run: StoreRun) -> None:
        """Such a member is `silent`, or not there any more."""
        client = run.client()
        for _ in range(3):
            silent, speaking = client.enlist(ttl_s=4 / 3 * run.lease_s), client.enlist(ttl_s=run.lease_s)
            run.pass_time(1.2 * run.lease_s, renewing=[(client, speaking)])
            unheard = run.stopwatch()
            run.pass_time(0.4 * run.lease_s)
            seen = _survey(client)  # a new client can't know, in every store, how long others were silent
            live = [member.seat for member in seen.members if member.incarnation not in seen.silent]
            if unheard() <= 0.6 * run.lease_s:  # so long without a renewal may be taken for the server's pause
                assert live == [speaking.number], (
                    f"survey returned the seats {live} as live; expected only {speaking.number}"
                )
                return
            for seat in (silent, speaking):
                client.withdraw(seat)
        pytest.skip("this machine is too slow to look between a lease's end and what may be taken for a pause")

    def test_a_survey_moves_no_topic(self, run: StoreRun) -> None:
        """A survey does not notify watchers, and changes no seat."""
        client, looker = run.client(), run.client()
        seat = client.enlist()
        client.swap(b"x", key=CONTROL_KEY)
        before = client.revisions()
        for _ in range(3):
            _survey(looker)
        assert client.revisions() == before, "survey moved a topic; expected no change"
        assert client.numbers() == [seat.number]


def _survey(client: Client) -> Survey:
    return client.store.survey(_KEYS, wait=budget())


def _loaded(client: Client) -> dict[str, bytes]:
    found = {key: client.load(key) for key in _KEYS}
    return {key: document.value for key, document in found.items() if document is not None}
