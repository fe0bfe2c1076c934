"""What the agent does for hooks that have the run's handle, and the feed that it gives them."""

import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from elastic_core.agent.feed import Feed, FieldsPublished, Observation, StoreCall, described
from elastic_core.agent.loop import Agent
from elastic_core.agent.parts import Workers
from elastic_core.clock import SYSTEM_CLOCK, Clock
from elastic_core.failure.reporter import Reporter
from elastic_core.hooks.feed import HookFeed
from elastic_core.hooks.handle import Offer
from elastic_core.messages import AskSteps, ReportSteps, RestartRequested, StateNumber, StopRequested
from elastic_core.moments import Agreed, Moment, StepsSeen
from elastic_core.processes.spec import WorkerLaunch
from elastic_core.reactor import Reactor
from elastic_core.rendezvous.coordinated import Backend
from elastic_core.rendezvous.events import Rendezvous
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.reports import (
    AgentChannel,
    FailureReport,
    FieldValue,
    NodeSteps,
    RunningWorker,
    RunSteps,
    WorkerBeats,
    WorkerStack,
)
from elastic_core.types import Failure, Round

if TYPE_CHECKING:
    from elastic_core.agent.watch.beat_file import BeatFiles
    from elastic_core.launcher.worker_watch import WorkerStacks


MOST_RESTARTS: Final = 10
"""So many rounds a hook may end by itself within `RESTARTS_WITHIN_S`: no budget counts them."""
RESTARTS_WITHIN_S: Final = 3600.0


class HookActions:
    """Does what hooks ask for, as a signal would. Threading: the loop's, but `beats`.

    Args:
        reactor: The loop.
        reporter: The voice of the run.
        stacks: Takes those of workers.
        workers: This node's.
        send: Signals one of them, by local rank.
        agent: Returns the agent.
        rendezvous: Where it asks for rounds.
        run_dir: Where the run directory is; replaced when it is made anew elsewhere.
        beats: What they say of themselves; None: nobody wanted to know.
        publish: Takes what happens, for the agent's feed.
        keep: Lets it stay, for a reason.
        feed: The feed of the hooks.
        store_place: Returns where the rendezvous store is, for people.
    """

    def __init__(
        self,
        reactor: Reactor,
        *,
        reporter: Reporter,
        stacks: "WorkerStacks",
        workers: Workers,
        send: Callable[[int, int], None],
        agent: Callable[[], Agent],
        rendezvous: Rendezvous,
        run_dir: str,
        beats: "BeatFiles | None",
        publish: Callable[[Moment | FieldsPublished], None],
        keep: Callable[[str], None],
        feed: HookFeed,
        store_place: Callable[[], str],
    ) -> None:
        self.offers: dict[str, Offer] = {}
        self.run_dir = run_dir
        self._keep = keep
        self._feed = feed
        self._store_place = store_place
        self._publish = publish
        self._reactor = reactor
        self._reporter = reporter
        self._stacks = stacks
        self._beats = beats
        self._workers = workers
        self._send = send
        self._agent = agent
        self._rendezvous = rendezvous
        self._restarts: dict[str, dict[int, float]] = {}
        """When each hook has ended which rounds by itself."""
        self._left_alone: dict[str, int] = {}
        self._round: Round | None = None
        self._launches: tuple[tuple[WorkerLaunch, str], ...] = ()
        self._begun_s = 0.0

    def begin_round(self, round_: Round, launches: Sequence[WorkerLaunch], error_files: Mapping[int, str]) -> None:
        """Take what is about to be started, and where each writes what it fails of, by local rank."""
        self._round = round_
        self._launches = tuple((launch, error_files[launch.local_rank]) for launch in launches)
        self._begun_s = self._reactor.now_s()

    def running(self, pids: Mapping[int, int]) -> tuple[RunningWorker, ...]:
        """Return the workers that were started, by their pids."""
        return tuple(
            RunningWorker(
                local_rank=launch.local_rank,
                global_rank=launch.global_rank,
                pid=pids[launch.local_rank],
                stdout=launch.stdout.file or "",
                stderr=launch.stderr.file or "",
                error_file=error_file,
            )
            for launch, error_file in self._launches
            if launch.local_rank in pids
        )

    def report(self, hook: str, report: FailureReport) -> None:
        """Take a failure that a hook has found, unless something else is being decided."""
        round_ = self._round
        if round_ is not None:
            uptime_s, pids = self._reactor.now_s() - self._begun_s, self._workers.pids

            def examine() -> Failure:
                failure = self._reporter.reported(round_, report, pids, hook=hook, uptime_s=uptime_s)
                for fault in report.workers:
                    if fault.signal > 0:
                        self._send(fault.local_rank, fault.signal)
                return failure

            self._agent().on_hang(examine)

    def restart(self, hook: str, reason: str, *, by_user: bool = False) -> None:
        """Restart all workers of the run, where the backend can tell the other nodes; a hook by itself not for ever."""
        round_ = self._round
        if round_ is not None and not by_user and not self._may_restart(hook, reason, round_.index):
            return
        if by_user:
            reason = f"a restart was asked for on node {self._agent().node_id}" + (f" ({reason})" if reason else "")
        if round_ is not None and round_.node_count > 1 and not self._rendezvous.takes_requests:
            self._reporter.notice(f"{reason}: left alone, the rendezvous can't tell the other nodes")
        else:
            self._agent().dispatch(RestartRequested(reason=reason))

    def _may_restart(self, hook: str, reason: str, round_index: int) -> bool:
        """Count the rounds that a hook has ended by itself; one line for each that it must leave alone."""
        had = self._restarts.setdefault(hook, {})
        now_s = self._reactor.now_s()
        for earlier in [index for index, at_s in had.items() if now_s - at_s >= RESTARTS_WITHIN_S]:
            del had[earlier]
        if len(had) < MOST_RESTARTS or round_index in had:
            had.setdefault(round_index, now_s)
            return True
        if self._left_alone.get(hook) != round_index:
            self._left_alone[hook] = round_index
            self._reporter.notice(
                f"{reason}: left alone, it has ended {MOST_RESTARTS} rounds within {RESTARTS_WITHIN_S / 60:g} minutes"
            )
        return False

    def drain(self, reason: str, grace_s: float | None) -> None:
        """Stop this node's workers, and leave; an empty reason is not shown."""
        if reason:
            self._reporter.notice(reason)
        self._agent().dispatch(StopRequested(signum=signal.SIGTERM, grace_s=grace_s))

    def publish(self, hook: str, fields: Mapping[str, FieldValue]) -> None:
        """Keep a hook's fields for incidents, and hand them on."""
        self._reporter.hook_fields[hook] = dict(fields)
        self._publish(FieldsPublished(hook=hook, fields=fields))

    def record(self, hook: str, name: str, values: Mapping[str, object]) -> None:
        """Add an event to the feed. Threading: any."""
        self._feed.publish(name, values, source=hook)

    def keep_run_dir(self, because: str) -> None:
        """Let the run directory stay."""
        self._keep(because)

    def stacks(
        self, on_taken: Callable[[Mapping[int, WorkerStack]], None], ranks: Collection[int] | None = None
    ) -> None:
        """Take the stacks of this node's workers."""
        self._stacks.take(on_taken, ranks=ranks)

    def store_place(self) -> str:
        """Return where the rendezvous store is, for people. Threading: any."""
        try:
            return self._store_place()
        except Exception:  # noqa: BLE001  # a backend's code, which a hook has not called
            return ""

    def beats(self) -> Mapping[int, WorkerBeats]:
        """Return what this node's workers have said of themselves."""
        return {} if self._beats is None else self._beats.read()

    def ask_steps(self) -> None:
        """Ask all nodes of the round; where this is the only one, or they can't be asked, nobody has answered."""
        round_ = self._round
        if round_ is not None and round_.node_count > 1 and self._rendezvous.gathers:
            self._rendezvous.post(AskSteps())
        else:
            self._publish(StepsSeen(seen=RunSteps(serial=0)))

    def report_steps(self, steps: NodeSteps) -> None:
        """Take this node's answer to the others."""
        if self._rendezvous.gathers:
            self._rendezvous.post(ReportSteps(steps=steps))

    def agree(self, topic: str, value: int) -> None:
        """State this node's number; where it is the only one, or they can't agree, that is what is agreed."""
        round_ = self._round
        if round_ is not None and round_.node_count > 1 and self._rendezvous.agrees:
            self._rendezvous.post(StateNumber(topic=topic, value=value))
        else:
            self._publish(Agreed(topic=topic, value=value))

    def release_stop(self, hook: str) -> None:
        """Let a planned stop go on, as far as this hook is concerned."""
        self._agent().release_stop(hook)

    def channel(self) -> AgentChannel | None:
        """Return how the agents of the run know each other. Threading: any."""
        return self._rendezvous.channel


STORE_CALL: Final = "store_call"
METERED: Final = ("connect", "enlist", "update", "renew", "withdraw", "members", "load", "swap")
"""Not `watch`: it waits for others."""


def feed_hooks(of_hooks: HookFeed, feed: Feed, handler: Backend) -> Callable[[Observation], None]:
    """Hand on to hooks what there is, if any take it; return what publishes beside the loop, from any thread."""

    def publish(what: Observation) -> None:
        of_hooks.publish(*described(what))

    if of_hooks.wanted:
        feed.subscribe(lambda what: of_hooks.publish(*described(what)))
        if of_hooks.takes(STORE_CALL) and (store := _store(handler)) is not None:
            measure(store, publish)
    return publish


def store_place(handler: Backend) -> str:
    """Return where the handler's store is, for people; empty: it has none, or that is not known yet."""
    store = _store(handler)
    return "" if store is None else store.where


def _store(handler: Backend) -> CoordinationStore | None:
    store = getattr(handler, "store", None)
    return store if isinstance(store, CoordinationStore) else None


def measure(store: CoordinationStore, take: Callable[[StoreCall], None], clock: Clock = SYSTEM_CLOCK) -> None:
    """Measure the calls to a store from now on; `take` gets each, on the thread that has made it."""
    for name in METERED:
        setattr(store, name, _measured(name, getattr(store, name), take, clock))


def _measured(
    name: str, call: Callable[..., Any], take: Callable[[StoreCall], None], clock: Clock
) -> Callable[..., Any]:
    @wraps(call)
    def measured(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # as the method takes and gives
        began_s, failed = clock.monotonic_s(), True
        try:
            answer = call(*args, **kwargs)
            failed = False
        finally:
            take(StoreCall(call=name, took_s=clock.monotonic_s() - began_s, failed=failed))
        return answer

    return measured
