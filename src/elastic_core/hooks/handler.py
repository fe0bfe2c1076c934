"""The interface of an observer of the agent, and which powers a class of it has."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from elastic_core.hooks.handle import RunHandle
from elastic_core.moments import (
    AgentStarted,
    AgentStopped,
    Agreed,
    DecisionTaken,
    Draining,
    FailureSeen,
    Launches,
    MembershipChanged,
    Moment,
    Power,
    Refuse,
    RoundJoined,
    RoundJoining,
    StepsAsked,
    StepsSeen,
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

_METHODS: Final[Mapping[Power, tuple[str, ...]]] = {
    Power.FEED: ("on_run_event",),
    Power.LAUNCHES: ("on_workers_starting",),
    Power.REFUSAL: ("on_joining", "on_workers_starting"),
    Power.RUN: (),
    Power.HOLDS: ("on_stop_planned",),
    Power.STARTS: ("worker_starter",),
    Power.HOSTS: ("master_server",),
}
"""Where each power is used: one of these methods; empty: anywhere."""


class AgentHook:
    """An observer of the agent, with the powers that it states. Subclass it and override what you need.

    Under `elastic_core.hooks` the class is on in every run; one that is named by a `RunOption` of
    `elastic_core.options` is built only where such an option is given.

    Built once per run as `cls(settings)`. Every default does nothing. A raise is logged with the plugin's name and
    counted, never felt by the agent; a call that overruns its deadline is abandoned, and the hook is off for the rest
    of the run.

    Threading: one thread for all hooks, one call at a time, never the supervisor's, but for `worker_starter` and
    `master_server`.
    """

    api_version: ClassVar[int]
    options: ClassVar[Sequence[OptionSpec]] = ()
    powers: ClassVar[frozenset[Power]] = frozenset()
    """What it does beside observing; an answer without its power is an error of the hook's."""
    without_events: ClassVar[frozenset[str]] = frozenset()
    """The events of the feed (`Power.FEED`) that it does not take; calls to the store are measured for takers only."""
    fail_closed: ClassVar[bool] = False
    """A health gate (`Power.REFUSAL`) that breaks refuses: raises, answers what is no answer, or overruns its deadline.

    Else workers start as if it had nothing against it. One that has overrun refuses until that call returns.
    """

    hosting: bool = False
    """Whether its server (`Power.HOSTS`) is to be where workers meet: looked at before each round, and by `--dry-run`.
    May be set at any time, on any thread."""

    settings: HookSettings
    notices: Sequence[str] = ()
    """Lines for the user before anything starts, set by the constructor: what of the options has no effect, say."""
    run: RunHandle
    """The run's handle, set before `on_agent_started` where `powers` has `Power.RUN`; else there is none."""

    def __init__(self, settings: HookSettings) -> None:
        """Keep the settings."""
        self.settings = settings

    @property
    def hold_s(self) -> float:
        """How long it holds a planned stop (`Power.HOLDS`) at the longest, in seconds; 0: not at all.

        Looked at when one begins, on the thread of all hooks, within their deadline. At most an hour is held, or,
        if that is longer, the time that the user gave `--shutdown-timeout` or a flag of a hook.
        """
        return 0.0

    def worker_starter(self, loop: AgentLoop) -> WorkerStarter | None:
        """Return what starts workers' processes in the core's place; None: nothing does.

        Called: once, of a hook with `Power.STARTS`, before `on_agent_started`; on the agent's thread, as is all that it
        returns, so nothing there may block. A raise, or a call that holds the agent up, turns it off.
        """
        return None

    def master_server(self, loop: AgentLoop) -> "MasterServer | None":
        """Return a server for what workers meet at, in the place of rank 0's worker; None: there is none.

        Called: as `worker_starter`, of a hook with `Power.HOSTS`. The server is asked while the hook is `hosting`.
        """
        return None

    def on_agent_started(self, event: AgentStarted) -> None:
        """React to the agent's start. Called: once, first."""

    def on_joining(self, event: RoundJoining) -> Refuse | None:
        """Object to this node's joining, or not.

        Called: before each rendezvous; the agent waits at most the hook deadline.
        """
        return None

    def on_round_joined(self, event: RoundJoined) -> None:
        """React to a formed round. Called: before `on_workers_starting`."""

    def on_workers_starting(self, event: WorkersStarting) -> Launches | Refuse | None:
        """Change what is started for each worker, or object.

        Called: before each start; the agent waits at most the hook deadline. Also by `--dry-run`, of a hook that an
        option has chosen: `event.dry_run`.
        """
        return None

    def on_workers_started(self, event: WorkersStarted) -> None:
        """React to the workers' existence. Called: after all of this node were started."""

    def on_worker_exited(self, event: WorkerEnded) -> None:
        """React to a worker's end. Called: for each, also for those that we stopped."""

    def on_failure(self, event: FailureSeen) -> None:
        """React to a failure. Called: when its evidence was read, before the decision."""

    def on_decision(self, event: DecisionTaken) -> None:
        """React to the policy's decision. Called: before workers are stopped because of it."""

    def on_drain(self, event: Draining) -> None:
        """React to a stop signal. Called: before workers are signalled; also where there are none."""

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """React to the stop ladder's beginning."""

    def on_membership_changed(self, event: MembershipChanged) -> None:
        """React to nodes that came or went. Called: before workers are stopped because of it."""

    def on_steps_asked(self, event: StepsAsked) -> None:
        """React to a node that asks about the steps of all. Called: while workers run; the asker waits a second."""

    def on_steps_seen(self, event: StepsSeen) -> None:
        """React to what all nodes have answered. Called: on each of them, whoever has asked."""

    def on_stop_planned(self, event: StopPlanned) -> None:
        """Have workers save, and call `self.run.release_stop()` once they have.

        Called: where hooks hold it (`Power.HOLDS`), before the stop ladder of healthy workers.
        """

    def on_agreed(self, event: Agreed) -> None:
        """Take what the nodes have agreed about. Called: once for each topic that this node has stated a number about.

        Only while the round lasts; a node that is lost meanwhile, or has no workers left, does not count.
        """

    def on_run_event(self, event: RunEvent) -> None:
        """Take one thing that happened. Called: with `Power.FEED`, for each, in order, when no moment waits.

        The last is `feed_closed`. A hook that is slow loses events, with a line; the agent never waits.
        """

    def on_moment(self, event: Moment) -> None:
        """Take a moment for which the class has no method of its own, also one that a later version adds.

        Called: as the moment's own method would be, but nobody waits for it, and it may not answer; the feed is no
        moment.
        """

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """React to the agent's end. Called: once, last; the agent waits at most the hook deadline."""

    def close(self) -> None:
        """Give back what the constructor has taken, a port say.

        Called: once, when all else is over, on a thread of its own; also for a run that could not begin, of which the
        hook sees nothing else.
        """


class ShutGate(AgentHook):
    """A hook in the place of one with `fail_closed` that could not be built: it refuses."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.REFUSAL})
    fail_closed: ClassVar[bool] = True

    def __init__(self, settings: HookSettings, reason: str) -> None:
        """Keep why it could not be built."""
        super().__init__(settings)
        self._reason = reason

    def on_joining(self, event: RoundJoining) -> Refuse:
        """Refuse."""
        return Refuse(reason=self._reason)


def fault_of_powers(declared: object, moments: frozenset[str], *, closed: bool = False) -> str:
    """Return what is wrong with the powers that a plugin states; empty: nothing.

    Args:
        declared: Its `powers`.
        moments: The methods of `AgentHook` that it overrides.
        closed: Its `fail_closed`.
    """
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
