"""The pluggy specifications: what a module with hookimpls may implement, and the marker that it does so with.

A plugin of the group `elastic_core.rendezvous` or `elastic_core.failure` implements the function that makes its object;
one of `elastic_core.hooks` implements the moments that it wants to be told of, the names of `AgentHook`'s methods.
Every such module states `api_version` at its top level, as classes do.
"""

from typing import Final

import pluggy

from elastic_core.failure.handler import FailureHandler
from elastic_core.moments import (
    AddEnvironment,
    AgentStarted,
    AgentStopped,
    Agreed,
    DecisionTaken,
    Draining,
    FailureSeen,
    Joining,
    Launches,
    MembershipChanged,
    Moment,
    Refuse,
    RoundJoined,
    StepsAsked,
    StepsSeen,
    StopPlanned,
    WorkerEnded,
    WorkersStarted,
    WorkersStarting,
    WorkersStopping,
)
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.reports import RunEvent
from elastic_core.types import PolicySettings, RendezvousSettings

PROJECT_NAME: Final = "elastic_core"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)
"""Marks a function of a plugin module as the implementation of the specification that has its name."""


@hookspec(firstresult=True)
def elastic_make_rendezvous(settings: RendezvousSettings) -> RendezvousHandler | CoordinationStore | None:
    """Build the rendezvous backend, or the store for one.

    Called: once per run, after options are validated, before any worker exists.
    """


@hookspec(firstresult=True)
def elastic_make_failure_handler(settings: PolicySettings) -> FailureHandler | None:
    """Build the restart policy. Called: once per run, after options are validated, before any worker exists."""


@hookspec
def on_agent_started(event: AgentStarted) -> None:
    """React to the agent's start. Called: once, first."""


@hookspec(firstresult=True)
def on_joining(event: Joining) -> Refuse | None:
    """Object to this node's joining, or not. Called: before each rendezvous."""


@hookspec
def on_round_joined(event: RoundJoined) -> None:
    """React to a formed round. Called: before `on_workers_starting`."""


@hookspec(firstresult=True)
def on_workers_starting(event: WorkersStarting) -> Launches | AddEnvironment | Refuse | None:
    """Change what is started for each worker, or object. Called: before each start."""


@hookspec
def on_workers_started(event: WorkersStarted) -> None:
    """React to the workers' existence. Called: after all of this node were started."""


@hookspec
def on_worker_exited(event: WorkerEnded) -> None:
    """React to a worker's end. Called: for each, also for those that we stopped."""


@hookspec
def on_failure(event: FailureSeen) -> None:
    """React to a failure. Called: when its evidence was read, before the decision."""


@hookspec
def on_decision(event: DecisionTaken) -> None:
    """React to the policy's decision. Called: before workers are stopped because of it."""


@hookspec
def on_drain(event: Draining) -> None:
    """React to a stop signal. Called: before workers are signalled."""


@hookspec
def on_workers_stopping(event: WorkersStopping) -> None:
    """React to the stop ladder's beginning."""


@hookspec
def on_membership_changed(event: MembershipChanged) -> None:
    """React to nodes that came or went. Called: before workers are stopped because of it."""


@hookspec
def on_steps_asked(event: StepsAsked) -> None:
    """React to a node that asks about the steps of all."""


@hookspec
def on_steps_seen(event: StepsSeen) -> None:
    """React to what all nodes have answered."""


@hookspec
def on_stop_planned(event: StopPlanned) -> None:
    """React to a planned stop of healthy workers."""


@hookspec
def on_agreed(event: Agreed) -> None:
    """React to what the nodes have agreed about."""


@hookspec
def on_run_event(event: RunEvent) -> None:
    """React to anything that happens. Called: for each, in order, of a module whose `powers` have `Power.FEED`."""


@hookspec
def on_moment(event: Moment) -> None:
    """Take a moment that the module has no function for. Called: as that would be; nobody waits for it."""


@hookspec
def on_agent_stopped(event: AgentStopped) -> None:
    """React to the agent's end. Called: once, last."""
