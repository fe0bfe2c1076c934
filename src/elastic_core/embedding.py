"""What a program needs that runs an agent in its own process: options as settings, a run of them, and what came of it.

For launchers of one's own, and for elastic-torchrun; plugins need `elastic_core.api` alone. It may change with each
release of the core. Importing it loads nothing: each name is fetched when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from elastic_core.agent.port import HeldPort
    from elastic_core.cli.arguments import read_arguments
    from elastic_core.cli.completion_command import completion_script
    from elastic_core.cli.main import process as elastic_process
    from elastic_core.errors import nearest
    from elastic_core.history import remembered
    from elastic_core.launcher.injected import NOTHING, Injected
    from elastic_core.launcher.job import run_job
    from elastic_core.launcher.outcome import RunOutcome
    from elastic_core.logger import Logger
    from elastic_core.messages import (
        AnnounceDeparture,
        DrainOrdered,
        JoinRendezvous,
        LeaveRendezvous,
        PrintLine,
        PublishDecision,
        RendezvousFailed,
        RendezvousLeft,
        RoundChanged,
        WatchRound,
    )
    from elastic_core.options.choices import Choices
    from elastic_core.options.devices import Node, count_for
    from elastic_core.options.entrypoint import LOCAL_RANK_MACRO, make_entrypoint
    from elastic_core.options.hook_options import all_hook_options, hook_option, is_hook_option
    from elastic_core.options.readers import comma_list, key_values
    from elastic_core.options.resolve import resolve
    from elastic_core.options.settings import DEFAULT_SIGNALS, Entrypoint, RunSettings
    from elastic_core.options.table import BY_DEST, OPTIONS
    from elastic_core.plugin_faults import Fault, PluginLabel
    from elastic_core.plugins.discovery import PluginEntry, find_entries
    from elastic_core.plugins.entry_import import IN_CODE
    from elastic_core.plugins.registry import PluginRegistry
    from elastic_core.processes.errors import record
    from elastic_core.processes.errors.reader import parse_json as parse_error_file
    from elastic_core.processes.errors.reader import read_file as read_error_file
    from elastic_core.processes.group import WorkerGroup
    from elastic_core.processes.output.layout import LogLayout, RankPaths, Std, stream_plans
    from elastic_core.processes.output.sink import Console
    from elastic_core.processes.spec import StreamPlan, WorkerLaunch
    from elastic_core.processes.sweep import Sweeper
    from elastic_core.reactor import Reactor
    from elastic_core.rendezvous.coordinated import Backend, CoordinatedRendezvous
    from elastic_core.rendezvous.coordinated_options import DEFAULT_LEASE_TTL_S
    from elastic_core.rendezvous.identity import ALLOWABLE, attempt_from_environment
    from elastic_core.rendezvous.local import LocalRendezvous
    from elastic_core.rendezvous.registry import register as register_backend
    from elastic_core.rendezvous.registry import registered as registered_backend
    from elastic_core.starters import CallStarter, ReactorLoop

__all__ = [
    "ALLOWABLE",
    "BY_DEST",
    "DEFAULT_LEASE_TTL_S",
    "DEFAULT_SIGNALS",
    "IN_CODE",
    "LOCAL_RANK_MACRO",
    "NOTHING",
    "OPTIONS",
    "AnnounceDeparture",
    "Backend",
    "CallStarter",
    "Choices",
    "Console",
    "CoordinatedRendezvous",
    "DrainOrdered",
    "Entrypoint",
    "Fault",
    "HeldPort",
    "Injected",
    "JoinRendezvous",
    "LeaveRendezvous",
    "LocalRendezvous",
    "LogLayout",
    "Logger",
    "Node",
    "PluginEntry",
    "PluginLabel",
    "PluginRegistry",
    "PrintLine",
    "PublishDecision",
    "RankPaths",
    "Reactor",
    "ReactorLoop",
    "RendezvousFailed",
    "RendezvousLeft",
    "RoundChanged",
    "RunOutcome",
    "RunSettings",
    "Std",
    "StreamPlan",
    "Sweeper",
    "WatchRound",
    "WorkerGroup",
    "WorkerLaunch",
    "all_hook_options",
    "attempt_from_environment",
    "comma_list",
    "completion_script",
    "count_for",
    "elastic_process",
    "find_entries",
    "hook_option",
    "is_hook_option",
    "key_values",
    "make_entrypoint",
    "nearest",
    "parse_error_file",
    "read_arguments",
    "read_error_file",
    "record",
    "register_backend",
    "registered_backend",
    "remembered",
    "resolve",
    "run_job",
    "stream_plans",
]

_ROOMS: Final = {
    "elastic_core.agent.port": "HeldPort",
    "elastic_core.cli.arguments": "read_arguments",
    "elastic_core.cli.completion_command": "completion_script",
    "elastic_core.cli.main": "process=elastic_process",
    "elastic_core.errors": "nearest",
    "elastic_core.history": "remembered",
    "elastic_core.launcher.injected": "NOTHING Injected",
    "elastic_core.launcher.job": "run_job",
    "elastic_core.launcher.outcome": "RunOutcome",
    "elastic_core.logger": "Logger",
    "elastic_core.messages": (
        "AnnounceDeparture DrainOrdered JoinRendezvous LeaveRendezvous PrintLine PublishDecision RendezvousFailed "
        "RendezvousLeft RoundChanged WatchRound"
    ),
    "elastic_core.options.devices": "Node count_for",
    "elastic_core.options.entrypoint": "LOCAL_RANK_MACRO make_entrypoint",
    "elastic_core.options.hook_options": "all_hook_options hook_option is_hook_option",
    "elastic_core.options.choices": "Choices",
    "elastic_core.options.resolve": "resolve",
    "elastic_core.options.settings": "DEFAULT_SIGNALS Entrypoint RunSettings",
    "elastic_core.options.table": "BY_DEST OPTIONS",
    "elastic_core.options.readers": "comma_list key_values",
    "elastic_core.plugin_faults": "Fault PluginLabel",
    "elastic_core.plugins.discovery": "PluginEntry find_entries",
    "elastic_core.plugins.entry_import": "IN_CODE",
    "elastic_core.plugins.registry": "PluginRegistry",
    "elastic_core.processes.errors": "record",
    "elastic_core.processes.errors.reader": "parse_json=parse_error_file read_file=read_error_file",
    "elastic_core.processes.group": "WorkerGroup",
    "elastic_core.processes.output.sink": "Console",
    "elastic_core.processes.output.layout": "LogLayout RankPaths Std stream_plans",
    "elastic_core.processes.spec": "StreamPlan WorkerLaunch",
    "elastic_core.processes.sweep": "Sweeper",
    "elastic_core.reactor": "Reactor",
    "elastic_core.rendezvous.coordinated": "Backend CoordinatedRendezvous",
    "elastic_core.rendezvous.coordinated_options": "DEFAULT_LEASE_TTL_S",
    "elastic_core.rendezvous.identity": "ALLOWABLE attempt_from_environment",
    "elastic_core.rendezvous.local": "LocalRendezvous",
    "elastic_core.rendezvous.registry": "register=register_backend registered=registered_backend",
    "elastic_core.starters": "CallStarter ReactorLoop",
}
"""Where the names are; `process=elastic_process` has another name there than here."""
_PLACES: Final = {
    word.rpartition("=")[2]: (room, word.partition("=")[0]) for room, words in _ROOMS.items() for word in words.split()
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room, original = _PLACES[name]
    found = globals()[name] = getattr(importlib.import_module(room), original)
    return found
