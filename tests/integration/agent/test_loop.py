"""The agent's loop around its machine, with everything else played: the fence, late answers, bounded graces."""

import signal

import pytest

from elastic_core import messages as m
from elastic_core.agent.feed import Feed, StepTaken
from elastic_core.agent.loop import FENCED, Agent
from elastic_core.agent.parts import AgentOptions
from elastic_core.failure.classify import LOST_PEER_S, SETTLE_S, wait_s
from elastic_core.moments import AgentStarted
from elastic_core.reports import FailureReport
from elastic_core.system.reactor import Reactor
from elastic_core.types import (
    Decided,
    FailedWorker,
    Failure,
    FailureClass,
    Ignore,
    Origin,
    Restart,
    Round,
    RoundEnded,
    WorkerExit,
)
from patience import kept

ROUND = Round(
    index=4, token=9, nonce="n", node_rank=0, node_count=2, local_world_size=2, base_rank=2, world_size=4,
    role="default", role_base_rank=2, role_world_size=4, master_addr="a", master_port=1, node_id="b/10.0.0.2",
)  # fmt: skip


class Rendezvous:
    """Has control; notes what it is told."""

    control = True
    gathers = False

    def __init__(self):
        self.requests = []

    def post(self, request):
        self.requests.append(request)


class Policy:
    """Answers when the test wants."""

    name = "slow"

    def __init__(self):
        self.answers = []

    def decide(self, failure, history, on_decision):
        self.answers.append((failure, on_decision))


class Hooks:
    """Allows everything."""

    def ask_join(self, moment, answer):
        answer(None, "")

    def ask_start(self, moment, answer):
        answer({}, None, "")

    def ask_holds(self, answer):
        answer({})


class Workers:
    def __init__(self):
        self.pids, self.alive, self.raised_s, self.stops = {0: 100, 1: 101}, frozenset({0, 1}), {}, []
        self.reaped = 0
        self.left_pids, self.kept_ranks = frozenset(), ()

    def start(self, launches):
        self.alive = frozenset({0, 1})

    def stop(self, signum, *, grace_s, may_leave=False, planned=False):
        self.stops.append((signum, grace_s))

    def reap_adopted(self):
        self.reaped += 1


class Guardian:
    def __init__(self, fence_s):
        self.fence_s, self.named = fence_s, []

    def note_workers(self, pids):
        self.named.append(list(pids))

    def fence_passed(self, now_s):
        return now_s >= self.fence_s


class Incidents:
    def __init__(self):
        self.told, self.failed_workers = [], ()

    def reported(self, round_, report, pids, *, hook, uptime_s):
        self.told.append(("reported", hook))
        return make_failure(3)

    def note_kept(self, count):
        self.told.append(("kept", count))

    def examine(self, round_, exits, restart_count):
        return make_failure(exits[-1].global_rank)

    def wait_s(self, others, *, stop_signals, peers):
        known = self.failed_workers
        return wait_s(known, others=bool(others), peers=peers, stop_signals=stop_signals) if known else 0.0

    def decided(self, failure, decision, fallback_reason):
        self.told.append(("decided", failure.global_rank))

    def followed(self, failure, decision, evidence, *, restarts):
        self.told.append(("followed", failure.global_rank))

    def notice(self, text):
        self.told.append(text)


def make_failure(rank):
    return Failure(
        failure_class=FailureClass.SIGNAL, summary="killed", node_id="", round_index=4, at_s=0.0, uptime_s=0.0,
        exit_code=137, global_rank=rank, local_rank=rank % 2,
    )  # fmt: skip


def killed(rank, **changes):
    values = {"global_rank": rank + 2, "pid": 100 + rank, "code": -9, "at_s": 50.0, "at_ns": 0, "runtime_s": 1.0}
    return WorkerExit(local_rank=rank, **(values | changes))


class Played:
    """An agent that has come to run the round."""

    def __init__(self, reactor, fence_s, gathers, hooks):
        self.reactor = reactor
        self.rendezvous, self.policy, self.workers, self.incidents = Rendezvous(), Policy(), Workers(), Incidents()
        self.events, feed, self.prepared = [], Feed(), []
        feed.subscribe(lambda what: self.events.append(what.event) if isinstance(what, StepTaken) else None)
        self.guardian = Guardian(fence_s)
        self.agent = Agent(
            AgentOptions(started=AgentStarted(run_id="r", node_id="b", run_dir="/run", pid=1)),
            reactor=reactor, feed=feed,
            guardian=self.guardian, workers=self.workers, planner=self, policy=self.policy,
            incidents=self.incidents, log=self.incidents,
        )  # fmt: skip
        self.agent.attach(rendezvous=self.rendezvous, hooks=hooks or Hooks(), progress=lambda: None)
        self.agent.dispatch(m.StartRequested(control=True, gathers=gathers))
        self.agent.dispatch(m.RoundFormed(round=ROUND))

    def before_join(self, done):
        done()

    def prepare(self, round_, done):
        self.prepared.append(round_.index)
        done()

    def plan(self, command):
        return []

    def hear(self, change):
        self.agent.dispatch(m.RoundChanged(change=change))


@pytest.fixture
def play():
    reactor = Reactor()
    yield lambda fence_s=float("inf"), gathers=False, hooks=None: Played(reactor, fence_s, gathers, hooks)
    reactor.close()


def test_workers_that_the_guard_killed_did_not_fail(play):
    it = play(fence_s=49.0)
    for rank in (0, 1):
        it.agent.on_worker_exit(killed(rank))
    changes = [event.change for event in it.events if isinstance(event, m.RoundChanged)]
    assert changes[0] == RoundEnded(reason=FENCED, lost=("b/10.0.0.2",), stop_within_s=0.0)
    assert it.policy.answers == []
    assert it.workers.stops[0] == (signal.SIGTERM, 0.0)
    assert it.incidents.told[0] == f"round 4 is over: {FENCED}"


def test_the_guard_is_informed_once_of_workers_that_end_together(play):
    it = play()
    assert it.guardian.named == [[100, 101]]
    it.workers.alive = frozenset()
    for rank in (0, 1):
        it.agent.on_worker_exit(killed(rank, code=0))
    while not it.workers.reaped:
        it.reactor.turn()
    assert it.guardian.named == [[100, 101], []]
    assert it.workers.reaped == 1


@pytest.mark.parametrize("exit", [killed(0, at_s=48.0), killed(0, code=-11), killed(0, code=7)])
def test_other_deaths_are_failures_whatever_the_fence(play, exit):
    it = play(fence_s=49.0)
    it.agent.on_worker_exit(exit)
    assert not [event for event in it.events if isinstance(event, m.RoundChanged)]


def test_a_hang_is_examined_only_where_nothing_else_is_being_decided(play):
    it, report = play(), FailureReport(failure_class=FailureClass.HANG, summary="hangs")
    it.agent.report_failure("watch", report)
    assert [failure.global_rank for failure, _ in it.policy.answers] == [3]
    assert it.policy.answers[0][0].node_id == "b/10.0.0.2"
    it.agent.report_failure("watch", report)
    assert it.incidents.told == [("reported", "watch")]


def test_a_policy_reads_how_many_workers_are_alive_that_have_not_failed(play):
    it = play()
    it.agent.on_worker_exit(killed(0))
    assert [(failure.alive_count, failure.kept_count) for failure, _ in it.policy.answers] == [(1, None)]
    it = play()
    it.incidents.failed_workers = (failed(killed(1), Origin.INTRINSIC),)
    it.agent.report_failure("watch", FailureReport(failure_class=FailureClass.HANG, summary="hangs"))
    assert it.workers.alive == {0, 1}
    assert it.policy.answers[0][0].alive_count == 1, "one that hangs has failed, although it has not ended"


def test_a_decision_is_published_with_the_id_that_the_others_know(play):
    it = play()
    it.agent.on_worker_exit(killed(0))
    failure, answer = it.policy.answers[0]
    answer(Restart(), "")
    assert m.PublishDecision(decision=Restart(), failure=failure) in it.rendezvous.requests
    assert failure.node_id == "b/10.0.0.2"


def test_an_answer_that_comes_after_the_run_has_decided_is_dropped(play):
    it = play()
    it.agent.on_worker_exit(killed(0))
    it.hear(Decided(decision=Restart(), failure=make_failure(0)))
    _, answer = it.policy.answers[0]
    answer(Restart(), "")
    assert it.incidents.told == [("followed", 0)]
    assert not [asked for asked in it.rendezvous.requests if isinstance(asked, m.PublishDecision)]


def test_the_grace_period_is_the_shorter_of_the_users_and_the_leases(play):
    it = play()
    it.hear(RoundEnded(reason="cut off", stop_within_s=100.0))
    it.hear(RoundEnded(reason="cut off", stop_within_s=2.0))
    assert [grace_s for _, grace_s in it.workers.stops] == [30.0, 2.0]


@pytest.mark.parametrize("origin", [Origin.COLLATERAL, Origin.INTRINSIC])
def test_where_all_have_merely_lost_a_peer_it_is_judged_later_and_with_what_came_since(play, origin):
    it = play(gathers=True)
    it.incidents.failed_workers = (
        FailedWorker(
            exit=killed(0), origin=origin, failure_class=FailureClass.USER_EXCEPTION, summary="reset", at_ns=0
        ),
    )
    began_s = it.reactor.now_s()
    it.agent.on_worker_exit(killed(0))
    assert len(it.policy.answers) == (origin is Origin.INTRINSIC)
    it.agent.on_worker_exit(killed(1))
    while not it.policy.answers:
        it.reactor.turn()
    took_s = it.reactor.now_s() - began_s
    (failure, _), late = it.policy.answers[0], origin is Origin.COLLATERAL
    assert failure.global_rank == (3 if late else 2)
    if late:
        assert took_s >= LOST_PEER_S
        kept(took_s, 1.0)


def failed(exit, origin=Origin.INTRINSIC, at_ns=0):
    return FailedWorker(
        exit=exit, origin=origin, failure_class=FailureClass.USER_EXCEPTION, summary="boom", at_ns=at_ns
    )


@pytest.mark.parametrize("how", ["record", "exit"])
def test_a_wait_for_evidence_ends_when_the_evidence_comes(play, how):
    it = play()
    it.incidents.failed_workers = (failed(killed(0, code=1), Origin.COLLATERAL),)
    began_s = it.reactor.now_s()
    it.agent.on_worker_exit(killed(0, code=1))
    it.incidents.wait_s = lambda others, **_: 600.0 * len(others)
    it.agent.on_recorded(killed(0, code=1))  # late: it has ended
    assert it.policy.answers == []
    (it.agent.on_recorded if how == "record" else it.agent.on_worker_exit)(killed(1, code=1))
    ((failure, _),) = it.policy.answers
    assert failure.global_rank == 3  # both were examined
    kept(it.reactor.now_s() - began_s, SETTLE_S)


@pytest.mark.parametrize(
    ("after_s", "before", "code"),
    [(0.05, {}, 1), (0.2, {}, -15), (0.05, {"stop_signal": 15, "stop_sent_ns": 1}, -15)],
    ids=["soon", "slow to end", "by the stop"],
)
def test_a_worker_that_is_stopped_while_its_exception_ends_it_has_the_code_of_the_exception(
    play, after_s, before, code
):
    it = play()
    it.agent.on_recorded(killed(1, code=1, **before))
    it.agent.on_worker_exit(killed(1, code=-15, at_s=50.0 + after_s, stop_signal=15, stop_sent_ns=1))
    (event,) = [each for each in it.events if isinstance(each, m.WorkerExited)]
    assert (event.exit.code, event.exit.stop_signal) == (code, 15)


def test_a_stop_of_the_agent_ends_the_wait_for_evidence(play):
    it = play()
    it.incidents.failed_workers = (failed(killed(0, code=1), Origin.COLLATERAL),)
    it.agent.on_worker_exit(killed(0, code=1))
    it.agent.dispatch(m.StopRequested(signum=signal.SIGTERM))
    it.agent.on_worker_exit(killed(1, code=1))
    assert [signum for signum, _ in it.workers.stops] == [signal.SIGTERM]
    assert it.policy.answers == []


def test_a_worker_whose_failure_is_ignored_is_not_examined_again(play):
    it = play()
    it.agent.on_recorded(killed(1, code=1))
    it.agent.on_worker_exit(killed(0, code=1))
    (failure, answer), *_ = it.policy.answers
    assert failure.global_rank == 3
    answer(Ignore(), "")
    assert [failure.global_rank for failure, _ in it.policy.answers] == [3, 2]


def test_nothing_is_made_for_workers_where_a_hook_answers_only_when_the_agent_is_stopping(play):
    class Slow(Hooks):
        def ask_start(self, moment, answer):
            self.answer = answer

    hooks = Slow()
    it = play(hooks=hooks)
    it.agent.dispatch(m.StopRequested(signum=signal.SIGTERM))
    hooks.answer({}, None, "")
    assert it.prepared == []
    assert not [event for event in it.events if isinstance(event, m.StartAllowed)]
    assert play().prepared == [ROUND.index]


def test_kept_workers_stay_named_to_the_guard_and_are_counted(play):
    it = play()
    it.hear(RoundEnded(reason="b joined"))
    it.workers.left_pids = frozenset({100})
    it.agent.on_workers_stopped()
    it.agent._note_alive()
    assert 100 in it.guardian.named[-1]
    assert ("kept", 1) in it.incidents.told
