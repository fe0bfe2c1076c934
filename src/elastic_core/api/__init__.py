"""The names that plugin authors need first: interfaces, settings, decisions, moments and errors.

Versioned by `API_VERSION`; re-exports only. `help(elastic_core.api.AgentHook)` shows one name with its fields;
docs/reference/api.md has all. More names are in sub-modules, by purpose:

    elastic_core.api.stores      custom stores for this project's rendezvous
    elastic_core.api.rendezvous  changes of a round, capabilities, errors of a rendezvous
    elastic_core.api.starters    custom starts of workers, servers at MASTER_PORT
    elastic_core.api.workers     code in worker processes: their start, errors and accelerators
    elastic_core.api.feed        exporting a run, answering requests, questions and agreements of all nodes
    elastic_core.api.tools       texts for users, private files, the identity of an agent
    elastic_core.api.commands    commands of `elastic`
    elastic_core.api.records     the records of runs on this machine
    elastic_core.api.plugins     modules with hookimpls, and plugins of plugins

Interfaces
    RendezvousHandler: Subclass it to let nodes meet in your own way: its `next_rendezvous` returns a node's
        place in a round. The errors that it raises are in `elastic_core.api.rendezvous`.
    CoordinationStore: Subclass it to let this project's rendezvous use another server, or a directory. Its records
        and errors are in `elastic_core.api.stores`.
    FailureHandler: Subclass it to decide what follows a failure: restart, stop or ignore it.
    AgentHook: Subclass it to observe a run, or to change it with one of the powers below.
    Environment: Subclass it to propose options of `elastic run` where a scheduler, a pod or a list of hosts
        determines them.
    Proposal: Return it from `Environment.propose`: the value of one option, and why.
    API_VERSION: The version of the interfaces. A plugin states the number itself, as `api_version`, and may compare
        it in a test.

Settings and options
    RendezvousSettings: Read it as `self.settings` in a handler or a store: the run's id, endpoint and numbers of
        nodes.
    PolicySettings: Read it as `self.settings` in a policy: the restart budget, and the policy's own options.
    HookSettings: Read it as `self.settings` in a hook: the run, this node, and the hook's own options.
    OptionSpec: Declare an option of a backend, a policy or a hook with it, in the class attribute `options`.
    RunOption: Declare a flag of `elastic run` for a hook with it, by an entry point of the group
        `elastic_core.options`.
    duration_s: Read a duration such as `90`, `5m` or `1h` with it, in seconds, where no option of type `duration`
        does so.

Failures and decisions
    Failure: Read it in `FailureHandler.decide`: what failed first, on which node, in which round, and how far the
        run was.
    FailureClass: Compare `Failure.failure_class` with it: an exit, a signal, a hang (found by elastic-watch), a lost
        node and others.
    FailedWorker: Read it in `FailureSeen.workers`: a worker that failed, with its exit, its error and the end of
        its log.
    WorkerExit: Read it in `WorkerEnded` and `FailedWorker`: which worker ended, by which exit code or signal.
    ErrorRecord: Read it in `FailedWorker.error`: the exception that a worker recorded, with its traceback.
    DeviceFault: Compare `Failure.device_fault` with it, to treat a broken accelerator in another way than a full
        one.
    Origin: Compare `FailedWorker.origin` with it: whether the worker failed first, or because another one had
        failed.
    Decision: Annotate what `FailureHandler.decide` returns with it: one of the next three.
    Restart: Return it from `decide` to start all workers again: at once or later, with all nodes or without some.
    Stop: Return it from `decide` to end the run, as failed or as done.
    Ignore: Return it from `decide` to leave that worker down, or a straggler running, while the others continue.
    Intensity: The default policy. Derive from it a policy that differs in some failures, and return
        `super().decide(failure, history)` for all others.

Moments of hooks
    Moment: Annotate a value with it that may be any record of this group.
    AgentStarted: Implement `on_agent_started` to act once, before the node joins.
    RoundJoining: Implement `on_joining` to act before the node requests a place in a round, or to refuse.
    RoundJoined: Implement `on_round_joined` to learn this node's ranks in a new round.
    WorkersStarting: Implement `on_workers_starting` to change how workers are started, to refuse, or to learn how
        many restarts the run has had.
    WorkersStarted: Implement `on_workers_started` to learn the process ids of the workers.
    WorkerEnded: Implement `on_worker_exited` to learn how each worker of this node ended.
    FailureSeen: Implement `on_failure` to learn of a failure before it is decided about.
    DecisionTaken: Implement `on_decision` to learn what the policy decided, on this node or for the whole run.
    MembershipChanged: Implement `on_membership_changed` to learn that a membership change ends a round.
    Draining: Implement `on_drain` to learn that the agent received a signal to stop, and how long the workers have.
    WorkersStopping: Implement `on_workers_stopping` to act before the workers receive the stop signal.
    AgentStopped: Implement `on_agent_stopped` to act once, last, with the exit code.

Powers of hooks
    Power: State in a hook's `powers` what it does besides observing.
    Launches: Return it from `on_workers_starting` to change the start of workers.
    LaunchChange: The change of one worker's start in `Launches.workers`: variables, processors, a command in front.
    Refuse: Return it from `on_joining` or `on_workers_starting` to keep this node out of the round.
    RunHandle: Use it as `self.run`, with `Power.RUN`: report a failure, request a restart, set a timer, list the
        workers.
    RunTimer: Returned by `self.run.call_later` and `call_every`: cancel it when the call is not needed any more.
    RunningWorker: A worker of this node in `self.run.workers()`: its ranks, its process id and its files.
    FailureReport: Pass it to `self.run.report` to report a failure that the hook found; the policy decides.
    WorkerFault: A failed worker in `FailureReport.workers`.

Rounds and time
    RendezvousInfo: Return it from `RendezvousHandler.next_rendezvous`: the node's place in a new round.
    Round: Read it in moments: the round's number, its nodes, and this node's ranks.
    WaitBudget: Wait with it in a handler or a store, so that the agent can end the call. The errors that it raises
        are in `elastic_core.api.stores`.
    Clock: Annotate a parameter with it if tests pass their own clock.
    SYSTEM_CLOCK: The clock of this process: use it where you don't take one as a parameter.

Errors
    ElasticError: Raise it, or a class below it, for an error that is one line for users, with an exit code.
    ConfigError: Raise it for an option or setting that can't work; exit code 2.
    PluginError: Raise it if your plugin itself can't work here; exit code 3.

Records
    Record: Derive your own frozen records from it.
    encode_json: Write a record as JSON, also one of this module.
    decode_json: Read JSON that `encode_json` wrote as a record of a type.
"""

from elastic_core.encoding import decode_json as decode_json
from elastic_core.encoding import encode_json as encode_json
from elastic_core.errors import ConfigError as ConfigError
from elastic_core.errors import ElasticError as ElasticError
from elastic_core.errors import PluginError as PluginError
from elastic_core.failure.handler import FailureHandler as FailureHandler
from elastic_core.failure.intensity import Intensity as Intensity
from elastic_core.hooks.handle import RunHandle as RunHandle
from elastic_core.hooks.handler import AgentHook as AgentHook
from elastic_core.moments import AgentStarted as AgentStarted
from elastic_core.moments import AgentStopped as AgentStopped
from elastic_core.moments import DecisionTaken as DecisionTaken
from elastic_core.moments import Draining as Draining
from elastic_core.moments import FailureSeen as FailureSeen
from elastic_core.moments import LaunchChange as LaunchChange
from elastic_core.moments import Launches as Launches
from elastic_core.moments import MembershipChanged as MembershipChanged
from elastic_core.moments import Moment as Moment
from elastic_core.moments import Power as Power
from elastic_core.moments import Refuse as Refuse
from elastic_core.moments import RoundJoined as RoundJoined
from elastic_core.moments import RoundJoining as RoundJoining
from elastic_core.moments import WorkerEnded as WorkerEnded
from elastic_core.moments import WorkersStarted as WorkersStarted
from elastic_core.moments import WorkersStarting as WorkersStarting
from elastic_core.moments import WorkersStopping as WorkersStopping
from elastic_core.option_spec import OptionSpec as OptionSpec
from elastic_core.option_spec import RunOption as RunOption
from elastic_core.plugins.conversion import duration_s as duration_s
from elastic_core.plugins.environment import Environment as Environment
from elastic_core.plugins.environment import Proposal as Proposal
from elastic_core.rendezvous.handler import RendezvousHandler as RendezvousHandler
from elastic_core.rendezvous.store import CoordinationStore as CoordinationStore
from elastic_core.reports import FailureReport as FailureReport
from elastic_core.reports import RunningWorker as RunningWorker
from elastic_core.reports import WorkerFault as WorkerFault
from elastic_core.starters import RunTimer as RunTimer
from elastic_core.system.clock import SYSTEM_CLOCK as SYSTEM_CLOCK
from elastic_core.system.clock import Clock as Clock
from elastic_core.system.clock import WaitBudget as WaitBudget
from elastic_core.types import API_VERSION as API_VERSION
from elastic_core.types import Decision as Decision
from elastic_core.types import DeviceFault as DeviceFault
from elastic_core.types import ErrorRecord as ErrorRecord
from elastic_core.types import FailedWorker as FailedWorker
from elastic_core.types import Failure as Failure
from elastic_core.types import FailureClass as FailureClass
from elastic_core.types import HookSettings as HookSettings
from elastic_core.types import Ignore as Ignore
from elastic_core.types import Origin as Origin
from elastic_core.types import PolicySettings as PolicySettings
from elastic_core.types import Record as Record
from elastic_core.types import RendezvousInfo as RendezvousInfo
from elastic_core.types import RendezvousSettings as RendezvousSettings
from elastic_core.types import Restart as Restart
from elastic_core.types import Round as Round
from elastic_core.types import Stop as Stop
from elastic_core.types import WorkerExit as WorkerExit
