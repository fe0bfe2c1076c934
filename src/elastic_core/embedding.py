"""What a program needs that runs an agent in its own process: options as settings, a run of them, and what came of it.

For launchers of one's own, and for elastic-torchrun; plugins need `elastic_core.api` alone. It may change with each
release of the core. Importing it loads nothing: each name is fetched when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from elastic_core.agent.port import HeldPort
    from elastic_core.launcher.injected import NOTHING, Injected
    from elastic_core.launcher.job import run_job
    from elastic_core.launcher.outcome import RunOutcome
    from elastic_core.options.choices import Choices
    from elastic_core.options.devices import Node, count_for
    from elastic_core.options.entrypoint import LOCAL_RANK_MACRO, function_entrypoint, make_entrypoint
    from elastic_core.options.hook_options import all_rows, hook_row, is_hook_option
    from elastic_core.options.option import OptionRow
    from elastic_core.options.resolve import resolve
    from elastic_core.options.settings import DEFAULT_SIGNALS, Entrypoint, RunSettings
    from elastic_core.options.table import BY_DEST, OPTIONS
    from elastic_core.options.values import comma_list, key_values, nearest
    from elastic_core.plugins.discovery import PluginEntry, find_entries
    from elastic_core.plugins.registry import PluginRegistry
    from elastic_core.processes.errors import ChildFailedError, ProcessFailure
    from elastic_core.processes.functions.call import FunctionCall, run_script_path
    from elastic_core.rendezvous.identity import ALLOWABLE, attempt_from_environment
    from elastic_core.rendezvous.local import LocalRendezvous
    from elastic_core.rendezvous.member.coordinated import CoordinatedRendezvous

__all__ = [
    "ALLOWABLE",
    "BY_DEST",
    "DEFAULT_SIGNALS",
    "LOCAL_RANK_MACRO",
    "NOTHING",
    "OPTIONS",
    "ChildFailedError",
    "Choices",
    "CoordinatedRendezvous",
    "Entrypoint",
    "FunctionCall",
    "HeldPort",
    "Injected",
    "LocalRendezvous",
    "Node",
    "OptionRow",
    "PluginEntry",
    "PluginRegistry",
    "ProcessFailure",
    "RunOutcome",
    "RunSettings",
    "all_rows",
    "attempt_from_environment",
    "comma_list",
    "count_for",
    "find_entries",
    "function_entrypoint",
    "hook_row",
    "is_hook_option",
    "key_values",
    "make_entrypoint",
    "nearest",
    "resolve",
    "run_job",
    "run_script_path",
]

_HOMES: Final = {
    "elastic_core.agent.port": "HeldPort",
    "elastic_core.launcher.injected": "NOTHING Injected",
    "elastic_core.launcher.job": "run_job",
    "elastic_core.launcher.outcome": "RunOutcome",
    "elastic_core.options.choices": "Choices",
    "elastic_core.options.devices": "Node count_for",
    "elastic_core.options.entrypoint": "LOCAL_RANK_MACRO function_entrypoint make_entrypoint",
    "elastic_core.options.hook_options": "all_rows hook_row is_hook_option",
    "elastic_core.options.option": "OptionRow",
    "elastic_core.options.resolve": "resolve",
    "elastic_core.options.settings": "DEFAULT_SIGNALS Entrypoint RunSettings",
    "elastic_core.options.table": "BY_DEST OPTIONS",
    "elastic_core.options.values": "comma_list key_values nearest",
    "elastic_core.plugins.discovery": "PluginEntry find_entries",
    "elastic_core.plugins.registry": "PluginRegistry",
    "elastic_core.rendezvous.identity": "ALLOWABLE attempt_from_environment",
    "elastic_core.rendezvous.local": "LocalRendezvous",
    "elastic_core.rendezvous.member.coordinated": "CoordinatedRendezvous",
    "elastic_core.processes.errors": "ChildFailedError ProcessFailure",
    "elastic_core.processes.functions.call": "FunctionCall run_script_path",
}


def __getattr__(name: str) -> object:
    home = next((home for home, names in _HOMES.items() if name in names.split()), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
