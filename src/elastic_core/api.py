"""Everything that a plugin author imports. Versioned by `API_VERSION`; re-exports only.

Each name is fetched from its room when it is used: a plugin pays for no more than it imports, and `help` of this module
is this page. `help(elastic_core.api.AgentHook)` shows one of them; docs/reference/api.md has all, with every field.

Interfaces
    RendezvousHandler, CoordinationStore, FailureHandler, Intensity, AgentHook, hookimpl, API_VERSION,
    AgentServices, Environment, Proposal
What plugins are built with
    RendezvousSettings, PolicySettings, HookSettings, OptionSpec, RunOption, resolve_options, ResolvedOptions,
    duration_s, duration_text
Waiting
    WaitBudget, Clock, SystemClock, SYSTEM_CLOCK
Stores
    Topic, Seat, Member, Members, Survey, Renewal, Document, Swapped, Revisions, Watched, compare, own_content,
    ROUND_KEY, CONTROL_KEY, STORE_FORMAT, STORE_KEEP_S
Addresses
    is_ip, is_loopback, route_source
GPUs
    nvidia_gpus, NvidiaGpus, visible_entries
Stock torchrun
    torch_handler
In workers
    record, get_error_handler
Rounds
    RendezvousInfo, RosterMember, Round, Capability, RoundChange, NodesWaiting, MemberLost,
    StopOrdered, Undecided, RoundEnded, Decided, RendezvousClosed, Suspended, Resumed
Failures and decisions
    Failure, NodeReport, NodeSteps, RankStep, RunSteps, FailureClass, DeviceFault, FailedWorker, WorkerExit,
    ErrorRecord, Origin, Decision, Restart, Stop, Ignore, Absence, parse_fault_frames, without_launcher, is_user_file
Commands of `elastic`
    echo, echo_json, run_option, chosen_policy, checked_decision, chosen_store, open_store,
    proposed_values, StoreChoice, user_name,
    run_records, run_places, RunRecord, AgentIdentity, find_incidents, FoundIncident, Incident, decode_incident,
    render_incident, rank_ranges, to_failure
Records, their JSON, and files
    Record, encode_json, decode_json, clean, read_file, replace_file
What hooks may do
    Power, Launches, LaunchChange, Refuse, fault_of_variable
Starting workers
    WorkerStarter, WorkerStart, StartedProcess, AgentLoop, arm_worker, bound_to
Hosting what workers meet at
    MasterServer
The run's handle
    RunHandle, RunTimer, RunningWorker, FailureReport, WorkerFault, Offer,
    Answer, AgentChannel, checks_arguments
The feed
    RunEvent, Phase
Hooks of libraries, and plugins of plugins
    register_hook, find_entries, PluginEntry, import_entry, plugin_refusal,
    check_plugin
Moments
    Moment, AgentStarted, RoundJoining, RoundJoined, WorkersStarting, WorkersStarted, WorkerEnded, FailureSeen,
    DecisionTaken, Draining, WorkersStopping, MembershipChanged, StepsAsked, StepsSeen, StopPlanned, Agreed,
    AgentStopped
Errors
    BackendError, BackendRefusedError, BackendUnavailableError, ConfigError, ElasticError, OutcomeUnknownError,
    PluginError, RendezvousClosedError, RendezvousConnectionError, RendezvousError, RendezvousGracefulExitError,
    RendezvousStateError, RendezvousTimeoutError, WaitCancelledError, WaitExpiredError, WorkerError
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from elastic_core.accelerators.nvml import NvidiaGpus, nvidia_gpus
    from elastic_core.accelerators.visible import visible_entries
    from elastic_core.cli.output import echo, echo_json
    from elastic_core.cli.run_choices import StoreChoice, chosen_policy, chosen_store, open_store, run_option
    from elastic_core.clock import SYSTEM_CLOCK, Clock, SystemClock, WaitBudget, duration_text
    from elastic_core.encoding import clean, decode_json, encode_json
    from elastic_core.errors import (
        BackendError,
        BackendRefusedError,
        BackendUnavailableError,
        ConfigError,
        ElasticError,
        OutcomeUnknownError,
        PluginError,
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousStateError,
        RendezvousTimeoutError,
        WaitCancelledError,
        WaitExpiredError,
        WorkerError,
    )
    from elastic_core.failure.handler import FailureHandler
    from elastic_core.failure.incident import Incident, decode_incident, to_failure
    from elastic_core.failure.intensity import Intensity
    from elastic_core.failure.report import ranges as rank_ranges
    from elastic_core.failure.report import render as render_incident
    from elastic_core.failure.runner import checked as checked_decision
    from elastic_core.hooks.arguments import checks_arguments
    from elastic_core.hooks.handle import Offer, RunHandle
    from elastic_core.hooks.handler import AgentHook, register_hook
    from elastic_core.hooks.launches import fault_of_variable
    from elastic_core.hooks.master_server import MasterServer
    from elastic_core.moments import (
        AgentStarted,
        AgentStopped,
        Agreed,
        DecisionTaken,
        Draining,
        FailureSeen,
        LaunchChange,
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
    from elastic_core.option_spec import OptionSpec, RunOption
    from elastic_core.options.environments import proposed_values
    from elastic_core.plugins.conversion import ResolvedOptions, duration_s, resolve_options
    from elastic_core.plugins.discovery import PluginEntry, find_entries
    from elastic_core.plugins.entry_import import import_entry
    from elastic_core.plugins.entry_import import refusal as plugin_refusal
    from elastic_core.plugins.environment import Environment, Proposal
    from elastic_core.plugins.hookspecs import hookimpl
    from elastic_core.plugins.loading import check_plugin
    from elastic_core.plugins.torch_side import torch_handler
    from elastic_core.private_file import read_file, replace_file
    from elastic_core.processes.errors import get_error_handler, record
    from elastic_core.processes.errors.frames import is_user_file, parse_fault_frames, without_launcher
    from elastic_core.processes.process import bound_to
    from elastic_core.rendezvous.address import is_ip, is_loopback, route_source
    from elastic_core.rendezvous.handler import AgentServices, RendezvousHandler
    from elastic_core.rendezvous.identity import user_name
    from elastic_core.rendezvous.member.documents import FORMAT as STORE_FORMAT
    from elastic_core.rendezvous.member.leader import KEEP_S as STORE_KEEP_S
    from elastic_core.rendezvous.store import (
        CONTROL_KEY,
        ROUND_KEY,
        CoordinationStore,
        Document,
        Member,
        Members,
        Renewal,
        Revisions,
        Seat,
        Survey,
        Swapped,
        Topic,
        Watched,
        compare,
        own_content,
    )
    from elastic_core.reports import (
        Absence,
        AgentChannel,
        Answer,
        FailureReport,
        NodeReport,
        NodeSteps,
        Phase,
        RankStep,
        RunEvent,
        RunningWorker,
        RunSteps,
        WorkerFault,
    )
    from elastic_core.rundir.found_incidents import FoundIncident, find_incidents
    from elastic_core.rundir.identity import AgentIdentity
    from elastic_core.rundir.run_records import RunRecord, run_places, run_records
    from elastic_core.starters import AgentLoop, RunTimer, StartedProcess, WorkerStart, WorkerStarter
    from elastic_core.types import (
        API_VERSION,
        Capability,
        Decided,
        Decision,
        DeviceFault,
        ErrorRecord,
        FailedWorker,
        Failure,
        FailureClass,
        HookSettings,
        Ignore,
        MemberLost,
        NodesWaiting,
        Origin,
        PolicySettings,
        Record,
        RendezvousClosed,
        RendezvousInfo,
        RendezvousSettings,
        Restart,
        Resumed,
        RosterMember,
        Round,
        RoundChange,
        RoundEnded,
        Stop,
        StopOrdered,
        Suspended,
        Undecided,
        WorkerExit,
    )
    from elastic_core.worker.startup import arm as arm_worker

__all__ = [
    "API_VERSION",
    "CONTROL_KEY",
    "ROUND_KEY",
    "STORE_FORMAT",
    "STORE_KEEP_S",
    "SYSTEM_CLOCK",
    "Absence",
    "AgentChannel",
    "AgentHook",
    "AgentIdentity",
    "AgentLoop",
    "AgentServices",
    "AgentStarted",
    "AgentStopped",
    "Agreed",
    "Answer",
    "BackendError",
    "BackendRefusedError",
    "BackendUnavailableError",
    "Capability",
    "Clock",
    "ConfigError",
    "CoordinationStore",
    "Decided",
    "Decision",
    "DecisionTaken",
    "DeviceFault",
    "Document",
    "Draining",
    "ElasticError",
    "Environment",
    "ErrorRecord",
    "FailedWorker",
    "Failure",
    "FailureClass",
    "FailureHandler",
    "FailureReport",
    "FailureSeen",
    "FoundIncident",
    "HookSettings",
    "Ignore",
    "Incident",
    "Intensity",
    "LaunchChange",
    "Launches",
    "MasterServer",
    "Member",
    "MemberLost",
    "Members",
    "MembershipChanged",
    "Moment",
    "NodeReport",
    "NodeSteps",
    "NodesWaiting",
    "NvidiaGpus",
    "Offer",
    "OptionSpec",
    "Origin",
    "OutcomeUnknownError",
    "Phase",
    "PluginEntry",
    "PluginError",
    "PolicySettings",
    "Power",
    "Proposal",
    "RankStep",
    "Record",
    "Refuse",
    "RendezvousClosed",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousSettings",
    "RendezvousStateError",
    "RendezvousTimeoutError",
    "Renewal",
    "ResolvedOptions",
    "Restart",
    "Resumed",
    "Revisions",
    "RosterMember",
    "Round",
    "RoundChange",
    "RoundEnded",
    "RoundJoined",
    "RoundJoining",
    "RunEvent",
    "RunHandle",
    "RunOption",
    "RunRecord",
    "RunSteps",
    "RunTimer",
    "RunningWorker",
    "Seat",
    "StartedProcess",
    "StepsAsked",
    "StepsSeen",
    "Stop",
    "StopOrdered",
    "StopPlanned",
    "StoreChoice",
    "Survey",
    "Suspended",
    "Swapped",
    "SystemClock",
    "Topic",
    "Undecided",
    "WaitBudget",
    "WaitCancelledError",
    "WaitExpiredError",
    "Watched",
    "WorkerEnded",
    "WorkerError",
    "WorkerExit",
    "WorkerFault",
    "WorkerStart",
    "WorkerStarter",
    "WorkersStarted",
    "WorkersStarting",
    "WorkersStopping",
    "arm_worker",
    "bound_to",
    "check_plugin",
    "checked_decision",
    "checks_arguments",
    "chosen_policy",
    "chosen_store",
    "clean",
    "compare",
    "decode_incident",
    "decode_json",
    "duration_s",
    "duration_text",
    "echo",
    "echo_json",
    "encode_json",
    "fault_of_variable",
    "find_entries",
    "find_incidents",
    "get_error_handler",
    "hookimpl",
    "import_entry",
    "is_ip",
    "is_loopback",
    "is_user_file",
    "nvidia_gpus",
    "open_store",
    "own_content",
    "parse_fault_frames",
    "plugin_refusal",
    "proposed_values",
    "rank_ranges",
    "read_file",
    "record",
    "register_hook",
    "render_incident",
    "replace_file",
    "resolve_options",
    "route_source",
    "run_option",
    "run_places",
    "run_records",
    "to_failure",
    "torch_handler",
    "user_name",
    "visible_entries",
    "without_launcher",
]

_ROOMS: Final = {
    "elastic_core.accelerators.nvml": "nvidia_gpus NvidiaGpus",
    "elastic_core.accelerators.visible": "visible_entries",
    "elastic_core.cli.output": "echo echo_json",
    "elastic_core.cli.run_choices": "chosen_policy chosen_store open_store run_option StoreChoice",
    "elastic_core.clock": "Clock SYSTEM_CLOCK SystemClock WaitBudget duration_text",
    "elastic_core.encoding": "clean decode_json encode_json",
    "elastic_core.errors": (
        "BackendError BackendRefusedError BackendUnavailableError ConfigError ElasticError OutcomeUnknownError "
        "PluginError RendezvousClosedError RendezvousConnectionError RendezvousError RendezvousGracefulExitError "
        "RendezvousStateError RendezvousTimeoutError WaitCancelledError WaitExpiredError WorkerError"
    ),
    "elastic_core.failure.handler": "FailureHandler",
    "elastic_core.failure.incident": "decode_incident Incident to_failure",
    "elastic_core.failure.intensity": "Intensity",
    "elastic_core.failure.report": "ranges=rank_ranges render=render_incident",
    "elastic_core.failure.runner": "checked=checked_decision",
    "elastic_core.hooks.arguments": "checks_arguments",
    "elastic_core.hooks.handle": "Offer RunHandle",
    "elastic_core.hooks.handler": "AgentHook register_hook",
    "elastic_core.hooks.launches": "fault_of_variable",
    "elastic_core.hooks.master_server": "MasterServer",
    "elastic_core.option_spec": "OptionSpec RunOption",
    "elastic_core.options.environments": "proposed_values",
    "elastic_core.moments": (
        "Power LaunchChange Launches Refuse "
        "AgentStarted AgentStopped DecisionTaken Draining FailureSeen MembershipChanged Moment "
        "RoundJoined RoundJoining StepsAsked StepsSeen StopPlanned Agreed "
        "WorkerEnded WorkersStarted WorkersStarting WorkersStopping"
    ),
    "elastic_core.plugins.discovery": "find_entries PluginEntry",
    "elastic_core.plugins.entry_import": "import_entry refusal=plugin_refusal",
    "elastic_core.plugins.environment": "Environment Proposal",
    "elastic_core.plugins.hookspecs": "hookimpl",
    "elastic_core.plugins.loading": "check_plugin",
    "elastic_core.plugins.conversion": "duration_s resolve_options ResolvedOptions",
    "elastic_core.plugins.torch_side": "torch_handler",
    "elastic_core.processes.process": "bound_to",
    "elastic_core.processes.errors": "get_error_handler record",
    "elastic_core.processes.errors.frames": "is_user_file parse_fault_frames without_launcher",
    "elastic_core.rendezvous.address": "is_ip is_loopback route_source",
    "elastic_core.rendezvous.handler": "AgentServices RendezvousHandler",
    "elastic_core.rendezvous.identity": "user_name",
    "elastic_core.rendezvous.member.documents": "FORMAT=STORE_FORMAT",
    "elastic_core.rendezvous.member.leader": "KEEP_S=STORE_KEEP_S",
    "elastic_core.rendezvous.store": (
        "compare CONTROL_KEY CoordinationStore Document Member Members own_content Renewal Revisions ROUND_KEY "
        "Seat Survey Swapped Topic Watched"
    ),
    "elastic_core.private_file": "read_file replace_file",
    "elastic_core.reports": (
        "NodeReport RankStep NodeSteps RunSteps Absence "
        "AgentChannel Answer FailureReport Phase RunEvent RunningWorker WorkerFault"
    ),
    "elastic_core.rundir.found_incidents": "find_incidents FoundIncident",
    "elastic_core.rundir.identity": "AgentIdentity",
    "elastic_core.rundir.run_records": "run_places run_records RunRecord",
    "elastic_core.starters": "AgentLoop RunTimer StartedProcess WorkerStart WorkerStarter",
    "elastic_core.types": (
        "API_VERSION Capability Decided Decision DeviceFault ErrorRecord FailedWorker Failure FailureClass "
        "HookSettings Ignore MemberLost NodesWaiting Origin "
        "PolicySettings Record RendezvousClosed RendezvousInfo RendezvousSettings Restart "
        "Resumed RosterMember Round RoundChange RoundEnded Stop StopOrdered Suspended "
        "Undecided WorkerExit"
    ),
    "elastic_core.worker.startup": "arm=arm_worker",
}
"""Where the names are; `FORMAT=STORE_FORMAT` has another name there than here."""
_PLACES: Final = {
    word.rpartition("=")[2]: (room, word.partition("=")[0]) for room, words in _ROOMS.items() for word in words.split()
}


def __getattr__(name: str) -> object:
    """Return a public name. It is not kept here: `help` of this module would show all that was ever used."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room, original = _PLACES[name]
    return getattr(importlib.import_module(room), original)
