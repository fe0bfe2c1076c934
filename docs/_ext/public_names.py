"""The reference of the public modules: `elastic_core.api`, name by name, and `elastic_core.embedding`.

A name that a module has and this does not list is missed by a test.
"""

import enum
import inspect
from collections.abc import Mapping
from typing import Final

from page_parts import first_line, table

from elastic_core import api, embedding
from elastic_core.api import RunEvent
from elastic_core.hooks.runner import METHODS

DATA: Final[Mapping[str, str]] = {
    "hookimpl": "Marks a function of a plugin module as the implementation of the specification that has its name.",
    "API_VERSION": "The version of the plugin interfaces; each plugin states the one that it was written for.",
    "SYSTEM_CLOCK": "The {py:class}`SystemClock` of this process.",
    "RoundChange": "What {py:meth}`RendezvousHandler.watch` may return: any of the changes below.",
    "Decision": "What a {py:class}`FailureHandler` may return: {py:class}`Restart`, {py:class}`Stop` or "
    "{py:class}`Ignore`.",
    "Moment": "Any of the records that hooks are told.",
    "Offer": "What answers a request to the agent: a function of the request's parameters, by name, that returns an "
    "{py:class}`Answer`.",
    "ROUND_KEY": "Key of a store's document with the round: its roster, and how it ended.",
    "CONTROL_KEY": "Key of a store's document with the run: what nodes compare when they join, and the verdict.",
}
"""What is neither a class nor documented where Sphinx could find it."""

API_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Interfaces": (
        "RendezvousHandler",
        "CoordinationStore",
        "FailureHandler",
        "Intensity",
        "AgentHook",
        "hookimpl",
        "API_VERSION",
        "AgentServices",
    ),
    "What plugins are built with": (
        "RendezvousSettings",
        "PolicySettings",
        "HookSettings",
        "OptionSpec",
        "RunOption",
        "resolve_options",
        "ResolvedOptions",
    ),
    "Waiting": ("WaitBudget", "Interrupt", "Clock", "SystemClock", "SYSTEM_CLOCK"),
    "Stores": (
        "Topic",
        "Seat",
        "Member",
        "Members",
        "Survey",
        "Renewal",
        "Document",
        "Swapped",
        "Revisions",
        "Watched",
        "compare",
        "own_content",
        "ROUND_KEY",
        "CONTROL_KEY",
    ),
    "Reaching hosts": (
        "Endpoint",
        "Address",
        "parse_endpoint",
        "resolve",
        "dial",
        "is_ip",
        "is_loopback",
        "route_source",
    ),
    "TLS and credentials": ("Tls", "Login", "start_tls", "tls_context", "tls_failure", "waker"),
    "GPUs": ("nvidia_gpus", "NvidiaGpus", "visible_entries"),
    "Stock torchrun": ("torch_handler",),
    "In workers": ("record", "get_error_handler"),
    "Hosting a server": ("HostedProcess", "KeptFolder", "hosted_environment"),
    "Answering probes": ("PageServer", "Page"),
    "Rounds": (
        "RendezvousInfo",
        "RosterMember",
        "Round",
        "RunCounts",
        "Capability",
        "RoundChange",
        "NodesWaiting",
        "MemberLost",
        "StopOrdered",
        "Undecided",
        "RoundEnded",
        "Decided",
        "RendezvousClosed",
        "Suspended",
        "Resumed",
    ),
    "Failures and decisions": (
        "Failure",
        "NodeReport",
        "NodeSteps",
        "RankStep",
        "RunSteps",
        "FailureClass",
        "FailedWorker",
        "WorkerExit",
        "ErrorRecord",
        "Origin",
        "Decision",
        "Restart",
        "Stop",
        "Ignore",
    ),
    "Commands of `elastic`": (
        "echo",
        "echo_json",
        "run_option",
        "chosen_policy",
        "checked_decision",
        "describe_decision",
        "chosen_store",
        "StoreChoice",
        "StoreReader",
        "StoreReading",
        "stored_run",
        "StoredRun",
        "StoredRound",
        "StoredMember",
        "StoredFailure",
        "StoredDecision",
        "find_runs",
        "runs_named",
        "run_at",
        "run_places",
        "FoundRun",
        "AgentStatus",
        "WorkerStatus",
        "find_incidents",
        "FoundIncident",
        "Incident",
        "IncidentDecision",
        "render_incident",
        "rank_ranges",
        "to_failure",
    ),
    "Records and their JSON": ("Record", "encode_json", "decode_json", "clean"),
    "What hooks may do": ("Power", "Launches", "LaunchChange", "AddEnvironment", "Refuse", "fault_of_variable"),
    "Starting workers": ("WorkerStarter", "WorkerStart", "StartedProcess", "AgentLoop", "arm_worker", "bound_to"),
    "The run's handle": (
        "RunHandle",
        "RunTimer",
        "RunningWorker",
        "WorkerBeats",
        "OpenSection",
        "FailureReport",
        "WorkerFault",
        "WorkerStack",
        "Offer",
        "Answer",
    ),
    "The feed": ("RunEvent", "Phase"),
    "Hooks of libraries, and plugins of plugins": (
        "register_hook",
        "find_entries",
        "PluginEntry",
        "import_entry",
        "plugin_refusal",
    ),
    "Moments": (
        "Moment",
        *(event.__name__ for event in METHODS if event is not RunEvent),
    ),
    "Errors": tuple(name for name in api.__all__ if name.endswith("Error")),
}
"""The public names by subject; together they are all of `elastic_core.api`."""


def api_reference() -> str:
    """Directives for every public name."""
    parts = []
    for title, names in API_SECTIONS.items():
        parts += [f"## {title}", *(_api_entry(name) for name in names)]
    return "\n\n".join(parts)


def _api_entry(name: str) -> str:
    thing = getattr(api, name)
    if isinstance(thing, type):
        hidden = ":exclude-members: __new__" if issubclass(thing, enum.Enum) else ":exclude-members: __init__"
        derived = any(base.__name__ in api.__all__ for base in thing.__bases__)
        bases = [":show-inheritance:"] if derived or issubclass(thing, enum.Enum) else []
        return _autodoc("autoclass", name, ":members:", ":undoc-members:", hidden, *bases)
    if inspect.isfunction(thing):
        return _autodoc("autofunction", name)
    return f"```{{py:data}} {name}\n{DATA[name]}\n```"


def _autodoc(directive: str, name: str, *options: str) -> str:
    lines = [f".. {directive}:: elastic_core.api.{name}", *(f"   {option}" for option in options)]
    return "\n".join(["```{eval-rst}", *lines, "```"])


EMBEDDING_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "A run": ("run_job", "RunOutcome", "RunSettings", "Entrypoint", "Injected", "NOTHING"),
    "Options as settings": (
        "resolve",
        "Choices",
        "read_arguments",
        "elastic_process",
        "OPTIONS",
        "BY_DEST",
        "OptionRow",
        "all_rows",
        "hook_row",
        "is_hook_option",
        "comma_list",
        "completion_script",
        "key_values",
        "nearest",
        "Node",
        "count_for",
        "DEFAULT_SIGNALS",
    ),
    "What workers execute": (
        "make_entrypoint",
        "CallStarter",
        "record",
        "LOCAL_RANK_MACRO",
    ),
    "Failures": ("ChildFailedError", "ProcessFailure", "remembered"),
    "Rendezvous": (
        "PluginRegistry",
        "PluginEntry",
        "find_entries",
        "IN_CODE",
        "register_backend",
        "registered_backend",
        "LocalRendezvous",
        "CoordinatedRendezvous",
        "NoServices",
        "HeldPort",
        "attempt_from_environment",
        "ALLOWABLE",
        "DEFAULT_LEASE_TTL_S",
        "STORE_FORMAT",
    ),
    "Worker processes without a run": (
        "Reactor",
        "ReactorLoop",
        "WorkerGroup",
        "WorkerLaunch",
        "Console",
        "LogLayout",
        "RankPaths",
        "StreamPlan",
        "stream_plans",
        "Std",
    ),
}
"""What `elastic_core.embedding` has, by what it is for."""

EMBEDDING_DATA: Final[Mapping[str, str]] = {
    "NOTHING": "An `Injected` without anything.",
    "OPTIONS": "Every option of the core, in the order of the help.",
    "BY_DEST": "The same, by their identifiers.",
    "DEFAULT_SIGNALS": "The signals that end a run where nobody chose others.",
    "LOCAL_RANK_MACRO": "What stands for a worker's local rank in its arguments.",
    "IN_CODE": "What stands for the distribution of what was registered in code.",
    "ALLOWABLE": "What nodes may be allowed to differ in (`--allow-mismatch`).",
    "DEFAULT_LEASE_TTL_S": "How long a lease lasts where nobody chose.",
    "STORE_FORMAT": "The version of what nodes write into a store.",
}


def embedding_reference() -> str:
    """A table for each purpose of `elastic_core.embedding`."""
    parts = []
    for title, names in EMBEDDING_SECTIONS.items():
        rows = ((f"`{name}`", EMBEDDING_DATA.get(name) or first_line(getattr(embedding, name))) for name in names)
        parts += [f"## {title}", table(("name", "what it is"), rows)]
    return "\n\n".join(parts)
