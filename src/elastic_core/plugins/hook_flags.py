"""The options of `elastic run` that installed hooks bring: found by metadata, imported when they are given."""

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from elastic_core.errors import ElasticError, PluginError
from elastic_core.option_spec import RunOption
from elastic_core.plugins.conversion import GivenValue
from elastic_core.plugins.discovery import OPTIONS_GROUP, PluginEntry, find_entries
from elastic_core.plugins.entry_import import HOOK_LIMIT, import_entry, limit_of, mend, only_claim, plugin_refusal
from elastic_core.plugins.missing import known_options, option_not_installed
from elastic_core.types import Record

CORE_FLAGS: Final = frozenset(
    """
    agent-port allow-mismatch connect-timeout debug-rank devices dry-run duplicate-stderr-filters
    duplicate-stdout-filters environment exit-timeout fatal-exit-codes h help help-all join-timeout local-addr
    local-ranks-filter log-backups log-dir log-line-prefix-template log-max-size logs-specs m master-addr
    master-port max-membership-changes max-restarts module monitor-interval nnodes no-python no-worker-hooks
    node-id node-rank nproc-per-node omp-threads on-store-loss p plugin policy policy-conf preemption-signal
    print-completion r rdzv-attempt rdzv-backend rdzv-conf rdzv-endpoint rdzv-id redirects restart-backoff
    restart-window role run-dir run-path same-failure-limit shutdown-timeout signals-to-handle spares standalone
    start-method store-outage-grace t tee v verbose virtual-local-rank
    """.split()  # noqa: SIM905  # as many words as a page of code would be
)
"""What the core's own flags are called, long and short: no plugin's can be. A test compares them with its options."""


class HookOptions:
    """The options that a set of entry points brings.

    Args:
        entries: Entry points of group `elastic_core.options`; others are passed over.
    """

    def __init__(self, entries: Sequence[PluginEntry]) -> None:
        self._entries = [entry for entry in entries if entry.group == OPTIONS_GROUP]
        self._loaded: dict[str, RunOption] = {}

    @property
    def flags(self) -> tuple[str, ...]:
        """Their names on the command line, without the two dashes; nothing is imported for them."""
        return tuple(sorted({entry.name for entry in self._entries if not entry.name.isupper()} - CORE_FLAGS))

    def load(self, flag: str) -> RunOption | None:
        """Return one option; None: nothing that is installed brings it.

        Args:
            flag: Its flag, without the dashes, or the variable of torch's that gives it.

        Raises:
            PluginError: two distributions claim it, or what declares it is broken.
        """
        if flag not in self._loaded and (entry := self.claimed(flag)) is not None:
            self._loaded[flag] = _declared(entry)
        return self._loaded.get(flag)

    def hook(self, name: str) -> PluginEntry | None:
        """Return the hook that an option chooses, whether a flag gives it or a variable alone; raises as `load`."""
        variables = (entry.name for entry in self._entries if entry.name.isupper())
        for each in (name.replace("_", "-"), *variables):
            option, entry = self.load(each), self.claimed(each)
            if option is not None and entry is not None and option.name == name:
                return hook_entry(entry)
        return None

    def claimed(self, name: str) -> PluginEntry | None:
        """Return the entry point of a flag or variable; raises as `load` if two distributions have it."""
        return only_claim(entry for entry in self._entries if entry.name == name and name not in CORE_FLAGS)

    def load_all(self) -> tuple[list[RunOption], list[str]]:
        """Return all that are sound, and a line for each that is not: for help and completion."""
        found: list[RunOption] = []
        lines = [str(_of_the_core(entry)) for entry in self._entries if entry.name in CORE_FLAGS]
        for flag in self.flags:
            try:
                option = self.load(flag)
            except ElasticError as err:
                lines.append(str(err))
            else:
                found += [] if option is None else [option]
        return found, lines


def installed_options() -> HookOptions:
    """Return what is installed in this Python environment."""
    return _installed(tuple(sys.path))


@lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> HookOptions:
    return HookOptions(find_entries(OPTIONS_GROUP))


def _of_the_core(entry: PluginEntry) -> PluginError:
    dashes = "-" if len(entry.name) == 1 else "--"
    return plugin_refusal(entry, f"{dashes}{entry.name} is a flag of elastic run itself; expected another name")


def _declared(entry: PluginEntry) -> RunOption:
    if entry.name in CORE_FLAGS:
        raise _of_the_core(entry)
    declared = import_entry(entry, limit=limit_of(entry, HOOK_LIMIT))
    fault = _fault(declared, entry.name)
    if fault or not isinstance(declared, RunOption):
        raise plugin_refusal(entry, f"{entry.value} {fault}", hint=mend(entry))
    return replace(declared, heading=declared.heading or entry.distribution)


def _fault(declared: object, flag: str) -> str:
    if not isinstance(declared, RunOption):
        return f"is {type(declared).__name__}; expected a RunOption"
    if not isinstance(declared.hook_name, str) or set(declared.hook_name) & set(" ,:='\"\t\n"):
        return f"has hook_name {declared.hook_name!r}; expected a word, or nothing"
    if not declared.hook:
        return "has no hook; expected 'package.module:Class'"
    if flag.isupper() and declared.variable != flag:
        return f"has variable {declared.variable!r}; expected {flag!r}"
    if not flag.isupper() and declared.flag != flag:
        return f"is named {declared.name!r}; expected {flag.replace('-', '_')!r}"
    from elastic_core.plugins.declaration_faults import fault_of_option  # only where one of them is wanted

    fault = fault_of_option(declared)
    return f"is an option {fault}" if fault else ""


class ChosenHook(Record, frozen=True, kw_only=True):
    """A hook that options chose: its class, under the name that they have for it, and the values of all."""

    entry: PluginEntry
    values: Mapping[str, GivenValue]


def chosen_hooks(options: Mapping[str, GivenValue]) -> list[ChosenHook]:
    """Return the hooks whose options were given, each once.

    Args:
        options: By name: those that were given.
    """
    found: dict[str, ChosenHook] = {}
    for name, value in sorted(options.items()):  # whatever was typed first: what the hook is called must not change
        hook = installed_options().hook(name)
        if hook is None and name.replace("_", "-") in known_options():
            raise option_not_installed(name.replace("_", "-"))
        if hook is not None:
            earlier = found.get(hook.value, ChosenHook(entry=hook, values={}))
            found[hook.value] = replace(earlier, values={**earlier.values, name: value})
    return list(found.values())


def hook_entry(entry: PluginEntry) -> PluginEntry:
    """Return the entry of an option with the class of its hook in the place of its declaration.

    Raises:
        PluginError: what declares it is broken.
    """
    declared = _declared(entry)
    return entry._replace(name=declared.hook_name or declared.flag, value=declared.hook)
