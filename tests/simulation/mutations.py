"""Deliberate defects of the machine, its duties and the store: each must be found by an invariant of the simulation."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.rendezvous.member import (
    admission,
    announce,
    duty,
    forming,
    leader,
    machine,
    observe,
    outage,
    protocol,
)
from elastic_core.rendezvous.member.state import NEVER_S, PeerGrants, State, question_about
from elastic_core.rendezvous.shell.grants import GrantTable, PeerExchange
from elastic_core.types import Stop
from elastic_plugin_kit.store_model import StoreModel
from elastic_train import holding
from simulation import scenario as s
from simulation.scenario import Scenario

Mutate = Callable[[pytest.MonkeyPatch], None]
MUTATIONS: dict[str, tuple[Mutate, frozenset[str], Mapping[str, Any]]] = {}
"""By name: what it does, the invariants of which one must find it, and what the scenario must have for that."""


def mutation(*invariants: str, **scenario: Any) -> Callable[[Mutate], Mutate]:
    def add(mutate: Mutate) -> Mutate:
        MUTATIONS[mutate.__name__] = (mutate, frozenset(invariants), scenario)
        return mutate

    return add


def faults(*kinds: str, **others: Any) -> dict[str, Any]:
    return {"faults": frozenset(kinds), "count": 3, **others}


def scenario_for(seed: int, given: Mapping[str, Any]) -> Scenario:
    return Scenario(**{"nodes": 3 + seed % 3, "min_nodes": 2, "max_nodes": 5, **given})


TRAINS = "one round trains"
PLACE = "every member finds its place"
END = "every member hears the verdict"


@mutation(
    TRAINS,
    "the roster is one",
    "tokens rise",
    "a verdict stays",
    "one decision a round",
    **faults(s.PARTITION, s.MESSAGES, s.FAILURE, count=5, noise=0.1),
)
def a_swap_ignores_what_it_expects(patch: pytest.MonkeyPatch) -> None:
    swap = StoreModel.swap

    def blind(self, key, new, *, expect, keep_s, now_s):
        current = self.load(key, now_s=now_s)
        expect = None if current is None else current.version
        return swap(self, key, new, expect=expect, keep_s=keep_s, now_s=now_s)

    patch.setattr(StoreModel, "swap", blind)


@mutation(TRAINS, **faults(s.FAILURE, s.ARRIVAL))
def a_round_forms_while_members_have_workers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forming, "_has_workers", lambda *_: False)


@mutation(PLACE, "tokens rise", TRAINS, **faults(s.FAILURE, s.CRASH))
def a_token_is_used_again(patch: pytest.MonkeyPatch) -> None:
    document = forming._document

    def same(view, candidates, current):
        made = document(view, candidates, current)
        return replace(made, token=current.token if current is not None else made.token)

    patch.setattr(forming, "_document", same)


@mutation(TRAINS, **faults(s.PARTITION, s.SIGSTOP))
def a_lease_that_ends_stops_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "fence_s", property(lambda self: NEVER_S))
    patch.setattr(State, "cut_s", property(lambda self: NEVER_S))


@mutation(TRAINS, **faults(s.SIGSTOP))
def the_guard_is_told_too_late_a_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "fence_s", property(lambda self: self.lease.confirmed_s + 1.6 * self.last_lease_s))


# --- grants


def parted(kind: str, **others: Any) -> dict[str, Any]:
    """Return what a scenario needs in which the round has all its members' grants, and others are beside it."""
    return faults(kind, **{"nodes": 4, "min_nodes": 1, "max_nodes": 3, "count": 5, **others})


@mutation("an outage ends no round", "nobody spins", **faults(s.STORE_DOWN, steady=True))
def nobody_asks_for_grants(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        PeerExchange,
        "ask",
        lambda self, now_s: setattr(self, "_next_s", NEVER_S) or setattr(self, "_practice_s", NEVER_S) or (),
    )


@mutation(TRAINS, **parted(s.SPLIT))
def grants_of_some_are_taken_for_those_of_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GrantTable, "oldest_s", property(lambda self: max(self._at_s)))


def forget_silence(patch: pytest.MonkeyPatch) -> None:
    """Have no leader wait because it has seen the silence: one that has just begun to lead has not."""
    watch = forming.watch
    patch.setattr(
        forming, "watch", lambda view, memory: replace(watch(view, memory), losses_from_s=memory.losses_from_s)
    )


@mutation(TRAINS, **parted(s.SPLIT))
def a_member_is_ready_while_its_grant_lasts(patch: pytest.MonkeyPatch) -> None:
    forget_silence(patch)
    record_of = machine.record_of
    patch.setattr(machine, "record_of", lambda state, now_s: record_of(replace(state, peers=PeerGrants()), now_s))


@mutation(TRAINS, **parted(s.SPLIT))
def a_hold_by_an_own_grant_ends_early(patch: pytest.MonkeyPatch) -> None:
    forget_silence(patch)
    patch.setattr(outage, "grant_ends_s", lambda state: state.peers.granted_s + 0.1 * state.grant_s)


@mutation(
    "one run trains", TRAINS, "a run that goes on stays", **faults(s.SPLIT, s.ARRIVAL, count=6, nodes=2, min_nodes=1)
)
def a_newcomer_grants_no_grace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "_over_s", lambda state, control: control.over_s or state.me.over_s)


@mutation(TRAINS, **parted(s.SPLIT, nodes=5, max_nodes=3))
def a_spare_that_leads_waits_for_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forming, "silent_until_s", lambda view, memory, current: view.now_s)


@mutation(TRAINS, "one run trains", **parted(s.UNHEARD, nodes=5, max_nodes=3, outage_grace_s=2.0))
def the_word_of_a_silent_member_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    observe_ = machine.observe

    def deaf(state, event, now_s):
        return state if isinstance(event, protocol.StillRuns) else observe_(state, event, now_s)

    patch.setattr(machine, "observe", deaf)


@mutation(PLACE, END, **faults(s.STARVED, count=1, calm_s=3.0, fault_s=0.1, ttl_s=2.0, min_nodes=3))
def a_lease_is_never_longer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forming, "_lease_s", lambda view, current, ending: view.shortest_ttl_s)


@mutation("an outage ends no round", TRAINS, **faults(s.STORE_EMPTIED, steady=True))
def nothing_is_held_back_after_trouble(patch: pytest.MonkeyPatch) -> None:
    doubt = observe._doubt
    patch.setattr(observe, "_doubt", lambda state, now_s: replace(doubt(state, now_s), duty=state.duty))


@mutation(PLACE, TRAINS, "tokens rise", "an outage ends no round", **faults(s.STORE_EMPTIED, steady=True))
def nobody_puts_back_the_round(patch: pytest.MonkeyPatch) -> None:
    rules = tuple(rule for rule in machine._RULES if rule.__name__ != "_write_round")
    patch.setattr(machine, "_RULES", rules)


@mutation("operations are bounded", PLACE, TRAINS, "an outage ends no round", steady=True)
def a_renewal_extends_nothing(patch: pytest.MonkeyPatch) -> None:
    renew = StoreModel.renew

    def idle(self, seat, *, ttl_s, now_s):
        lease = self._lease(seat)
        before = lease.deadline_s if lease is not None else 0.0
        answer = renew(self, seat, ttl_s=ttl_s, now_s=now_s)
        if answer is not None:
            self._leases[seat.number].deadline_s = before
            self._earliest_s = min(self._earliest_s, before)
        return answer

    patch.setattr(StoreModel, "renew", idle)


SECOND = ("one run trains", TRAINS, "a run that goes on stays", "an outage ends no round")


@mutation(*SECOND, **faults(s.DOOR, steady=True, nodes=4, max_nodes=4, last_call_s=0.1))
def a_newcomer_waits_for_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "_over_s", lambda state, control: 0.0)


@mutation(*SECOND, **faults(s.DOOR, steady=True, nodes=2, max_nodes=2, last_call_s=0.1, outage_grace_s=0.1))
def a_newcomer_counts_from_when_it_came(patch: pytest.MonkeyPatch) -> None:
    look = observe._look

    def early(state, epochs, silent, now_s):
        after = look(state, epochs, silent, now_s)
        liveness = replace(after.run.liveness, empty_s=min(after.run.liveness.empty_s, state.waiting.began_s))
        return replace(after, run=replace(after.run, liveness=liveness))

    patch.setattr(observe, "_look", early)


@mutation(*SECOND, **faults(s.DOOR, steady=True, nodes=4, max_nodes=4, last_call_s=0.1))
def a_newcomer_looks_at_nobody(patch: pytest.MonkeyPatch) -> None:
    look = observe._look
    patch.setattr(observe, "_look", lambda state, _, silent, now_s: look(state, frozenset(), silent, now_s))


@mutation(PLACE, END, **faults(s.BLACKOUT))
def a_run_of_the_dead_is_never_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "is_over", lambda state, control: False)


@mutation(PLACE, END, **faults(s.POWER))
def expired_members_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreModel, "_drop_expired", lambda self, now_s: None)


@mutation("a verdict stays", **faults(s.FINISH, s.FAILURE, s.MESSAGES))
def a_verdict_is_written_again(patch: pytest.MonkeyPatch) -> None:
    judge = leader.judge

    def again(view, memory):
        if view.control.verdict is None:
            return judge(view, memory)
        verdict = replace(view.control.verdict, decision=Stop(reason=f"again, says {view.node}"))
        document = replace(view.control, verdict=verdict, stopping=None)
        return duty.Judgement(memory=memory, duty=duty.Publish(name="verdict again", document=document))

    patch.setattr(leader, "judge", again)


@mutation(PLACE, END, "done means all", "an outage ends no round", **faults(s.FINISH, s.CRASH, nodes=4))
def one_that_is_done_is_done_for_all(patch: pytest.MonkeyPatch) -> None:
    in_round = leader._in_round

    def hasty(view, memory, current):
        if view.control.stopping is None and any(member.record.state == "done" for member in view.members):
            return duty.Judgement(memory=memory, duty=leader._all_done(view, current))
        return in_round(view, memory, current)

    patch.setattr(leader, "_in_round", hasty)


@mutation("ranks are a bijection", TRAINS, PLACE, END)
def two_members_get_one_seat(patch: pytest.MonkeyPatch) -> None:
    enlist = StoreModel.enlist

    def crowded(self, record, *, incarnation, ttl_s, now_s):
        self._last_seat = max(0, self._last_seat - 1) if self._last_seat > 1 else self._last_seat
        return enlist(self, record, incarnation=incarnation, ttl_s=ttl_s, now_s=now_s)

    patch.setattr(StoreModel, "enlist", crowded)


@mutation("ranks are a bijection")
def a_roster_names_one_twice(patch: pytest.MonkeyPatch) -> None:
    entries = forming.entries
    patch.setattr(forming, "entries", lambda ranked: (*entries(ranked)[:-1], entries(ranked)[0]))


@mutation("the size is as asked", nodes=5, max_nodes=4)
def a_spare_joins_beyond_the_most(patch: pytest.MonkeyPatch) -> None:
    choose = forming.choose
    patch.setattr(forming, "choose", lambda candidates, last, limit: choose(candidates, last, limit + 1))


@mutation("the size is as asked", nodes=3, min_nodes=3, first_call_s=0.0)
def fewer_than_the_least_are_enough(patch: pytest.MonkeyPatch) -> None:
    form = forming.form
    patch.setattr(forming, "form", lambda view, memory: form(replace(view, min_nodes=2), memory))


@mutation(PLACE, END, **faults(s.POWER, s.CRASH))
def the_dead_are_not_missed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leader, "_gone", lambda *_: False)


@mutation(PLACE, END, **faults(s.CRASH, count=5))
def nobody_stands_in_for_the_leader(patch: pytest.MonkeyPatch) -> None:
    renewed = observe._watched

    def deaf(state, watched, now_s):
        after = renewed(state, watched, now_s)
        return replace(after, lease=replace(after.lease, renew_s=state.lease.renew_s))

    patch.setattr(observe, "_watched", deaf)
    patch.setattr(observe, "_answer", _stuck_ahead(observe._answer))


def _stuck_ahead(answer):
    def stuck(state, event, now_s):
        after = answer(state, event, now_s)
        if isinstance(event, protocol.Renewed) and state.lease.seat is not None and after.lease.seat is not None:
            return replace(after, lease=replace(after.lease, ahead=state.lease.seat.ahead))
        return after

    return stuck


BLAME = "the first cause is blamed"


@mutation(BLAME, **faults(s.FAILURES, nodes=5))
def nobody_is_asked_what_it_saw(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leader, "GATHER_S", 0.0)


@mutation(BLAME, **faults(s.FAILURES, nodes=5))
def whoever_speaks_first_is_blamed(patch: pytest.MonkeyPatch) -> None:
    def ordered(current, live, order, done):
        return {order.incarnation: replace(order.report, final=True)}

    patch.setattr(leader, "_reports", ordered)
    patch.setattr(leader, "GATHER_S", 0.0)


@mutation(PLACE, END, **faults(s.FAILURES, s.LEADER, count=5))
def nobody_is_asked_to_decide(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leader, "_ask", lambda state, duty, current, now_s: (state, None))


@mutation("one decision a round", PLACE, **faults(s.FAILURES, s.LEADER, s.SIGSTOP, count=5))
def a_word_that_comes_too_late_is_published(patch: pytest.MonkeyPatch) -> None:
    unsay = announce._drop_superseded

    def stubborn(state, control):
        after = unsay(state, control)
        return replace(after, end=replace(after.end, post=None if control.verdict is not None else state.end.post))

    patch.setattr(announce, "_drop_superseded", stubborn)


@mutation("counters rise", **faults(s.FAILURE, s.CRASH, count=5))
def restarts_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forming, "_count", lambda before, ending, kind: int(ending is not None and ending.kind == kind))


@mutation("nobody trains after the verdict", TRAINS, PLACE, END, "a verdict stays", **faults(s.FAILURE))
def the_verdict_is_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(announce, "_verdict", lambda state, verdict, now_s: (state, ()))


@mutation(PLACE, "all save at the same step", **faults(s.STORE_BACK, s.DEPARTURE, s.FAILURE))
def a_record_is_not_written_again(patch: pytest.MonkeyPatch) -> None:
    doubt = observe._doubt

    def careless(state, now_s):
        return replace(doubt(state, now_s), lease=replace(state.lease, repeat_s=NEVER_S))

    patch.setattr(observe, "_doubt", careless)


@mutation("ranks are a bijection", "the roster is one")
def each_node_counts_from_the_end(patch: pytest.MonkeyPatch) -> None:
    formed = announce._formed
    patch.setattr(
        announce,
        "_formed",
        lambda state, round_, rank, control, now_s: formed(state, round_, len(round_.roster) - 1, control, now_s),
    )


@mutation("an answer is to its question", **faults(s.FAILURE, s.FAILURES, count=6, fault_s=10.0, thought_s=12.0))
def a_late_answer_is_taken_for_one_about_another_round(patch: pytest.MonkeyPatch) -> None:
    take = observe._request

    def careless(state, event, now_s):
        if isinstance(event, m.PublishDecision) and event.question and state.duty.asked is not None:
            event = replace(event, question=question_about(*state.duty.asked))
        return take(state, event, now_s)

    patch.setattr(observe, "_request", careless)


@mutation("a stop is prompt", **faults(s.FAILURE))
def an_order_to_stop_waits_for_the_next_renewal(patch: pytest.MonkeyPatch) -> None:
    order = machine._order
    due = [rule if rule is not order else _when_it_renews(order) for rule in machine._RULES]
    patch.setattr(machine, "_RULES", tuple(due))


def _when_it_renews(order):
    def late(state, now_s):
        return order(state, now_s) if now_s - state.lease.confirmed_s < 0.1 else (state, None)

    return late


@mutation("a stop is prompt", PLACE, **faults(s.FAILURE))
def an_order_is_heard_by_the_leader_alone(patch: pytest.MonkeyPatch) -> None:
    ordered = announce._ordered
    patch.setattr(
        announce, "_ordered", lambda state, order, now_s: ordered(state, None if state.lease.ahead else order, now_s)
    )


@mutation("all save at the same step", "what is agreed is one", **faults(s.ARRIVAL, s.DEPARTURE, count=4))
def what_the_first_node_states_is_agreed(patch: pytest.MonkeyPatch) -> None:
    due_of_all = leader.due

    def hasty(control, current, members):
        stating = tuple(member for member in members if member.record.stated)
        return due_of_all(control, current, stating[:1])

    patch.setattr(leader, "due", hasty)


@mutation("all save at the same step", **faults(s.ARRIVAL, s.DEPARTURE, count=4))
def who_has_not_stated_a_number_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    due_of_all = leader.due
    patch.setattr(
        leader,
        "due",
        lambda control, current, members: due_of_all(
            control, current, tuple(member for member in members if member.record.stated)
        ),
    )


@mutation("all save at the same step", **faults(s.ARRIVAL, s.DEPARTURE, count=4))
def a_rank_that_runs_is_taken_for_one_that_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(holding, "_first_open", lambda seen: holding.NO_STEP if seen.step is None else seen.step)


@mutation("who is out has no place", **faults(s.REFUSAL, s.FAILURE, count=6))
def a_refusal_is_taken_for_a_join(patch: pytest.MonkeyPatch) -> None:
    take = observe._request

    def careless(state, event, now_s):
        return take(state, protocol.JoinAsked(master_port=1) if isinstance(event, m.StandAside) else event, now_s)

    patch.setattr(observe, "_request", careless)


@mutation("every member finds its place", **faults(s.ORDER, s.STOPPED, count=2))
def orders_from_outside_are_passed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(announce, "_RULES", tuple(rule for rule in announce._RULES if rule is not announce._drain))
