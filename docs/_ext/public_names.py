"""The reference of the public modules: `elastic_core.api`, name by name, and `elastic_core.embedding`.

A name that a module has and this does not list is missed by a test.
"""

import enum
import inspect
from collections.abc import Iterator, Mapping
from typing import Final

from page_parts import attributes, first_line, prose, signature, table

from elastic_core import api, embedding
from elastic_core.api.feed import RunEvent
from elastic_core.hooks.members import METHODS

DATA: Final[Mapping[str, str]] = {
    "hookimpl": "Marks a function of a plugin module as the implementation of the specification that has its name.",
    "API_VERSION": "The version of the plugin interfaces; each plugin states the one that it was written for.",
    "SYSTEM_CLOCK": "The [`SystemClock`](#systemclock) of this process.",
    "RoundChange": "What [`RendezvousHandler.watch`](#rendezvoushandler) may return: any of the changes below.",
    "Decision": "What a [`FailureHandler`](#failurehandler) may return: [`Restart`](#restart), [`Stop`](#stop) or "
    "[`Ignore`](#ignore).",
    "Moment": "Any of the records that hooks are told.",
    "Offer": "What answers a request to the agent: a function of the request's parameters, by name, that returns an "
    "[`Answer`](#answer).",
    "ROUND_KEY": "Key of a store's document with the round: its roster, and how it ended.",
    "CONTROL_KEY": "Key of a store's document with the run: what nodes compare when they join, and the verdict.",
    "STORE_FORMAT": "The version of what nodes write into a store.",
    "STORE_KEEP_S": "Seconds that a store keeps a run which has not ended, since it was last written.",
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
        "Environment",
        "Proposal",
    ),
    "What plugins are built with": (
        "RendezvousSettings",
        "PolicySettings",
        "HookSettings",
        "OptionSpec",
        "RunOption",
        "resolve_options",
        "ResolvedOptions",
        "duration_s",
        "duration_text",
    ),
    "Waiting": ("WaitBudget", "Clock", "SystemClock", "SYSTEM_CLOCK"),
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
        "STORE_FORMAT",
        "STORE_KEEP_S",
    ),
    "Addresses": ("is_ip", "is_loopback", "route_source"),
    "GPUs": ("nvidia_gpus", "NvidiaGpus", "visible_entries"),
    "Stock torchrun": ("torch_handler",),
    "In workers": ("record", "get_error_handler"),
    "Rounds": (
        "RendezvousInfo",
        "RosterMember",
        "Round",
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
        "DeviceFault",
        "FailedWorker",
        "WorkerExit",
        "ErrorRecord",
        "Origin",
        "Decision",
        "Restart",
        "Stop",
        "Ignore",
        "Absence",
        "parse_fault_frames",
        "without_launcher",
        "is_user_file",
    ),
    "Commands of `elastic`": (
        "echo",
        "echo_json",
        "run_option",
        "chosen_policy",
        "checked_decision",
        "chosen_store",
        "open_store",
        "proposed_values",
        "StoreChoice",
        "user_name",
        "run_records",
        "run_places",
        "RunRecord",
        "AgentIdentity",
        "find_incidents",
        "FoundIncident",
        "Incident",
        "decode_incident",
        "render_incident",
        "rank_ranges",
        "to_failure",
    ),
    "Records, their JSON, and files": ("Record", "encode_json", "decode_json", "clean", "read_file", "replace_file"),
    "What hooks may do": ("Power", "Launches", "LaunchChange", "Refuse", "fault_of_variable"),
    "Starting workers": ("WorkerStarter", "WorkerStart", "StartedProcess", "AgentLoop", "arm_worker", "bound_to"),
    "Hosting what workers meet at": ("MasterServer",),
    "The run's handle": (
        "RunHandle",
        "RunTimer",
        "RunningWorker",
        "FailureReport",
        "WorkerFault",
        "Offer",
        "Answer",
        "AgentChannel",
        "checks_arguments",
    ),
    "The feed": ("RunEvent", "Phase"),
    "Hooks of libraries, and plugins of plugins": (
        "register_hook",
        "find_entries",
        "PluginEntry",
        "import_entry",
        "plugin_refusal",
        "check_plugin",
    ),
    "Moments": (
        "Moment",
        *(event.__name__ for event in METHODS if event is not RunEvent),
    ),
    "Errors": tuple(name for name in api.__all__ if name.endswith("Error")),
}
"""The public names by subject; together they are all of `elastic_core.api`."""


def api_reference() -> str:
    """A section for every public name."""
    parts = []
    for title, names in API_SECTIONS.items():
        parts += [f"## {title}", *(f"### `{name}`\n\n{_entry(name)}" for name in names)]
    return "\n\n".join(parts)


def _entry(name: str) -> str:
    thing = getattr(api, name)
    if not isinstance(thing, type):
        return f"`{signature(thing, name)}`\n\n{prose(thing)}" if inspect.isfunction(thing) else DATA[name]
    parts = [*_bases(thing), prose(thing)]
    if issubclass(thing, enum.Enum):
        rows = ((f"`{one}`", f"`{thing[one].value}`", said.text) for one, said in attributes(thing).items())
        return "\n\n".join((*parts, table(("member", "value", "what it is"), rows)))
    own = {one: said for one, said in attributes(thing).items() if not one.startswith("_")}
    if own:
        rows = (
            (f"`{one}`", f"`{said.annotation}`" if said.annotation else "", _default(said.default), said.text)
            for one, said in own.items()
        )
        parts.append(table(("field", "type", "default", "what it is"), rows))
    return "\n\n".join((*parts, *_methods(thing)))


def _bases(cls: type) -> list[str]:
    """Return the public classes that this one is, too."""
    names = [base.__name__ for base in cls.__bases__ if base.__name__ in api.__all__ and base is not api.Record]
    return [f"Is a {', '.join(f'[`{name}`](#{name.lower()})' for name in names)}."] if names else []


def _default(text: str) -> str:
    return f"`{text}`" if text else ""


def _methods(cls: type) -> Iterator[str]:
    for name, member in vars(cls).items():
        if name.startswith("_") and name != "__init__":
            continue
        function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if isinstance(member, property):
            yield f"**`{name}`**\n\n{prose(member)}"
        elif inspect.isfunction(function) and inspect.getdoc(function):
            shown = cls.__name__ if name == "__init__" else name
            if function.__qualname__.startswith(f"{cls.__name__}."):
                yield f"**`{signature(function, shown)}`**\n\n{prose(function)}"


EMBEDDING_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "A run": ("run_job", "RunOutcome", "RunSettings", "Entrypoint", "Injected", "NOTHING"),
    "Options as settings": (
        "resolve",
        "Choices",
        "read_arguments",
        "elastic_process",
        "OPTIONS",
        "BY_DEST",
        "all_hook_options",
        "hook_option",
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
    "Failures": ("read_error_file", "parse_error_file", "remembered"),
    "Rendezvous": (
        "PluginRegistry",
        "PluginEntry",
        "find_entries",
        "IN_CODE",
        "register_backend",
        "registered_backend",
        "LocalRendezvous",
        "Backend",
        "CoordinatedRendezvous",
        "JoinRendezvous",
        "WatchRound",
        "PublishDecision",
        "AnnounceDeparture",
        "LeaveRendezvous",
        "RoundChanged",
        "RendezvousFailed",
        "RendezvousLeft",
        "PrintLine",
        "DrainOrdered",
        "PluginLabel",
        "Fault",
        "HeldPort",
        "attempt_from_environment",
        "ALLOWABLE",
        "DEFAULT_LEASE_TTL_S",
    ),
    "Worker processes without a run": (
        "Reactor",
        "ReactorLoop",
        "Sweeper",
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
}


def embedding_reference() -> str:
    """A table for each purpose of `elastic_core.embedding`."""
    parts = []
    for title, names in EMBEDDING_SECTIONS.items():
        rows = ((f"`{name}`", EMBEDDING_DATA.get(name) or first_line(getattr(embedding, name))) for name in names)
        parts += [f"## {title}", table(("name", "what it is"), rows)]
    return "\n\n".join(parts)
