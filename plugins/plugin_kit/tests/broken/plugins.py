"""Policies, hooks and rendezvous that are wrong in one way each, and the tests of their kits that must say so."""

import itertools
import os
import random
import socket
import threading
import time
from pathlib import Path

import msgspec

from elastic_core.api import (
    API_VERSION,
    SYSTEM_CLOCK,
    AgentHook,
    Failure,
    FailureHandler,
    Ignore,
    LaunchChange,
    Launches,
    OptionSpec,
    Power,
    Refuse,
    Restart,
    Stop,
    WaitBudget,
)
from meeting import Meeting

replace = msgspec.structs.replace

POLICIES, HOOKS, RENDEZVOUS = [], [], []
KEPT = []
"""What some of them leave open."""


def broken(group, named, *also):
    """Register a broken plugin: the test that names its defect, and all others that fail of it, without `test_`."""

    def register(cls):
        if "api_version" not in vars(cls) and named != "the_api_version_is_stated":
            cls.api_version = API_VERSION
        group.append((cls, frozenset(f"test_{name}" for name in (named, *also))))
        return cls

    return register


class Sound(FailureHandler):
    """What the broken ones are made of."""

    api_version = API_VERSION

    def decide(self, failure, history):
        if len(history) < self.settings.max_restarts:
            return Restart(delay_s=1.0)
        return Stop(reason="enough")


@broken(POLICIES, "the_api_version_is_stated")
class InheritsItsVersion(Sound):
    pass


@broken(POLICIES, "the_options_are_declared_well")
class OptionOfAStrangeType(Sound):
    options = (OptionSpec(name="pause", type="seconds", help="wait"),)


@broken(POLICIES, "every_failure_is_decided", "decisions_can_be_followed")
class AnswersNone(Sound):
    def decide(self, failure, history):
        return None if failure.exit_code == 137 else super().decide(failure, history)


@broken(POLICIES, "decisions_can_be_followed")
class WaitsForEver(Sound):
    def decide(self, failure, history):
        decision = super().decide(failure, history)
        return Restart(delay_s=float("inf")) if isinstance(decision, Restart) else decision


@broken(POLICIES, "decisions_can_be_followed")
class StopsWithoutAReason(Sound):
    def decide(self, failure, history):
        decision = super().decide(failure, history)
        return Stop(reason="") if isinstance(decision, Stop) else decision


@broken(POLICIES, "decisions_can_be_followed")
class ExcludesWithAList(Sound):
    def decide(self, failure, history):
        decision = super().decide(failure, history)
        return Restart(exclude_nodes=[failure.node_id]) if isinstance(decision, Restart) else decision


@broken(POLICIES, "the_same_question_has_the_same_answer", "fields_of_later_versions_do_no_harm",
        "history_may_be_any_sequence")  # fmt: skip
class Remembers(Sound):
    """Counts for itself."""

    asked = 0

    def decide(self, failure, history):
        self.asked += 1
        decision = super().decide(failure, history)
        return Restart(delay_s=float(self.asked)) if isinstance(decision, Restart) else decision


@broken(POLICIES, "the_same_question_has_the_same_answer", "fields_of_later_versions_do_no_harm",
        "history_may_be_any_sequence")  # fmt: skip
class DrawsLots(Sound):
    def decide(self, failure, history):
        decision = super().decide(failure, history)
        return Restart(delay_s=random.random()) if isinstance(decision, Restart) else decision


@broken(POLICIES, "the_same_question_has_the_same_answer")
class ReadsAClock(Sound):
    """Restarts only before a certain time."""

    began_s = SYSTEM_CLOCK.monotonic_s()

    def decide(self, failure, history):
        late = SYSTEM_CLOCK.monotonic_s() > self.began_s + 3000
        return Stop(reason="it is late") if late else super().decide(failure, history)


@broken(POLICIES, "it_opens_nothing")
class ReadsAFile(Sound):
    def decide(self, failure, history):
        Path("/proc/loadavg").read_text()
        return super().decide(failure, history)


@broken(POLICIES, "decisions_are_quick")
class IsSlow(Sound):
    def decide(self, failure, history):
        if len(history) > 50:
            threading.Event().wait(0.6)
        return super().decide(failure, history)


@broken(POLICIES, "every_failure_is_decided", "decisions_can_be_followed", "the_same_question_has_the_same_answer",
        "it_opens_nothing", "history_may_be_any_sequence", "decisions_are_quick", "fields_of_later_versions_do_no_harm",
        "it_leaves_nothing", "a_run_that_fails_again_and_again_ends")  # fmt: skip
class ThinksForLong(Sound):
    """Each decision takes longer than it is waited for; no test waits for more than one."""

    def decide(self, failure, history):
        threading.Event().wait(1.2)
        return super().decide(failure, history)


@broken(POLICIES, "it_leaves_nothing")
class LeavesAFileOpen(Sound):
    def __init__(self, settings):
        super().__init__(settings)
        KEPT.append(Path("/proc/loadavg").open())  # noqa: SIM115


@broken(POLICIES, "history_may_be_any_sequence")
class ChangesTheHistory(Sound):
    def decide(self, failure, history):
        decision = super().decide(failure, history)
        if isinstance(history, list):
            history.append(failure)
        return decision


@broken(POLICIES, "fields_of_later_versions_do_no_harm")
class KnowsEachField(Sound):
    def decide(self, failure, history):
        return Ignore() if len(failure.__struct_fields__) != FIELDS else super().decide(failure, history)


FIELDS = len(Failure.__struct_fields__)


@broken(POLICIES, "a_run_that_fails_again_and_again_ends")
class NeverEnds(Sound):
    def decide(self, failure, history):
        return Restart(delay_s=1.0)


# --- hooks ---


class Listener(AgentHook):
    """What the broken ones are made of."""

    api_version = API_VERSION

    def on_agent_stopped(self, event):
        return None


@broken(HOOKS, "the_api_version_is_stated")
class HookInheritsItsVersion(Listener):
    pass


@broken(HOOKS, "the_options_are_declared_well")
class TwoOptionsOfOneName(Listener):
    options = (OptionSpec(name="a", help="one"), OptionSpec(name="a", help="two"))


@broken(HOOKS, "it_is_told_of_something")
class IsToldOfNothing(AgentHook):
    pass


@broken(HOOKS, "it_is_told_of_something")
class MisspellsAMoment(Listener):
    def on_workers_exited(self, event):
        return None


@broken(HOOKS, "every_moment_is_taken", "answers_are_what_the_moment_allows", "every_moment_is_quick",
        "fields_of_later_versions_do_no_harm", "nothing_heavy_is_imported_on_the_way",
        "its_own_calls_are_taken", "two_hooks_of_one_process_are_apart", "it_leaves_nothing",
        "it_changes_nothing_around_it")  # fmt: skip
class TakesEveryRankForANumber(Listener):
    def on_failure(self, event):
        return f"{event.failure.global_rank:d}" and None


@broken(HOOKS, "every_moment_is_quick", "every_moment_is_taken", "answers_are_what_the_moment_allows",
        "fields_of_later_versions_do_no_harm", "nothing_heavy_is_imported_on_the_way", "it_leaves_nothing",
        "its_own_calls_are_taken", "two_hooks_of_one_process_are_apart", "it_changes_nothing_around_it")  # fmt: skip
class Hangs(Listener):
    """A call that does not come back fails the first test that makes it, in five seconds, and the others at once."""

    def on_round_joined(self, event):
        threading.Event().wait(60)


@broken(HOOKS, "it_leaves_nothing")
class KeepsAThread(Listener):
    def on_agent_started(self, event):
        threading.Thread(target=threading.Event().wait, args=(30,), daemon=True).start()


@broken(HOOKS, "it_leaves_nothing")
class LeavesASocket(Listener):
    def on_agent_started(self, event):
        KEPT.append(socket.socket())


@broken(HOOKS, "it_changes_nothing_around_it")
class SetsAVariable(Listener):
    def on_agent_started(self, event):
        os.environ["ACME_STARTS"] = str(1 + int(os.environ.get("ACME_STARTS", 0)))


@broken(HOOKS, "answers_are_what_the_moment_allows")
class CallsWhatIsNotThere(Listener):
    powers = frozenset({Power.LAUNCHES})

    def on_workers_starting(self, event):
        return Launches(workers={0: LaunchChange(startup=("json:loads", "acme_nowhere.worker:begin"))})


@broken(HOOKS, "every_moment_is_quick")
class IsSlowToStop(Listener):
    def on_agent_stopped(self, event):
        threading.Event().wait(2.3)


@broken(HOOKS, "answers_are_what_the_moment_allows")
class AnswersWhereNobodyAsks(Listener):
    def on_round_joined(self, event):
        return Refuse(reason="too few nodes")


@broken(HOOKS, "answers_are_what_the_moment_allows")
class SetsARank(Listener):
    powers = frozenset({Power.LAUNCHES})

    def on_workers_starting(self, event):
        return Launches(environment={"RANK": "0"})


@broken(HOOKS, "answers_are_what_the_moment_allows")
class SetsANumber(Listener):
    powers = frozenset({Power.LAUNCHES})

    def on_workers_starting(self, event):
        return Launches(environment={"THREADS": 4})


@broken(HOOKS, "answers_are_what_the_moment_allows")
class RefusesWithoutThePower(Listener):
    def on_joining(self, event):
        return Refuse(reason="too hot")


@broken(HOOKS, "the_powers_are_stated_well")
class FailsClosedWithoutThePower(Listener):
    fail_closed = True


@broken(HOOKS, "answers_are_what_the_moment_allows")
class PutsAWordBefore(Listener):
    powers = frozenset({Power.LAUNCHES})

    def on_workers_starting(self, event):
        return Launches(workers={0: LaunchChange(command="numactl")})


@broken(HOOKS, "its_own_calls_are_taken")
class FailsLater(Listener):
    powers = frozenset({Power.RUN})

    def on_agent_started(self, event):
        self.run.call_later(30.0, lambda: 1 / 0)


@broken(HOOKS, "every_moment_is_taken", "answers_are_what_the_moment_allows", "every_moment_is_quick",
        "fields_of_later_versions_do_no_harm", "nothing_heavy_is_imported_on_the_way",
        "its_own_calls_are_taken", "two_hooks_of_one_process_are_apart", "it_leaves_nothing",
        "it_changes_nothing_around_it")  # fmt: skip
class PublishesWhatNoFileCanHold(Listener):
    powers = frozenset({Power.RUN})

    def on_workers_started(self, event):
        self.run.publish({"gpu": object()})


@broken(HOOKS, "the_feed_is_taken")
class KnowsNoOtherEvent(Listener):
    """Takes the feed for what it has seen of it."""

    powers = frozenset({Power.FEED})

    def on_run_event(self, event):
        {"agent-started": self}[event.name]


@broken(HOOKS, "the_powers_are_stated_well")
class StatesAWord(Listener):
    powers = frozenset({"everything"})


@broken(HOOKS, "the_powers_are_stated_well")
class StartsWithoutThePower(Listener):
    def worker_starter(self, loop):
        return None


@broken(HOOKS, "the_powers_are_stated_well")
class HoldsForLong(Listener):
    powers = frozenset({Power.RUN, Power.HOLDS})
    hold_s = "long"

    def on_stop_planned(self, event):
        pass


@broken(HOOKS, "the_powers_are_stated_well")
class HoldsWithoutAnEnd(Listener):
    powers = frozenset({Power.HOLDS})
    hold_s = 1.0

    def on_stop_planned(self, event):
        pass


@broken(HOOKS, "fields_of_later_versions_do_no_harm")
class KnowsEachMoment(Listener):
    def on_drain(self, event):
        if event.__struct_fields__ != ("signum", "deadline_s"):
            raise ValueError("what is this?")


@broken(HOOKS, "two_hooks_of_one_process_are_apart")
class IsAlone(Listener):
    """Keeps what is a hook's own on the class."""

    running = None

    def on_agent_started(self, event):
        if IsAlone.running not in (None, self):
            raise RuntimeError("runs already")
        IsAlone.running = self

    def on_agent_stopped(self, event):
        IsAlone.running = None


# --- rendezvous ---


@broken(RENDEZVOUS, "the_api_version_is_stated")
class MeetingInheritsItsVersion(Meeting):
    pass


@broken(RENDEZVOUS, "the_options_are_declared_well")
class OptionWithAStrangeDefault(Meeting):
    options = (OptionSpec(name="last_call", type="float", default="soon", help="wait for more"),)


@broken(RENDEZVOUS, "capabilities_are_known_ones")
class CapabilitiesAreATuple(Meeting):
    capabilities = tuple(Meeting.capabilities)


@broken(RENDEZVOUS, "it_knows_whose_it_is")
class HasNoName(Meeting):
    def get_backend(self):
        return ""


@broken(RENDEZVOUS, "tokens_only_rise", "all_nodes_form_the_next_round")
class TokensStand(Meeting):
    def info(self, current):
        return replace(super().info(current), round_token=7)


@broken(RENDEZVOUS, "all_nodes_form_one_round", "all_nodes_form_the_next_round", "a_newcomer_is_told")
class EverybodyIsFirst(Meeting):
    def info(self, current):
        return replace(super().info(current), rank=0)


@broken(RENDEZVOUS, "all_nodes_form_one_round", "all_nodes_form_the_next_round", "a_newcomer_is_told")
class NoncesAreOnesOwn(Meeting):
    counter = itertools.count()

    def info(self, current):
        return replace(super().info(current), nonce=f"{next(self.counter)}")


@broken(RENDEZVOUS, "one_node_forms_a_round", "runs_do_not_meet")
class RanksBeginAtOne(Meeting):
    def info(self, current):
        info = super().info(current)
        return replace(info, rank=info.rank + 1) if info.world_size == 1 else info


@broken(RENDEZVOUS, "runs_do_not_meet")
class RunsMeet(Meeting):
    def __init__(self, settings, *, server):
        super().__init__(replace(settings, run_id=settings.run_id.partition(":")[0], max_nodes=3), server=server)


@broken(RENDEZVOUS, "next_rendezvous_ends_when_cancelled", "next_rendezvous_ends_at_its_deadline")
class JoiningHearsNothing(Meeting):
    def next_rendezvous(self):
        self.wait.check()
        given, self.wait = self.wait, WaitBudget.lasting(4.5)  # longer than the kit waits on the busiest machine
        try:
            return super().next_rendezvous()
        finally:
            self.wait = given


@broken(RENDEZVOUS, "a_cancelled_budget_forms_no_round")
class JoiningLooksTooLate(Meeting):
    def next_rendezvous(self):
        if not self.wait.cancelled:
            return super().next_rendezvous()
        self.wait = WaitBudget.lasting(1.0)
        return super().next_rendezvous()


@broken(RENDEZVOUS, "watch_ends_when_cancelled")
class WatchingHearsNothing(Meeting):
    def watch(self, timeout_s):
        if timeout_s == 4.0:
            self.wait = WaitBudget.lasting(5.0)
        return super().watch(timeout_s)


@broken(RENDEZVOUS, "a_quiet_round_is_quiet")
class WatchComesBackAtOnce(Meeting):
    def watch(self, timeout_s):
        return super().watch(timeout_s if timeout_s > 1 else 0.0)


@broken(RENDEZVOUS, "a_quiet_round_is_quiet", "watch_ends_when_cancelled")
class AlwaysSomebodyWaits(Meeting):
    def num_nodes_waiting(self):
        return 1


@broken(RENDEZVOUS, "a_newcomer_is_told", "a_departure_is_told", "the_end_is_told")
class NothingIsTold(Meeting):
    def change(self):
        return None


@broken(RENDEZVOUS, "a_departure_is_told")
class DeparturesAreTexts(Meeting):
    def change(self):
        change = super().change()
        return change.node_id if hasattr(change, "node_id") else change


@broken(RENDEZVOUS, "a_closed_rendezvous_forms_no_round", "the_end_is_told")
class ClosingDoesNothing(Meeting):
    def set_closed(self):
        return


@broken(RENDEZVOUS, "a_closed_rendezvous_forms_no_round")
class TheClosedGoOn(Meeting):
    forming = False

    def next_rendezvous(self):
        self.forming = True
        try:
            return super().next_rendezvous()
        finally:
            self.forming = False

    def is_closed(self):
        return not self.forming and super().is_closed()


@broken(RENDEZVOUS, "shutdown_is_idempotent")
class ShutsDownOnce(Meeting):
    down = 0

    def shutdown(self):
        self.down += 1
        if self.down == 2:
            raise RuntimeError("there is nothing left")
        return super().shutdown()


@broken(RENDEZVOUS, "shutdown_leaves_nothing")
class LeavesAThread(Meeting):
    def next_rendezvous(self):
        formed = super().next_rendezvous()
        threading.Thread(target=time.sleep, args=(4.0,), daemon=True).start()  # noqa: TID251  # it must not end early
        return formed
