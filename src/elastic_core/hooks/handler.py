"""The interface of hooks (`AgentHook`), and the check of the powers that a class states."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from elastic_core.hooks.handle import RunHandle
from elastic_core.moments import (
    AgentStarted,
    AgentStopped,
    Agreed,
    AnswersGathered,
    Concluded,
    DecisionTaken,
    Draining,
    FailureSeen,
    Launches,
    MembershipChanged,
    Moment,
    NodesAsked,
    Power,
    Refuse,
    RoundJoined,
    RoundJoining,
    StopPlanned,
    WorkerEnded,
    WorkersStarted,
    WorkersStarting,
    WorkersStopping,
)
from elastic_core.option_spec import OptionSpec
from elastic_core.reports import RunEvent
from elastic_core.starters import AgentLoop, WorkerStarter
from elastic_core.types import HookSettings

if TYPE_CHECKING:
    from elastic_core.hooks.master_server import MasterServer

# The methods that use each power: a class overrides one of them. Empty means that any method may use it.
_METHODS: Final[Mapping[Power, tuple[str, ...]]] = {
    Power.FEED: ("on_run_event",),
    Power.LAUNCHES: ("on_workers_starting",),
    Power.REFUSAL: ("on_joining", "on_workers_starting"),
    Power.RUN: (),
    Power.HOLDS: ("on_stop_planned",),
    Power.STARTS: ("worker_starter",),
    Power.HOSTS: ("master_server",),
}


class AgentHook:
    """An observer of the agent, with the powers that it states. Subclass it and override what you need.

    A class in the group `elastic_core.hooks` is active in every run. A class that a `RunOption` in the group
    `elastic_core.options` names is built only if such an option is given.

    It is built once per run as `cls(settings)`. The default methods do nothing. An exception is logged with the
    plugin's name and counted, and does not affect the agent. If a call exceeds its deadline, it is abandoned, and the
    hook is disabled for the rest of the run.

    Threading: one thread for all hooks, one call at a time, never the supervisor's thread; except `worker_starter` and
    `master_server`, which run on the agent's thread.
    """

    api_version: ClassVar[int]
    options: ClassVar[Sequence[OptionSpec]] = ()
    powers: ClassVar[frozenset[Power]] = frozenset()
    """What the class does besides observing. Returning a value without its power is an error."""
    without_events: ClassVar[frozenset[str]] = frozenset()
    """Events of the feed (`Power.FEED`) that it does not receive. Store calls are measured for receivers only."""
    fail_closed: ClassVar[bool] = False
    """Whether a health gate (`Power.REFUSAL`) refuses when it fails: exception, invalid answer or timeout.

    If False, workers start as if the hook had no objection. A gate whose call exceeds its deadline refuses until the
    call returns."""

    hosting: bool = False
    """Whether workers use its server (`Power.HOSTS`): read before each round and by `--dry-run`; set it on any
    thread."""

    settings: HookSettings
    notices: Sequence[str] = ()
    """Lines for the user before the run starts, set by the constructor, such as options without effect."""
    run: RunHandle
    """The run's handle, set before `on_agent_started` if `powers` has `Power.RUN`. Otherwise it is missing."""

    def __init__(self, settings: HookSettings) -> None:
        self.settings = settings

    @property
    def hold_s(self) -> float:
        """The most seconds for which it delays a planned stop (`Power.HOLDS`). 0 means no delay.

        Read when a stop begins, on the hooks' thread, within their deadline. The delay is at most an hour, or the time
        that the user gave `--shutdown-timeout` or a flag of a hook, if that is longer.
        """
        return 0.0

    def worker_starter(self, loop: AgentLoop) -> WorkerStarter | None:
        """Return an object that starts workers' processes in place of the core. `None` means no such object.

        Called: once, if the hook has `Power.STARTS`, before `on_agent_started`; on the agent's thread, as are all calls
        of the returned object, so none may block. An exception, or a call that blocks the agent, turns it off.
        """
        return None

    def master_server(self, loop: AgentLoop) -> "MasterServer | None":
        """Return a server at `MASTER_PORT` that replaces the one of rank 0's worker. `None` means no server.

        Called: as `worker_starter`, if the hook has `Power.HOSTS`. The server is used while the hook is `hosting`.
        """
        return None

    def on_agent_started(self, event: AgentStarted) -> None:
        """React to the agent's start. Called: once, first."""

    def on_joining(self, event: RoundJoining) -> Refuse | None:
        """Return `Refuse` to keep this node out of the next round, or `None`.

        Called: before each rendezvous; the agent waits at most the hook deadline.
        """
        return None

    def on_round_joined(self, event: RoundJoined) -> None:
        """React to a new round. Called: before `on_workers_starting`."""

    def on_workers_starting(self, event: WorkersStarting) -> Launches | Refuse | None:
        """Return changes to the start of each worker, or a refusal; `None` changes nothing.

        Called: before each start; the agent waits at most the hook deadline. Also called by `--dry-run`, with
        `event.dry_run`, if an option has chosen the hook.
        """
        return None

    def on_workers_started(self, event: WorkersStarted) -> None:
        """React to the workers' start. Called: after all workers of this node were started."""

    def on_worker_exited(self, event: WorkerEnded) -> None:
        """React to a worker's end. Called: for each worker, also if the agent stopped it; not if it was kept."""

    def on_failure(self, event: FailureSeen) -> None:
        """React to a failure. Called: after its evidence was read, before the decision."""

    def on_decision(self, event: DecisionTaken) -> None:
        """React to the policy's decision. Called: before workers are stopped because of it."""

    def on_drain(self, event: Draining) -> None:
        """React to a stop signal. Called: before workers are signalled; also if there are no workers."""

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """React to the beginning of the stop sequence."""

    def on_membership_changed(self, event: MembershipChanged) -> None:
        """React to a membership change. Called: before workers are stopped because of it."""

    def on_nodes_asked(self, event: NodesAsked) -> None:
        """Answer by `self.run.answer_nodes`. Called: once on each node, perhaps before its workers have started."""

    def on_answers_gathered(self, event: AnswersGathered) -> None:
        """Conclude the answers of all nodes by `self.run.conclude_nodes`.

        Called: on the leader, which may have no workers in the round; if it does not conclude, later on a deputy.
        """

    def on_concluded(self, event: Concluded) -> None:
        """Use the conclusion of a question. Called: on each node of the round, once, while its workers run."""

    def on_stop_planned(self, event: StopPlanned) -> None:
        """Have workers save, then call `self.run.release_stop()`.

        Called: before the stop sequence of healthy workers, if hooks delay it (`Power.HOLDS`).
        """

    def on_agreed(self, event: Agreed) -> None:
        """Use the number on which the nodes have agreed. Called: once for each topic for which this node submitted one.

        Only called while the round lasts. A node that is lost before, or has no workers left, does not count.
        """

    def on_run_event(self, event: RunEvent) -> None:
        """Receive one event. Called: with `Power.FEED`, for each event in order, when no moment waits.

        The last event is `feed_closed`. A slow hook loses events, with a line; the agent never waits.
        """

    def on_moment(self, event: Moment) -> None:
        """Receive a moment for which the class has no method, including moments that later versions add.

        Called: when the moment's own method would be, but the agent does not wait, and the method returns nothing.
        Events of the feed are not moments.
        """

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """React to the agent's end. Called: once, last; the agent waits at most the hook deadline."""

    def close(self) -> None:
        """Release what the constructor reserved, such as a port.

        Called: once, after all other calls, on its own thread. If a run could not begin, this is the hook's only call.
        """


class ShutGate(AgentHook):
    """A hook that always refuses. It replaces a `fail_closed` hook that could not be built."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.REFUSAL})
    fail_closed: ClassVar[bool] = True

    def __init__(self, settings: HookSettings, reason: str) -> None:
        super().__init__(settings)
        self._reason = reason

    def on_joining(self, event: RoundJoining) -> Refuse:
        """Refuse."""
        return Refuse(reason=self._reason)


def fault_of_powers(declared: object, moments: frozenset[str], *, closed: bool = False) -> str:
    """Return the fault of a plugin's `powers`; `moments` are the methods that it overrides. Empty if there is none."""
    if not isinstance(declared, (set, frozenset)) or not all(isinstance(power, Power) for power in declared):
        return f"states powers {declared!r}; expected a set of elastic_core.api.Power"
    if closed and Power.REFUSAL not in declared:
        return "states fail_closed without the power 'refusal'"
    for power in sorted(declared):
        if _METHODS[power] and not moments & frozenset(_METHODS[power]):
            return f"states the power {power.value!r} and has no {' or '.join(_METHODS[power])}"
    return ""


def notices_of(hook: AgentHook) -> tuple[str, ...]:
    """Return a hook's lines for the user."""
    lines: object = hook.notices
    if isinstance(lines, list | tuple) and all(isinstance(line, str) for line in lines):
        return tuple(lines)
    return (f"{type(hook).__qualname__} has notices {lines!r}; expected a list of lines",)
